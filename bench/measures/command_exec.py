"""A buffered command of `command_exec` next to `Environment.run`; no server takes part."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from bench.figures import Benchmark, Context, Figure, Limit, Subject
from bench.measures.run import run_program

__all__ = ["COMMAND_EXEC"]


async def _measure(context: Context) -> Mapping[str, float]:
    argv = ("bench.subjects.command_exec", str(context.sizes.runs))
    values = dict(await run_program(sys.executable, *argv))
    on_uvloop = await run_program(sys.executable, *argv, "--uvloop")
    return values | {f"{key}_uvloop": value for key, value in on_uvloop.items()}


def _both(key: str, title: str, unit: str, limit: float | None = None) -> tuple[Figure, ...]:
    """Return one figure for each kind of event loop."""
    targets = () if limit is None else (Limit(value=limit),)
    return tuple(
        Figure(key=key + suffix, title=f"{title}, {loop}", unit=unit, others=(), targets=targets)
        for suffix, loop in (("", "asyncio"), ("_uvloop", "uvloop"))
    )


COMMAND_EXEC = Benchmark(
    name="command_exec",
    figures=(
        *_both("command_run", "`env.run` of an echo, in turn", "ms"),
        *_both("command_echo", "a buffered echo of `command_exec`, by turns with it", "ms"),
        *_both("command_ratio", "the second divided by the first", "×", 1.15),
    ),
    runners={Subject.HOLDFAST: _measure},
)
