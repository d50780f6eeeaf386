"""
Bounds on the bodies of requests: their time, their bytes and their JSON values.

The SDK keeps a body as a whole, and parses it at once on the event loop. So one client could
otherwise fill the memory of all clients, or hold up all of them for seconds.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from starlette.types import Message, Receive

__all__ = ["Bodies", "BodyRefused"]

# Seconds that a client has to send the body of a request.
_BODY_TIME: Final = 60.0

# Bytes of the bodies of one client's requests under way: four of the largest.
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

    @contextmanager
    def reading(self, owner: str, receive: Receive) -> Iterator[Receive]:
        """
        Yield a function that receives the body of a request, which counts until the block ends.

        It raises `BodyRefused` if the body is too slow, too complex, or too much for its owner.
        """
        body = _Body(self._bytes, owner, receive)
        try:
            yield body.receive
        finally:
            self._bytes[owner] -= body.size
            if not self._bytes[owner]:
                del self._bytes[owner]


class _Body:
    """The body of one request, as far as it has come."""

    def __init__(self, taken: Counter[str], owner: str, receive: Receive) -> None:
        self.size = 0
        self._taken = taken
        self._owner = owner
        self._receive = receive
        self._deadline = asyncio.get_running_loop().time() + _BODY_TIME
        self._complete = False
        self._signs = 0
        # The last part ended in a string, and in the middle of an escape.
        self._in_string = self._escaped = False

    async def receive(self) -> Message:
        """Receive a part of the body, or later the end of the connection."""
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            text = f"the request took longer than {_BODY_TIME:g} s"
            raise BodyRefused(HTTPStatus.REQUEST_TIMEOUT, text) from None
        if message["type"] != "http.request":
            # The SDK would log a traceback for each client that leaves here.
            raise BodyRefused(HTTPStatus.BAD_REQUEST, "the request ended early")
        self._complete = not message.get("more_body", False)
        self._take(message.get("body", b""))
        return message

    def _take(self, part: bytes) -> None:
        self.size += len(part)
        self._taken[self._owner] += len(part)
        if self._taken[self._owner] > _BYTES_OF_ONE:
            text = f"this client has requests of more than {_BYTES_OF_ONE >> 20} MiB under way"
            raise BodyRefused(HTTPStatus.TOO_MANY_REQUESTS, text)
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
