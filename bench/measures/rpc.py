"""The cost of a request that does nothing: one at a time, and many in flight."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bench import wire
from bench.calls import AtOnce, InTurn, settle
from bench.client import RawClient
from bench.figures import (
    Acks,
    Benchmark,
    Better,
    Context,
    Figure,
    Subject,
    Target,
    both_clients,
    through_both,
)
from bench.processes import on_one_core
from bench.servers import talking

__all__ = ["PIPELINED", "ROUND_TRIP"]

_METHOD = "environment/status"
_WARM_UP = 200


class _Window:
    """Keeps a number of requests in flight: each reply sends the next request."""

    def __init__(self, client: RawClient, count: int, width: int) -> None:
        self._client = client
        self._frames = [wire.frame(request) for request in _requests(count)]
        self._width = width
        self._waiting = set(range(count))
        self._next = width

    async def run(self) -> None:
        """Run until all requests are answered."""
        self._client.send_frames(b"".join(self._frames[: self._width]))
        await self._client.until(self)

    def __call__(self, payload: memoryview) -> bool:
        settle(self._waiting, payload)
        if self._next < len(self._frames):
            self._client.send_frames(self._frames[self._next])
            self._next += 1
        return not self._waiting


def _requests(count: int) -> list[bytes]:
    return [wire.request(number, _METHOD) for number in range(count)]


async def _round_trip(context: Context, acks: Acks) -> Mapping[str, float]:
    count = context.sizes.rpc_calls
    async with talking(context.command, acks) as (server, client):
        with on_one_core(server.processes()):
            await InTurn(client, _requests(_WARM_UP)).run()
            seconds = await InTurn(client, _requests(count)).run()
    return {"rpc": seconds / count * 1e3}


async def _pipelined(context: Context, acks: Acks) -> Mapping[str, float]:
    width = context.sizes.pipelined_width
    turns = context.sizes.pipelined_turns
    async with talking(context.command, acks) as (_, client):
        batch = _requests(width)
        await AtOnce(client, batch).run()
        batches = [AtOnce(client, batch) for _ in range(turns)]
        in_batches = sum([await one.run() for one in batches])
        window = _Window(client, turns * width, width)
        begun = time.perf_counter()
        await window.run()
        in_window = time.perf_counter() - begun
    return {"rpc_batches": turns * width / in_batches, "rpc_window": turns * width / in_window}


ROUND_TRIP = Benchmark(
    name="rpc",
    figures=both_clients(
        Figure(
            key="rpc",
            title=f"rpc round trip (`{_METHOD}`), client and server on one core",
            unit="ms",
            targets=(Target(factor=1.0),),
        )
    ),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_round_trip)),
)

PIPELINED = Benchmark(
    name="rpc-pipelined",
    figures=both_clients(
        Figure(
            key="rpc_batches",
            title="pipelined rpc, batches of 250",
            unit="calls/s",
            better=Better.HIGHER,
            targets=(Target(factor=5.0),),
        ),
        Figure(
            key="rpc_window",
            title="pipelined rpc, always 250 in flight",
            unit="calls/s",
            better=Better.HIGHER,
        ),
    ),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_pipelined)),
)
