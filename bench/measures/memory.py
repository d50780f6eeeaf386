"""What a server holds in memory while its processes do nothing."""

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
"""Time for the children to reach their sleep and for a server to hand memory back."""


async def _idle(context: Context) -> Mapping[str, float]:
    count = context.sizes.idle_processes
    async with talking(context.command, Acks.QUICK) as (server, client):
        for number in range(1, count + 1):
            await client.call(wire.start(number, f"p{number}", _ARGV), number)
        await asyncio.sleep(_SETTLE_SECONDS)
        pids = server.processes(command=_ARGV)
        if len(tree(server.pid)) - len(pids) != count:
            raise BenchError(f"{count} commands were started, {len(tree(server.pid)) - len(pids)} run")
        held = memory(pids)
    return {"memory_alone": held.alone / _MIB, "memory_pss": held.pss / _MIB, "memory_rss": held.rss / _MIB}


IDLE = Benchmark(
    name="memory",
    figures=(
        Figure(
            key="memory_pss",
            title="memory with 100 idle processes, PSS of the server's processes",
            unit="MiB",
            target=Target(factor=0.6),
        ),
        Figure(
            key="memory_alone",
            title="the same, pages shared with strangers (this benchmark is one) counted in full",
            unit="MiB",
            target=Target(factor=0.6),
        ),
        Figure(
            key="memory_rss",
            title="the same, RSS",
            unit="MiB",
        ),
    ),
    runners={Subject.HOLDFAST: _idle, Subject.CODEX: _idle},
)
