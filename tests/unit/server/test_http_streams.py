"""Bodies on their way to one client, at the edges that a whole server does not show."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from holdfast.base.errors import InvalidParams
from holdfast.server.http_streams import MAX_DELTA, ConnectionBodies
from holdfast.wire.connection import Connection
from holdfast.wire.protocol.http import BodyDeltaEvent


class Client:
    """The end of a connection: counts what is sent."""

    def __init__(self) -> None:
        self.ended = False
        self.sizes: list[int] = []
        self.last: BodyDeltaEvent | None = None
        self.done = asyncio.Event()

    def send_parts(self, parts: Sequence[bytes]) -> None:
        self.sizes.append(len(parts[1]) // 4 * 3)

    def notify(self, method: object, event: BodyDeltaEvent) -> None:
        self.last = event
        self.done.set()


class Body:
    """A body of given pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self.closed = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    async def aclose(self) -> None:
        self.closed.set()


async def test_a_large_piece_is_sent_in_parts() -> None:
    client, body = Client(), Body(bytes(2 * MAX_DELTA + 3))
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        bodies = ConnectionBodies(cast("Connection", client), tasks)
        bodies.reserve("s")
        bodies.start("s", body)
        assert client.sizes == []  # not before the answer
        await client.done.wait()
    assert [size // MAX_DELTA for size in client.sizes] == [1, 1, 0]
    assert client.last is not None
    assert (client.last.seq, client.last.done) == (4, True)
    assert body.closed.is_set()


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    client = Client()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        bodies = ConnectionBodies(cast("Connection", client), tasks)
        bodies.reserve("s")
        bodies.pause()
        bodies.start("s", Body(b"abc"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert client.sizes == []
        bodies.resume()
        await client.done.wait()
    assert client.sizes == [3]


async def test_a_body_is_closed_even_if_the_client_went_before_it_began() -> None:
    client, body = Client(), Body(b"abc")
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        bodies = ConnectionBodies(cast("Connection", client), tasks)
        bodies.reserve("s")
        bodies.start("s", body)
        client.ended = True
        bodies.end()
        await body.closed.wait()
    assert client.last is None
    bodies.reserve("s")


async def test_an_id_is_for_one_stream_at_a_time() -> None:
    async with asyncio.TaskGroup() as tasks:
        bodies = ConnectionBodies(cast("Connection", Client()), tasks)
        bodies.reserve("s")
        with pytest.raises(InvalidParams, match=r"`s` is already active$"):
            bodies.reserve("s")
        bodies.release("s")
        bodies.reserve("s")
