"""
An HTTP connection, and the exchanges that follow one another on it.

Bytes go from the socket through the parser to the reader's buffer without a task or a queue. A
reader that falls behind pauses the socket, so an endless body fills one buffer at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from holdfast.engine.http.outgoing import Headers

__all__ = ["Exchange", "ExchangeFailed", "HttpConnection"]

# Unread bytes of a body at which the socket is paused.
HIGH_WATER = 256 << 10

# Bytes of headers, of trailers, or between two pieces of a body; more is an attack.
MAX_HEAD = 256 << 10


class ExchangeFailed(Exception):
    """Error for a broken connection, or a response that is not HTTP."""


class Exchange:
    """A request that was sent, and the part of its response that has arrived."""

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
            connection: The connection.
            bodiless: True if no body follows, whatever the headers say.
            last: True if nothing may follow on the connection.
        """
        self.status = 0
        self.headers: Headers = {}
        self.untouched = True
        """True until the first byte of the response."""
        self.complete = False
        """True once the response has arrived completely."""
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
        # The parser refers to this object; dropping it at the end avoids a reference cycle.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        # Lenient, since clients are used to it. `content-length` together with `transfer-encoding`
        # is accepted, but the connection is not reused: that is how requests are smuggled past
        # proxies.
        self._parser.set_dangerous_leniencies(
            lenient_chunked_length=True, lenient_optional_cr_before_lf=True
        )

    # -- for the reader

    async def head(self) -> None:
        """
        Wait for the status and the headers; close the exchange if the wait fails.

        Raises:
            ExchangeFailed: They will not arrive.
        """
        try:
            while not self._has_head:
                await self._news()
        except BaseException:
            self.close()
            raise

    async def read(self) -> bytes:
        """
        Return the next piece of the body, as large as has arrived; empty at the end.

        Raises:
            ExchangeFailed: The rest will not arrive.
        """
        while not self._chunks:
            if self.complete:
                return b""
            await self._news()
        chunks, self._chunks = self._chunks, []
        self._buffered = 0
        # After the end the connection may already serve another exchange.
        if not self.complete:
            self._connection.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        """Stop reading; a connection with unread data is closed."""
        self._fail("closed")

    async def _news(self) -> None:
        if self._failure is not None:
            raise self._failure
        # There is only one reader.
        assert self._waiter is None
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
            # The exchange has failed, and the connection is about to be closed.
            return
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
        """Handle the end of the connection, regular or by an error."""
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
            # A second response, to no request.
            self.reusable = False
        else:
            self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        # A header after the body is a trailer and is ignored.
        if not self._has_head:
            self.headers.setdefault(name.decode("ascii").lower(), []).append(value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        if self.complete or self._parser is None:
            return
        status = self._parser.get_status_code()
        if self._parser.get_http_version() not in ("1.0", "1.1") or status < 100:
            self._fail("not HTTP/1")
            return
        if status < 200 and status != 101:
            # An interim response (1xx): the final one follows.
            return
        self.status = status
        self._has_head = True
        keep = self._parser.should_keep_alive()
        chunked = "transfer-encoding" in self.headers
        if not keep or status == 101 or (chunked and "content-length" in self.headers):
            self.reusable = False
        if status == 101 or self._bodiless:
            self.complete = True
        # Without keep-alive and length, the end of the connection is the end of the body.
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
    """An open connection, for one exchange at a time."""

    def __init__(self) -> None:
        self.usable = False
        """True if an exchange can begin."""
        self.released: Callable[[HttpConnection], None] | None = None
        """
        Called after each exchange and at the end of the connection; `usable` distinguishes them.
        """
        self._transport: asyncio.Transport
        self._exchange: Exchange | None = None
        self._paused = False

    def send(self, request: bytes, *, bodiless: bool, last: bool) -> Exchange:
        """Begin an exchange."""
        # The caller has checked it.
        assert self.usable
        self.usable = False
        self._exchange = Exchange(self, bodiless=bodiless, last=last)
        self._transport.write(request)
        return self._exchange

    def abort(self) -> None:
        """Close the connection at once."""
        self.usable = False
        self._transport.abort()

    # -- for the exchange

    def done(self, exchange: Exchange) -> None:
        """Handle the end of an exchange; the next one may begin if this one was regular."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        self.resume_reading()
        # A server that answered before it had read the request takes the rest for a new one.
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
            # Data without a request: a late error message, or a server out of step.
            self.abort()
        else:
            self._exchange.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.ended(exc)
        self._release()
