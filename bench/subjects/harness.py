"""
The work of every subject, and its measurement from inside the subject's process.

It imports only the standard library and `bench.processes`, since it also runs in the virtual
environment of the peers, which has none of our packages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from bench.processes import WaitingForACore, peak_memory, reset_peaks

__all__ = ["CAP", "Output", "Subject", "Ticker", "excess", "main"]

CAP = 1024 * 1024
"""Bytes of output that a subject is asked to keep; one without a cap keeps all."""

_WARM_UP = 3
_TICK_SECONDS = 0.001
_IDLE_SECONDS = 0.25
"""Seconds to watch the idle loop for the length of a tick."""

_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output of a command, as reported by a subject."""

    exit_code: int | None
    kept: bytes | str
    total: int
    """Bytes that the command wrote, as counted by the subject."""


class Subject(Protocol):
    """Runs commands one way."""

    async def program(self, argv: Sequence[str]) -> int | None:
        """Run a program, without a shell, and return its exit code."""
        ...

    async def shell(self, text: str, cap: int) -> Output:
        """Run a shell command; keep `cap` bytes of its output, if the library supports that."""
        ...


@dataclass(frozen=True)
class _Gap:
    """The time between two ticks, in seconds."""

    whole: float
    queued: float
    """Part of it in which the thread was ready to run and had no core."""

    @property
    def on_core(self) -> float:
        """The rest: the loop slept, or was blocked by code that runs on it."""
        return self.whole - self.queued


class Ticker:
    """Records the time between ticks that are due each millisecond."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._scheduler = WaitingForACore()
        self._gaps: list[_Gap] = []
        self._last = time.perf_counter()
        self._queued = self._scheduler.seconds()
        self._handle = self._loop.call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        now, queued = time.perf_counter(), self._scheduler.seconds()
        self._gaps.append(_Gap(now - self._last, queued - self._queued))
        self._last, self._queued = now, queued
        self._handle = self._loop.call_later(_TICK_SECONDS, self._tick)

    async def gaps(self) -> list[_Gap]:
        """Return the times between the ticks since the last call."""
        # An overdue tick runs before this ends.
        await asyncio.sleep(2 * _TICK_SECONDS)
        gaps, self._gaps = self._gaps, []
        return gaps

    def stop(self) -> None:
        """Stop ticking."""
        self._handle.cancel()
        self._scheduler.close()


async def _in_turn(subject: Subject, count: int) -> dict[str, float]:
    for _ in range(_WARM_UP):
        await _true(subject)
    begun = time.perf_counter()
    for _ in range(count):
        await _true(subject)
    return {"run": (time.perf_counter() - begun) / count * 1e3}


async def _true(subject: Subject) -> None:
    code = await subject.program(["true"])
    if code != 0:
        raise RuntimeError(f"true ended with {code}")


async def _output(subject: Subject, size: int) -> dict[str, float]:
    for _ in range(_WARM_UP):
        await _true(subject)
    reset_peaks()
    before = peak_memory()
    ticker = Ticker()
    await asyncio.sleep(_IDLE_SECONDS)
    idle = await ticker.gaps()
    begun = time.perf_counter()
    output = await subject.shell(f"head -c {size} /dev/zero | tr '\\0' x", CAP)
    seconds = time.perf_counter() - begun
    gaps = await ticker.gaps()
    growth = peak_memory() - before
    ticker.stop()
    _check(output, size)
    return {
        "run_growth": growth / _MIB,
        "run_held": excess([gap.whole for gap in gaps], [gap.whole for gap in idle]) * 1e3,
        "run_on_core": excess([gap.on_core for gap in gaps], [gap.on_core for gap in idle]) * 1e3,
        "run_output": seconds * 1e3,
    }


def excess(busy: Sequence[float], idle: Sequence[float]) -> float:
    """Return by how much the longest of these exceeds the usual time on an idle loop."""
    return max(busy) - statistics.median(idle)


def _check(output: Output, size: int) -> None:
    if output.exit_code != 0:
        raise RuntimeError(f"the writing command ended with {output.exit_code}")
    if output.total != size:
        raise RuntimeError(f"{output.total} bytes were counted of {size}")
    ends = (output.kept[:1024], output.kept[-1024:])
    if any(end not in (b"x" * 1024, "x" * 1024) for end in ends):
        raise RuntimeError("other bytes were kept than were written")


_TASKS: dict[str, Callable[[Subject, int], Awaitable[dict[str, float]]]] = {
    "true": _in_turn,
    "output": _output,
}


async def _measure(
    subject: AbstractAsyncContextManager[Subject], task: str, amount: int
) -> dict[str, float]:
    async with subject as ready:
        return await _TASKS[task](ready, amount)


def main(subject: Callable[[], AbstractAsyncContextManager[Subject]]) -> None:
    """Measure as the arguments say, and print the values by the key of their figure as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=list(_TASKS))
    parser.add_argument("amount", type=int, help="runs, or bytes of output")
    parser.add_argument("--uvloop", action="store_true", help="instead of asyncio's own loop")
    options = parser.parse_args()
    factory = None
    if options.uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        values = runner.run(_measure(subject(), options.task, options.amount))
    # The last line is ours, whatever a library printed before.
    sys.stdout.write("\n" + json.dumps(values) + "\n")
