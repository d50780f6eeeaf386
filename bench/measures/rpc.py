"""The cost of a request that does nothing: one at a time, and many in flight."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench import wire
from bench.client import RawClient
from bench.errors import BenchError
from bench.figures import Acks, Benchmark, Better, Context, Figure, Subject, Target
from bench.processes import pin
from bench.servers import talking

__all__ = ["PIPELINED", "ROUND_TRIP"]

_METHOD = "environment/status"
_WARM_UP = 200

_KEYS = {Acks.ORDINARY: "rpc", Acks.QUICK: "rpc_quick"}


class _InTurn:
    """Sends each request when the one before it is answered."""

    def __init__(self, client: RawClient, count: int) -> None:
        self._client = client
        self._requests = [wire.request(number, _METHOD) for number in range(count)]
        self._next = 0

    async def run(self) -> float:
        """Return the seconds it took."""
        begun = time.perf_counter()
        await self._client.until(self, [self._requests[0]])
        return time.perf_counter() - begun

    def __call__(self, payload: memoryview) -> bool:
        if wire.decode(payload).id != self._next:
            raise BenchError("a reply came out of turn")
        self._next += 1
        if self._next == len(self._requests):
            return True
        self._client.send(self._requests[self._next])
        return False


class _InFlight:
    """Sends a window of requests in one write and waits for all of its replies."""

    def __init__(self, client: RawClient, first: int, count: int) -> None:
        self._client = client
        self._waiting = set(range(first, first + count))
        self._frames = b"".join(wire.frame(wire.request(number, _METHOD)) for number in sorted(self._waiting))

    async def run(self) -> float:
        """Return the seconds it took."""
        begun = time.perf_counter()
        self._client.send_frames(self._frames)
        await self._client.until(self)
        return time.perf_counter() - begun

    def __call__(self, payload: memoryview) -> bool:
        number = wire.decode(payload).id
        if number is None:
            raise BenchError("a reply without an id")
        self._waiting.remove(number)
        return not self._waiting


@contextmanager
def _on_one_core(pids: list[int]) -> Iterator[None]:
    """
    Put this process and a server on one core.

    Across cores a round trip is mostly the time an idle core takes to wake up, which
    says nothing about the server.
    """
    cores = os.sched_getaffinity(0)
    core = max(cores)
    pin(pids, core)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


async def _round_trip(context: Context) -> Mapping[str, float]:
    values: dict[str, float] = {}
    for acks, key in _KEYS.items():
        async with talking(context.command, acks) as (server, client):
            with _on_one_core(server.processes()):
                await _InTurn(client, _WARM_UP).run()
                seconds = await _InTurn(client, context.sizes.rpc_calls).run()
        values[key] = seconds / context.sizes.rpc_calls * 1e3
    return values


async def _pipelined(context: Context) -> Mapping[str, float]:
    window = context.sizes.pipelined_window
    count = context.sizes.pipelined_calls
    async with talking(context.command, Acks.QUICK) as (_, client):
        await _InFlight(client, 1, window).run()
        batches = [_InFlight(client, number, window) for number in range(1, count, window)]
        begun = time.perf_counter()
        for batch in batches:
            await batch.run()
        seconds = time.perf_counter() - begun
    return {"rpc_pipelined": len(batches) * window / seconds}


ROUND_TRIP = Benchmark(
    name="rpc",
    figures=(
        Figure(
            key=_KEYS[Acks.ORDINARY],
            title=f"rpc round trip (`{_METHOD}`), client and server on one core",
            unit="ms",
            client=Acks.ORDINARY,
            target=Target(factor=1.0),
        ),
        Figure(
            key=_KEYS[Acks.QUICK],
            title="the same with quick ACKs",
            unit="ms",
            client=Acks.QUICK,
        ),
    ),
    runners={Subject.HOLDFAST: _round_trip, Subject.CODEX: _round_trip},
)

PIPELINED = Benchmark(
    name="rpc-pipelined",
    figures=(
        Figure(
            key="rpc_pipelined",
            title="pipelined rpc",
            unit="calls/s",
            better=Better.HIGHER,
            client=Acks.QUICK,
            target=Target(factor=5.0),
        ),
    ),
    runners={Subject.HOLDFAST: _pipelined, Subject.CODEX: _pipelined},
)
