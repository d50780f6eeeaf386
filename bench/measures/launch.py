"""How long it takes until a server, or the library, can be used."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Mapping

from bench.errors import NotAvailable
from bench.figures import Benchmark, Context, Figure, Subject
from bench.servers import running

__all__ = ["IMPORT", "SERVER"]

_INTERPRETER_SECONDS = 30.0
"""Bound of one interpreter's life."""


async def _server(context: Context) -> Mapping[str, float]:
    assert context.command is not None, "only servers are launched"
    seconds = 0.0
    for _ in range(context.sizes.launches):
        with running(context.command) as server:
            seconds += server.launch_seconds
    return {"launch": seconds / context.sizes.launches * 1e3}


async def _import(context: Context) -> Mapping[str, float]:
    # The first one writes the byte code, as an installation would have done.
    if _interpreter("import holdfast") is None:
        raise NotAvailable("`import holdfast` does not work in this environment")
    # The difference of two large and noisy times: the best of each, taken in turns.
    with_it: list[float] = []
    without: list[float] = []
    for _ in range(context.sizes.launches * 2):
        with_it.append(_interpreter("import holdfast") or math.inf)
        without.append(_interpreter("pass") or math.inf)
    return {"import": (min(with_it) - min(without)) * 1e3}


def _interpreter(program: str) -> float | None:
    """Return the seconds a fresh interpreter takes for a program, None if it fails."""
    begun = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_INTERPRETER_SECONDS,
        check=False,
    )
    return time.perf_counter() - begun if ended.returncode == 0 else None


SERVER = Benchmark(
    name="launch",
    figures=(Figure(key="launch", title="start of the server to its URL", unit="ms"),),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), _server),
)

IMPORT = Benchmark(
    name="import",
    figures=(
        Figure(key="import", title="`import holdfast`, beyond a bare interpreter", unit="ms"),
    ),
    runners={Subject.HOLDFAST: _import},
)
