"""
One connection to a server, and one exchange after another on it.

From the socket to the parser to the reader's buffer without a task or a queue
between. A reader that falls behind stops the reading of the socket, so what an
endless body can fill is one buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from holdfast.http.outgoing import Headers

__all__ = ["Exchange", "ExchangeFailed", "HttpConnection"]

# Bytes of a body nobody has read yet at which no more is taken from the socket.
HIGH_WATER = 256 << 10

# Bytes of headers, of trailers, or between two pieces of a body; more is an attack.
MAX_HEAD = 256 << 10


class ExchangeFailed(Exception):
    """The connection broke, or what came is no HTTP."""


class Exchange:
    """A request that was sent, and the response as far as it has come."""

    __slots__ = (
        "_bodiless",
        "_buffered",
        "_chunks",
        "_connection",
        "_failure",
        "_has_head",
        "_idle_bytes",
        "_parser",
        "_until_end",
        "_waiter",
        "complete",
        "headers",
        "reusable",
        "status",
        "untouched",
    )

    def __init__(self, connection: HttpConnection, *, bodiless: bool, last: bool) -> None:
        """
        Args:
            connection: Where it happens.
            bodiless: Whatever the headers of the response say, no body follows them.
            last: Nothing may follow on the connection.
        """
        self.status = 0
        self.headers: Headers = {}
        self.untouched = True
        """Whether not one byte has come."""
        self.complete = False
        """Whether all of the response is here."""
        self.reusable = not last
        self._connection = connection
        self._bodiless = bodiless
        self._until_end = False
        self._has_head = False
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._idle_bytes = 0
        self._failure: ExchangeFailed | None = None
        self._waiter: asyncio.Future[None] | None = None
        # It knows this object in turn: let go of at the end, it costs no garbage collection.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        # As lenient as the real server. `content-length` beside `transfer-encoding`
        # is how requests are smuggled past proxies, so it costs the connection.
        self._parser.set_dangerous_leniencies(
            lenient_chunked_length=True, lenient_optional_cr_before_lf=True
        )

    # -- for the reader

    async def head(self) -> None:
        """
        Wait for the status and the headers.

        Raises:
            ExchangeFailed: They will not come.
        """
        while not self._has_head:
            await self._news()

    async def read(self) -> bytes:
        """
        The next piece of the body, as large as has come; empty at the end.

        Raises:
            ExchangeFailed: The rest will not come.
        """
        while not self._chunks:
            if self.complete:
                return b""
            await self._news()
        chunks, self._chunks = self._chunks, []
        self._buffered = 0
        if not self.complete:  # else the connection may be another's by now
            self._connection.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        """Read no more. A connection with something left on it is of no use to others."""
        self._fail("closed")

    async def _news(self) -> None:
        if self._failure is not None:
            raise self._failure
        assert self._waiter is None  # one reader
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- for the connection

    def received(self, data: bytes) -> None:
        if self._parser is None:
            return  # it has failed, and the connection is about to end
        self.untouched = False
        self._idle_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.reusable = False
        except httptools.HttpParserError as error:
            self._fail(str(error))
            return
        if self.complete:
            self._parser = None
            self._connection.done(self)
        elif self._idle_bytes > MAX_HEAD:
            self._fail("too many bytes without a body")
            return
        elif self._buffered > HIGH_WATER:
            self._connection.pause_reading()
        self._wake()

    def ended(self, error: Exception | None) -> None:
        """The connection is gone, in good order or by an error."""
        if self._until_end and error is None and not self.complete:
            self.complete = True
            self._wake()
        else:
            self._fail(str(error) if error else "connection closed before message completed")

    def _fail(self, why: str) -> None:
        self.reusable = False
        if self.complete:
            self._connection.done(self)
        elif self._failure is None:
            self._failure = ExchangeFailed(why)
            self._parser = None
            self._connection.abort()
        self._wake()

    # -- for the parser

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False  # nobody asked for another one
        else:
            self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else a trailer
            self.headers.setdefault(name.decode("ascii").lower(), []).append(value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        if self.complete or self._parser is None:
            return
        status = self._parser.get_status_code()
        if self._parser.get_http_version() not in ("1.0", "1.1") or status < 100:
            self._fail("not HTTP/1")
            return
        if status < 200 and status != 101:
            return  # an interim one: the response follows
        self.status = status
        self._has_head = True
        keep = self._parser.should_keep_alive()
        chunked = "transfer-encoding" in self.headers
        if not keep or status == 101 or (chunked and "content-length" in self.headers):
            self.reusable = False
        if status == 101 or self._bodiless:
            self.complete = True
        # The parser keeps no connection alive whose end is the end of the body.
        self._until_end = not keep and (chunked or "content-length" not in self.headers)

    def on_body(self, data: bytes) -> None:
        if self.complete:
            self.reusable = False
            return
        self._idle_bytes = 0
        self._chunks.append(data)
        self._buffered += len(data)

    def on_message_complete(self) -> None:
        if self._has_head:
            self.complete = True


class HttpConnection(asyncio.Protocol):
    """A connection that is open, for one exchange at a time."""

    def __init__(self) -> None:
        self.usable = False
        """Whether another exchange can begin."""
        self.released: Callable[[HttpConnection], None] | None = None
        """Told when an exchange is over and when the connection is, which `usable` tells apart."""
        self._transport: asyncio.Transport
        self._exchange: Exchange | None = None
        self._paused = False

    def send(self, request: bytes, *, bodiless: bool, last: bool) -> Exchange:
        """Begin an exchange."""
        assert self.usable  # the caller has looked
        self.usable = False
        self._exchange = Exchange(self, bodiless=bodiless, last=last)
        self._transport.write(request)
        return self._exchange

    def abort(self) -> None:
        """End it at once."""
        self.usable = False
        self._transport.abort()

    # -- for the exchange

    def done(self, exchange: Exchange) -> None:
        """A response is complete: the next exchange may begin, if this one was in order."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        self.resume_reading()
        # A server that answers before it has read the request reads the rest as another.
        if exchange.reusable and self._transport.get_write_buffer_size() == 0:
            self.usable = not self._transport.is_closing()
        if not self.usable:
            self._transport.abort()
        self._release()

    def pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _release(self) -> None:
        if self.released is not None:
            self.released(self)

    # -- for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:
            self.abort()  # nothing was asked: it says farewell, or talks out of turn
        else:
            self._exchange.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.ended(exc)
        self._release()
