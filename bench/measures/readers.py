"""
Readers that stop or are slow, on a connection shared with others.

The client is Holdfast's own, in a separate process. A Codex server is left out: there a stopped
reader blocks the whole connection, so that nothing is left to measure.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from bench.figures import Benchmark, Context, Figure, Limit, Subject
from bench.measures.run import run_program
from bench.servers import running

__all__ = ["READERS"]


async def _measure(context: Context) -> Mapping[str, float]:
    sizes = context.sizes
    assert context.command is not None, "it has a server"
    values: dict[str, float] = {}
    with running(context.command) as server:
        where = (server.url, str(server.pid))
        for task, amount in (("echo", sizes.echoes), ("slow", sizes.run_bytes)):
            argv = ("bench.subjects.readers", task, str(amount), *where)
            values |= await run_program(sys.executable, *argv)
            on_uvloop = await run_program(sys.executable, *argv, "--uvloop")
            values |= {f"{key}_uvloop": value for key, value in on_uvloop.items()}
    return values


def _both(key: str, title: str, unit: str, limit: float | None = None) -> tuple[Figure, ...]:
    """Return one figure for each kind of event loop on the client's side."""
    targets = () if limit is None else (Limit(value=limit),)
    return tuple(
        Figure(key=key + suffix, title=f"{title}, {loop}", unit=unit, others=(), targets=targets)
        for suffix, loop in (("", "asyncio"), ("_uvloop", "uvloop"))
    )


READERS = Benchmark(
    name="readers",
    figures=(
        *_both("reader_echo", "stdin echo through `cat`, alone", "ms"),
        *_both("reader_echo_beside", "the same next to an unread flood of output", "ms"),
        *_both("reader_echo_ratio", "the second divided by the first", "×", 2.0),
        *_both("reader_growth", "growth of the client's memory meanwhile", "MiB", 40.0),
        *_both("reader_server_growth", "growth of the server's memory meanwhile", "MiB", 40.0),
        *_both("slow_held", "100 MB, 0.5 ms per chunk: longest time the loop was held", "ms"),
        *_both("slow_on_core", "the same without what the thread waited for a core", "ms", 20.0),
    ),
    runners={Subject.HOLDFAST: _measure},
)
