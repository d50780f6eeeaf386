"""Requests whose answers are only counted: one after another, and many at once."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench import wire
from bench.client import RawClient
from bench.errors import BenchError

__all__ = ["AtOnce", "InTurn", "settle"]


class InTurn:
    """Sends each request once the previous one is answered; their ids count from 0."""

    def __init__(self, client: RawClient, requests: Sequence[bytes]) -> None:
        self._client = client
        self._requests = requests
        self._next = 0

    async def run(self) -> float:
        """Return the seconds taken."""
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


class AtOnce:
    """Sends all requests in one write and waits for their replies, in any order."""

    def __init__(self, client: RawClient, requests: Sequence[bytes]) -> None:
        self._client = client
        self._frames = b"".join(map(wire.frame, requests))
        self._waiting = set(range(len(requests)))

    async def run(self) -> float:
        """Return the seconds taken."""
        begun = time.perf_counter()
        self._client.send_frames(self._frames)
        await self._client.until(self)
        return time.perf_counter() - begun

    def __call__(self, payload: memoryview) -> bool:
        settle(self._waiting, payload)
        return not self._waiting


def settle(waiting: set[int], payload: memoryview) -> None:
    """Remove the id of a reply from those still expected."""
    number = wire.decode(payload).id
    if number is None:
        raise BenchError("a reply without an id")
    waiting.remove(number)
