"""
Readers of Holdfast's own client on a server: one that stops, and one that is slow.

`python -m bench.subjects.readers echo 200 URL PID`: an echo on the same connection as a flood
whose reader has stopped. `… slow 100000000 URL PID`: 100 MB for a reader that computes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time

from bench.processes import peak_memory, reset_peaks
from bench.subjects.harness import Ticker, excess
from holdfast.client.client import ExecServerClient
from holdfast.client.remote_process import RemoteProcess
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputChunk, StartParams

_MIB = 1024 * 1024
_FLOOD = ("head", "-c", str(10 << 30), "/dev/zero")
_WARM_UP = 20
_SETTLE_SECONDS = 1.0
"""Seconds for a flood to fill all buffers before the echo is measured."""

_IDLE_SECONDS = 0.25
_COMPUTE_SECONDS = 0.0005
"""Seconds that the slow reader computes for each chunk."""


async def _start(client: ExecServerClient, name: str, *argv: str) -> RemoteProcess:
    params = StartParams(
        process_id=name,
        argv=list(argv),
        cwd=PathUri.parse("file:///"),
        env={"PATH": "/usr/bin:/bin"},
        tty=False,
        pipe_stdin=True,
    )
    return await client.start(params)


async def _echo(client: ExecServerClient, count: int, pid: int) -> dict[str, float]:
    cat = await _start(client, "cat", "cat")
    events = cat.events()

    async def times(count: int) -> float:
        seconds = []
        for _ in range(count):
            begun = time.perf_counter()
            await cat.write(b"a line of thirty-two characters\n")
            event = await anext(events)
            assert isinstance(event, OutputChunk)
            seconds.append(time.perf_counter() - begun)
        return statistics.median(seconds)

    await times(_WARM_UP)
    alone = await times(count)
    reset_peaks()
    reset_peaks(pid)
    before, server_before = peak_memory(), peak_memory(pid)
    flood = await _start(client, "flood", *_FLOOD)
    unread = flood.events()  # requested, and never read
    await asyncio.sleep(_SETTLE_SECONDS)
    beside = await times(count)
    values = {
        "reader_echo": alone * 1e3,
        "reader_echo_beside": beside * 1e3,
        "reader_echo_ratio": beside / alone,
        "reader_growth": (peak_memory() - before) / _MIB,
        "reader_server_growth": (peak_memory(pid, without=_FLOOD) - server_before) / _MIB,
    }
    unread.close()
    await flood.terminate()
    await cat.terminate()
    return values


async def _slow(client: ExecServerClient, size: int, pid: int) -> dict[str, float]:
    await (await _start(client, "true", "true")).wait()
    ticker = Ticker()
    await asyncio.sleep(_IDLE_SECONDS)
    idle = await ticker.gaps()
    process = await _start(client, "writer", "head", "-c", str(size), "/dev/zero")
    got = 0
    async for event in process.events():
        if isinstance(event, OutputChunk):
            got += len(event.chunk)
            until = time.thread_time() + _COMPUTE_SECONDS
            while time.thread_time() < until:
                pass
    gaps = await ticker.gaps()
    ticker.stop()
    if got != size:
        raise RuntimeError(f"{got} bytes arrived of {size}")
    return {
        "slow_held": excess([gap.whole for gap in gaps], [gap.whole for gap in idle]) * 1e3,
        "slow_on_core": excess([gap.on_core for gap in gaps], [gap.on_core for gap in idle]) * 1e3,
    }


async def _measure(task: str, amount: int, url: str, pid: int) -> dict[str, float]:
    async with await ExecServerClient.connect(url) as client:
        return await {"echo": _echo, "slow": _slow}[task](client, amount, pid)


def main() -> None:
    """Measure as the arguments say, and print the values by the key of their figure as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["echo", "slow"])
    parser.add_argument("amount", type=int, help="echoes, or bytes of output")
    parser.add_argument("url")
    parser.add_argument("pid", type=int, help="of the server")
    parser.add_argument("--uvloop", action="store_true", help="instead of asyncio's own loop")
    options = parser.parse_args()
    factory = None
    if options.uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        values = runner.run(_measure(options.task, options.amount, options.url, options.pid))
    sys.stdout.write("\n" + json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
