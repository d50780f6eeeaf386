"""
Memory of a server while its processes are idle.

The relevant figure is that of a server alone on its machine. PSS depends on other processes: next
to two more Codex servers, that of a third was 20 MiB instead of 57, and this benchmark maps the
same Python libraries as Holdfast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from bench import wire
from bench.errors import BenchError
from bench.figures import Acks, Benchmark, Context, Figure, Subject, Target
from bench.processes import memory, tree
from bench.servers import talking

__all__ = ["IDLE"]

_MIB = 1024 * 1024
_ARGV = ("/bin/sleep", "600")

_SETTLE_SECONDS = 0.5
"""Seconds for the children to reach their sleep and for a server to release memory."""


async def _idle(context: Context) -> Mapping[str, float]:
    count = context.sizes.idle_processes
    async with talking(context.command, Acks.QUICK) as (server, client):
        for number in range(1, count + 1):
            await client.call(wire.start(number, f"p{number}", _ARGV), number)
        await asyncio.sleep(_SETTLE_SECONDS)
        pids = server.processes(command=_ARGV)
        if len(tree(server.pid)) - len(pids) != count:
            raise BenchError(
                f"{count} commands were started, {len(tree(server.pid)) - len(pids)} run"
            )
        held = memory(pids)
    return {
        "memory_alone": held.alone / _MIB,
        "memory_pss": held.pss / _MIB,
        "memory_rss": held.rss / _MIB,
    }


IDLE = Benchmark(
    name="memory",
    figures=(
        Figure(
            key="memory_alone",
            title="memory with 100 idle processes, each page of the server counted once",
            unit="MiB",
            targets=(Target(factor=0.6),),
        ),
        Figure(
            key="memory_pss",
            title="memory with 100 idle processes, PSS",
            unit="MiB",
        ),
        Figure(
            key="memory_rss",
            title="memory with 100 idle processes, RSS",
            unit="MiB",
        ),
    ),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), _idle),
)
