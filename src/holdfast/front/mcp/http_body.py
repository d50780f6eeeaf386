"""
Bounds on the bodies of requests: their time, their bytes and their JSON values.

The SDK keeps a body as a whole, and parses it at once on the event loop. So one client could
otherwise fill the memory of all clients, or hold up all of them for seconds.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from starlette.types import Message, Receive

__all__ = ["LARGEST", "Bodies", "BodyRefused"]

LARGEST: Final = 4 << 20
"""Bytes of a request. One of so many holds the event loop for some dozens of milliseconds."""

# Seconds that a client has to send the body of a request.
_BODY_TIME: Final = 60.0

# Bytes of the bodies of one client's requests under way: sixteen of the largest.
_BYTES_OF_ONE: Final = 64 << 20

# Commas and opening brackets of a body. Each value has one, and takes up to 4 µs to be parsed and
# validated; the arguments of a tool have some dozens.
_SIGNS: Final = 10_000


class BodyRefused(Exception):
    """The body of a request is not read to its end; the text is for its client."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Bodies:
    """The bodies of all requests under way. An owner is a token, or all clients without one."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()
        # The oldest first.
        self._incomplete: dict[_Body, None] = {}

    @contextmanager
    def reading(
        self, owner: str, receive: Receive, length: str | None, completed: Callable[[], None]
    ) -> Iterator[Receive]:
        """
        Yield a function that receives the body of a request, which counts until the block ends.

        It raises `BodyRefused` if the body is too slow, too large or complex, or too much for its
        owner.

        Args:
            owner: The token.
            receive: Receives the next part of the body.
            length: The size that the client has stated.
            completed: Called once the whole body is there.

        Raises:
            BodyRefused: That is too large.
        """
        if length is not None and int(length) > LARGEST:
            raise _too_large()
        body = _Body(owner, receive, self._take, completed)
        self._incomplete[body] = None
        try:
            yield body.receive
        finally:
            self._incomplete.pop(body, None)
            self._release(body)

    def _take(self, body: "_Body", size: int) -> None:
        """
        Count a part of a body. For one byte too many, the oldest incomplete body makes room.

        Raises:
            BodyRefused: There is no other incomplete body of this owner.
        """
        if body.is_complete:
            self._incomplete.pop(body, None)
        owner = body.owner
        body.size += size
        self._bytes[owner] += size
        while self._bytes[owner] > _BYTES_OF_ONE:
            oldest = next((one for one in self._incomplete if one.owner == owner), body)
            if oldest is body:
                raise _too_many()
            del self._incomplete[oldest]
            self._release(oldest)
            oldest.give_up()

    def _release(self, body: "_Body") -> None:
        self._bytes[body.owner] -= body.size
        body.size = 0
        if not self._bytes[body.owner]:
            del self._bytes[body.owner]


def _too_many() -> BodyRefused:
    text = f"this client has requests of more than {_BYTES_OF_ONE >> 20} MiB under way"
    return BodyRefused(HTTPStatus.TOO_MANY_REQUESTS, text)


def _too_large() -> BodyRefused:
    text = f"the request has more than {LARGEST >> 20} MiB"
    return BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)


class _Body:
    """The body of one request, as far as it has come."""

    def __init__(
        self,
        owner: str,
        receive: Receive,
        take: "Callable[[_Body, int], None]",
        completed: Callable[[], None],
    ) -> None:
        self.owner = owner
        self.size = 0
        self.is_complete = False
        self._receive = receive
        self._take = take
        self._completed = completed
        self._deadline = asyncio.get_running_loop().time() + _BODY_TIME
        self._limit: asyncio.Timeout | None = None
        self._made_room = False
        self._signs = 0
        # The last part ended in a string, and in the middle of an escape.
        self._in_string = self._escaped = False

    def give_up(self) -> None:
        """Read no more of it, to make room for another one."""
        self._made_room = True
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def receive(self) -> Message:
        """
        Receive a part of the body, or later the end of the connection.

        Raises:
            BodyRefused: No more of it is read.
        """
        if self.is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline) as self._limit:
                message = await self._receive()
        except TimeoutError:
            if self._made_room:
                raise _too_many() from None
            text = f"the request took longer than {_BODY_TIME:g} s"
            raise BodyRefused(HTTPStatus.REQUEST_TIMEOUT, text) from None
        finally:
            self._limit = None
        if self._made_room:
            raise _too_many()
        if message["type"] != "http.request":
            # The SDK would log a traceback for each client that leaves here.
            raise BodyRefused(HTTPStatus.BAD_REQUEST, "the request ended early")
        self.is_complete = not message.get("more_body", False)
        part = message.get("body", b"")
        self._take(self, len(part))
        self._check(part)
        if self.is_complete:
            self._completed()
        return message

    def _check(self, part: bytes) -> None:
        if self.size > LARGEST:
            raise _too_large()
        # JSON has none, except as UTF-16 or UTF-32, which some parsers accept.
        if b"\0" in part:
            raise BodyRefused(HTTPStatus.BAD_REQUEST, "the request has a NUL character")
        self._signs += self._count_signs(part)
        if self._signs > _SIGNS:
            text = f"the request has more than {_SIGNS:,} JSON values"
            raise BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)

    def _count_signs(self, part: bytes) -> int:
        """Return the number of commas and opening brackets outside strings."""
        if self._escaped:
            # The first byte belongs to the backslash before it.
            self._escaped = not part
            part = part[1:]
        part = part.replace(b"\\\\", b"")
        self._escaped = self._escaped or part.endswith(b"\\")
        pieces = part.replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[self._in_string :: 2])
        self._in_string ^= len(pieces) % 2 == 0
        return sum(map(outside.count, (b",", b"[", b"{")))
