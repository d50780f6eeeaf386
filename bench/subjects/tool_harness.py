"""
The work of every set of tools with an `exec_command`, and its measurement.

As `bench.subjects.harness`, it imports only the standard library and `bench.processes`, since it
also runs in the virtual environment of the peers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from bench.processes import cpu_seconds, peak_memory, reset_peaks
from bench.subjects.harness import Ticker, excess

__all__ = ["ToolSubject", "main"]

_MIB = 1024 * 1024
_WARM_UP = 5
_IDLE_SECONDS = 0.25
"""Seconds to watch the idle loop."""

_AT_ONCE = 61
_IDLE_SESSIONS = 60
_WRITERS = 64
_SETTLE_SECONDS = 2.0
"""Seconds for 64 writers to finish, and for memory to be released."""

_FLOODS = {
    "text": "yes 'a line of text that a program might print, all of it ASCII'",
    "random": "cat /dev/urandom",
    "multibyte": "yes 'Grüße aus Zürich — 東京 と 大阪 😀'",
}
"""Endless writers; `head` cuts them."""


class ToolSubject(Protocol):
    """The tool `exec_command` of one library."""

    async def exec_command(self, arguments: str) -> str:
        """Call the tool with the arguments of a model, and return its answer."""
        ...

    def run(self) -> Callable[[], Awaitable[object]] | None:
        """Return a function to run the argv of `exec_command("true")` without the tool, if any."""
        ...


def _arguments(**arguments: object) -> str:
    """Return the arguments of a call as a model writes them."""
    return json.dumps(arguments)


_TRUE = _arguments(cmd="true", login=False, shell="bash")


async def _true(subject: ToolSubject) -> None:
    text = await subject.exec_command(_TRUE)
    if "Process exited with code 0" not in text:
        raise RuntimeError(f"true ended with {text!r}")


async def _times(count: int, *works: Callable[[], Awaitable[object]]) -> list[float]:
    """Return the median time of each, in turn, so that disturbances affect all."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(count):
        for work, spent in zip(works, seconds, strict=True):
            begun = time.perf_counter()
            await work()
            spent.append(time.perf_counter() - begun)
    return [statistics.median(spent) for spent in seconds]


async def _in_turn(subject: ToolSubject, count: int) -> dict[str, float]:
    async def call() -> None:
        await _true(subject)

    run = subject.run()
    works = [call] if run is None else [call, run]
    await _times(_WARM_UP, *works)
    return _beside("true", await _times(count, *works))


async def _burst(subject: ToolSubject, count: int) -> dict[str, float]:
    async def calls() -> None:
        await asyncio.gather(*(_true(subject) for _ in range(_AT_ONCE)))

    run = subject.run()

    async def runs() -> None:
        assert run is not None, "it is only called with one"
        await asyncio.gather(*(run() for _ in range(_AT_ONCE)))

    works = [calls] if run is None else [calls, runs]
    await _times(1, *works)
    return _beside("burst", await _times(count, *works))


def _beside(name: str, seconds: Sequence[float]) -> dict[str, float]:
    values = {name: seconds[0] * 1e3}
    if len(seconds) > 1:
        values[f"{name}_run"] = seconds[1] * 1e3
        values[f"{name}_ratio"] = seconds[0] / seconds[1]
    return values


async def _sessions(subject: ToolSubject, count: int, script: str) -> None:
    arguments = _arguments(cmd=script, login=False, shell="bash", yield_time_ms=250)

    async def begin() -> None:
        text = await subject.exec_command(arguments)
        if "Process running with session ID" not in text:
            raise RuntimeError(f"a session ended with {text[:200]!r}")

    await asyncio.gather(*(begin() for _ in range(count)))


async def _idle(subject: ToolSubject, seconds: int) -> dict[str, float]:
    for _ in range(_WARM_UP):
        await _true(subject)
    before = _resident()
    await _sessions(subject, _IDLE_SESSIONS, "exec sleep 600")
    growth = _resident() - before
    begun, used = time.perf_counter(), cpu_seconds([os.getpid()])
    await asyncio.sleep(seconds)
    share = (cpu_seconds([os.getpid()]) - used) / (time.perf_counter() - begun)
    return {"idle_growth": growth / _MIB, "idle_cpu": share * 100}


async def _wrote(subject: ToolSubject, size: int) -> dict[str, float]:
    for _ in range(_WARM_UP):
        await _true(subject)
    before = _resident()
    await _sessions(subject, _WRITERS, f"head -c {size} /dev/zero | tr '\\0' x; exec sleep 600")
    await asyncio.sleep(_SETTLE_SECONDS)
    return {"wrote": (_resident() - before) / _MIB / _WRITERS}


def _flood(kind: str) -> Callable[[ToolSubject, int], Awaitable[dict[str, float]]]:
    async def flood(subject: ToolSubject, size: int) -> dict[str, float]:
        for _ in range(_WARM_UP):
            await _true(subject)
        reset_peaks()
        before = peak_memory()
        ticker = Ticker()
        await asyncio.sleep(_IDLE_SECONDS)
        idle = await ticker.gaps()
        begun = time.perf_counter()
        text = await subject.exec_command(
            _arguments(
                cmd=f"{_FLOODS[kind]} | head -c {size}",
                login=False,
                shell="bash",
                yield_time_ms=30_000,
            )
        )
        seconds = time.perf_counter() - begun
        gaps = await ticker.gaps()
        growth = peak_memory() - before
        ticker.stop()
        if "Process exited with code 0" not in text[:300]:
            raise RuntimeError(f"the writing command ended with {text[:300]!r}")
        return {
            f"{kind}_growth": growth / _MIB,
            f"{kind}_held": excess([g.whole for g in gaps], [g.whole for g in idle]) * 1e3,
            f"{kind}_on_core": excess([g.on_core for g in gaps], [g.on_core for g in idle]) * 1e3,
            f"{kind}_time": seconds * 1e3,
        }

    return flood


def _resident() -> int:
    """Return the bytes of this process in memory, without its children."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel reports no VmRSS")


_TASKS: dict[str, Callable[[ToolSubject, int], Awaitable[dict[str, float]]]] = {
    "true": _in_turn,
    "burst": _burst,
    "idle": _idle,
    "wrote": _wrote,
    **{kind: _flood(kind) for kind in _FLOODS},
}


async def _measure(
    subject: AbstractAsyncContextManager[ToolSubject], task: str, amount: int
) -> dict[str, float]:
    async with subject as ready:
        return await _TASKS[task](ready, amount)


def main(subject: Callable[[str | None, bool], AbstractAsyncContextManager[ToolSubject]]) -> None:
    """
    Measure as the arguments say, and print the values by their names as JSON.

    Args:
        subject: Creates the tools, on a server if it gets a URL. The flag is True if live output is
            followed.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=list(_TASKS))
    parser.add_argument("amount", type=int, help="calls, seconds, or bytes of output")
    parser.add_argument("--url", help="of a server to run on; by default this machine")
    options = parser.parse_args()
    values = asyncio.run(
        _measure(subject(options.url, options.task in _FLOODS), options.task, options.amount)
    )
    # The last line is ours, whatever a library printed before.
    sys.stdout.write("\n" + json.dumps(values) + "\n")
