"""
One check whether a process waits for input, in the event loop that it blocks meanwhile.

Checks in a row find everything in the processor's caches. In practice there is one per quiet
session, so they are also measured with pauses in between.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping

from bench.errors import BenchError
from bench.figures import Benchmark, Context, Figure, Limit, Subject
from holdfast.backends import ExecProcess
from holdfast.engine.process.registry import LocalBackend
from holdfast.events import WaitingFor
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams

__all__ = ["LOOKS"]

_SCRIPTS = {
    "shell": "read x",
    "pipeline": "sleep 600 | sleep 600 | (sleep 600; true) | cat /dev/tty",
}
"""A single program, and one of several in the foreground."""

_PAUSE = 0.02
"""Seconds between two checks that are not in a row."""

_LIMIT = 5.0
"""Seconds until a program reads its terminal."""


async def _looks(context: Context) -> Mapping[str, float]:
    values: dict[str, float] = {}
    async with LocalBackend() as backend:
        for name, script in _SCRIPTS.items():
            params = StartParams(
                process_id=name,
                argv=["/bin/bash", "-c", script],
                cwd=PathUri.parse("file:///"),
                env={"PATH": "/usr/bin:/bin"},
                tty=True,
            )
            process = await backend.start(params)
            await _reads(process)
            count = context.sizes.echoes
            row = [await _look(process) for _ in range(count)]
            values[f"look_{name}_row"] = statistics.median(row) * 1e3
            apart: list[float] = []
            for _ in range(count):
                await asyncio.sleep(_PAUSE)
                apart.append(await _look(process))
            values[f"look_{name}"] = statistics.median(apart) * 1e3
            await process.terminate()
    return values


async def _reads(process: ExecProcess) -> None:
    async with asyncio.timeout(_LIMIT):
        while await process.waiting_for() is not WaitingFor.LINE:  # noqa: ASYNC110 - no event
            await asyncio.sleep(_PAUSE)


async def _look(process: ExecProcess) -> float:
    begun = time.perf_counter()
    found = await process.waiting_for()
    seconds = time.perf_counter() - begun
    if found is not WaitingFor.LINE:
        raise BenchError(f"it waits for {found} instead of a line")
    return seconds


def _figures(name: str, title: str) -> tuple[Figure, ...]:
    return (
        Figure(
            key=f"look_{name}",
            title=f"one look at {title} for input",
            unit="ms",
            others=(),
            targets=(Limit(value=1.0),),
        ),
        Figure(key=f"look_{name}_row", title="the same, in a row", unit="ms", others=()),
    )


LOOKS = Benchmark(
    name="looks",
    figures=(
        *_figures("shell", "a shell that waits"),
        *_figures("pipeline", "a pipeline of four that waits"),
    ),
    runners={Subject.HOLDFAST: _looks},
)
