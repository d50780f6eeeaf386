"""The start of `holdfast-sh` next to that of bash; no server of the protocol takes part."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from bench.figures import Benchmark, Context, Figure, Limit, Subject
from bench.measures.run import run_program

__all__ = ["DROP_IN"]


async def _measure(context: Context) -> Mapping[str, float]:
    argv = ("bench.subjects.drop_in", str(context.sizes.runs))
    return dict(await run_program(sys.executable, *argv))


DROP_IN = Benchmark(
    name="drop_in",
    figures=(
        Figure(key="sh_bash", title="`bash -c true`", unit="ms", others=()),
        Figure(
            key="sh_round_trip", title="one round trip to the warm server", unit="ms", others=()
        ),
        Figure(key="sh_start", title="`holdfast-sh -c true`, no sandbox", unit="ms", others=()),
        Figure(
            key="sh_ratio",
            title="that without the round trip, divided by bash",
            unit="×",
            others=(),
            targets=(Limit(value=1.3),),
        ),
        Figure(key="sh_sandboxed", title="the same in a sandbox", unit="ms", others=()),
    ),
    runners={Subject.HOLDFAST: _measure},
)
