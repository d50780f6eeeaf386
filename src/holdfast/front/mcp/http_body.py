"""
Bounds on request bodies: their duration, size and number of JSON values.

The SDK buffers a whole body, and parses it at once on the event loop. Without bounds, one client
could fill the memory, or block all clients for seconds.
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
"""Maximum bytes of a request. That many block the event loop for tens of milliseconds."""

# Seconds for a client to send the body of a request.
_BODY_TIME: Final = 60.0

# Maximum bytes of the bodies of one client's concurrent requests: sixteen of the largest.
_BYTES_OF_ONE: Final = 64 << 20

# Maximum commas and opening brackets of a body. Each value has one, and takes up to 4 µs to parse
# and validate; the arguments of a tool have a few dozen.
_SIGNS: Final = 10_000


class BodyRefused(Exception):
    """The body of a request was refused; the message is for the client."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Bodies:
    """The bodies of all concurrent requests. An owner is a token, or all clients without one."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()
        # The oldest first.
        self._incomplete: dict[_Body, None] = {}

    @contextmanager
    def reading(
        self, owner: str, receive: Receive, length: str | None, completed: Callable[[], None]
    ) -> Iterator[Receive]:
        """
        Yield a function that receives the body of a request, which is counted during the block.

        It raises `BodyRefused` if the body is too slow, too large or too complex, or exceeds the
        limit of its owner.

        Args:
            owner: The token.
            receive: Receives the next part of the body.
            length: The size stated by the client.
            completed: Called when the whole body has arrived.

        Raises:
            BodyRefused: The stated size is too large.
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
        Count a part of a body. Above the limit, the oldest incomplete body makes room.

        Raises:
            BodyRefused: This owner has no other incomplete body.
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
    text = f"this client has concurrent requests of more than {_BYTES_OF_ONE >> 20} MiB"
    return BodyRefused(HTTPStatus.TOO_MANY_REQUESTS, text)


def _too_large() -> BodyRefused:
    text = f"the request has more than {LARGEST >> 20} MiB"
    return BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)


class _Body:
    """The body of a request, as far as received."""

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
        # True if the last part ended in a string, or in the middle of an escape.
        self._in_string = self._escaped = False

    def give_up(self) -> None:
        """Stop reading it, to make room for another one."""
        self._made_room = True
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def receive(self) -> Message:
        """
        Receive a part of the body, or later the end of the connection.

        Raises:
            BodyRefused: The body was refused.
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
            # The SDK would log a traceback for each client that disconnects here.
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
        # JSON contains none, except in UTF-16 or UTF-32, which some parsers accept.
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
