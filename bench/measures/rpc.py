"""The cost of a request that does nothing: one at a time, and many in flight."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench import wire
from bench.client import RawClient
from bench.errors import BenchError
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
from bench.processes import pin
from bench.servers import talking

__all__ = ["PIPELINED", "ROUND_TRIP"]

_METHOD = "environment/status"
_WARM_UP = 200


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


class _Batch:
    """Sends requests in one write and waits for all of their replies."""

    def __init__(self, client: RawClient, count: int) -> None:
        self._client = client
        self._waiting = set(range(count))
        self._frames = b"".join(_frames(count))

    async def run(self) -> None:
        """Take the one turn it has."""
        self._client.send_frames(self._frames)
        await self._client.until(self)

    def __call__(self, payload: memoryview) -> bool:
        _settle(self._waiting, payload)
        return not self._waiting


class _Window:
    """Keeps so many requests in flight: each reply sends the next request."""

    def __init__(self, client: RawClient, count: int, width: int) -> None:
        self._client = client
        self._frames = _frames(count)
        self._width = width
        self._waiting = set(range(count))
        self._next = width

    async def run(self) -> None:
        """Take the one turn it has."""
        self._client.send_frames(b"".join(self._frames[: self._width]))
        await self._client.until(self)

    def __call__(self, payload: memoryview) -> bool:
        _settle(self._waiting, payload)
        if self._next < len(self._frames):
            self._client.send_frames(self._frames[self._next])
            self._next += 1
        return not self._waiting


def _frames(count: int) -> list[bytes]:
    return [wire.frame(wire.request(number, _METHOD)) for number in range(count)]


def _settle(waiting: set[int], payload: memoryview) -> None:
    number = wire.decode(payload).id
    if number is None:
        raise BenchError("a reply without an id")
    waiting.remove(number)


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


async def _round_trip(context: Context, acks: Acks) -> Mapping[str, float]:
    count = context.sizes.rpc_calls
    async with talking(context.command, acks) as (server, client):
        with _on_one_core(server.processes()):
            await _InTurn(client, _WARM_UP).run()
            seconds = await _InTurn(client, count).run()
    return {"rpc": seconds / count * 1e3}


async def _pipelined(context: Context, acks: Acks) -> Mapping[str, float]:
    width = context.sizes.pipelined_width
    turns = context.sizes.pipelined_turns
    async with talking(context.command, acks) as (_, client):
        await _Batch(client, width).run()
        batches = [_Batch(client, width) for _ in range(turns)]
        begun = time.perf_counter()
        for batch in batches:
            await batch.run()
        in_batches = time.perf_counter() - begun
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
