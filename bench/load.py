"""
Keeps a server busy with files, from a separate process: `python -m bench.load`.

It has a connection for each request in flight, since the real server handles the requests of a
connection one after the other: half of them walk a tree and half read a file, over and over. It
prints `ready` once each has been answered, continues until its stdin ends, and then prints the
number of answers and the seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvloop

from bench import wire
from bench.client import RawClient, connected
from bench.errors import BenchError
from bench.figures import Acks
from bench.measures.files import walk_params

__all__ = ["busy"]

_LIMIT_SECONDS = 30.0
"""Limit of the time to its first answers, and to its end."""


class _Again:
    """Repeats a request as soon as it is answered."""

    def __init__(self, client: RawClient, request: bytes) -> None:
        self._client = client
        self._request = request
        self.answers = 0
        self.answered = asyncio.Event()

    async def run(self) -> None:
        """Run for ever."""
        await self._client.until(self, [self._request])

    def __call__(self, payload: memoryview) -> bool:
        if b'"error"' in bytes(payload[:32]):
            wire.decode(payload)
        self.answers += 1
        self.answered.set()
        self._client.send(self._request)
        return False


async def _main(url: str, tree: Path, file: Path, width: int) -> None:
    requests = (
        wire.request(1, "fs/walk", walk_params(tree)),
        wire.request(1, "fs/readFile", {"path": file.as_uri()}),
    )
    async with AsyncExitStack() as clients:
        loads = [
            _Again(
                await clients.enter_async_context(connected(url, Acks.QUICK)), requests[number % 2]
            )
            for number in range(width)
        ]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(load.run()) for load in loads]
            for load in loads:
                await load.answered.wait()
            begun, before = time.perf_counter(), sum(load.answers for load in loads)
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.read)
            seconds = time.perf_counter() - begun
            print(sum(load.answers for load in loads) - before, seconds, flush=True)
            for task in running:
                task.cancel()


class Load:
    """The work that a load has done; set at its end."""

    rate = 0.0
    """Answers per second."""


@asynccontextmanager
async def busy(url: str, tree: Path, file: Path, width: int) -> AsyncIterator[Load]:
    """
    Keep a server busy with `width` requests at once while the block runs.

    Raises:
        BenchError: The load could not be sustained.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.load", url, str(tree), str(file), str(width)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None, "it was started with pipes"
    assert process.stdout is not None, "it was started with pipes"
    load = Load()
    try:
        async with asyncio.timeout(_LIMIT_SECONDS):
            if await process.stdout.readline() != b"ready\n":
                raise BenchError("the load on the server did not start")
        yield load
        process.stdin.close()
        async with asyncio.timeout(_LIMIT_SECONDS):
            said = (await process.stdout.read()).split()
            if await process.wait() != 0 or len(said) != 2:
                raise BenchError("the load on the server ended early")
        load.rate = int(said[0]) / float(said[1])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.load")
    parser.add_argument("url")
    parser.add_argument("tree", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("width", type=int)
    options = parser.parse_args()
    uvloop.run(_main(options.url, options.tree, options.file, options.width))
