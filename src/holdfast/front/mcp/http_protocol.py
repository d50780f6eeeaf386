"""
HTTP connections with bounds where uvicorn has none.

These are slow or large heads, which clients send before they have shown a token, data after a
body, pipelined requests, and responses that the client does not read.
"""

import asyncio
from functools import partial
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.wire.transports.accepting import Newcomers
from holdfast.wire.transports.http_head import MAX_HEAD, MAX_HEADERS

__all__ = ["LET_IN", "BoundedConnection"]

LET_IN: Final = "let_in"
"""Member of a request's state that is called once its client is admitted."""

# Seconds for a head, from the connection or the first byte of a later request.
_HEAD_TIME: Final = 10.0

# Seconds within which a client has to read some of what was sent.
_READ_TIME: Final = 60.0

# Maximum pipelined requests.
_PIPELINED: Final = 8

# Maximum chunks of a body: each costs as much as some kilobytes.
_MOST_CHUNKS: Final = 4_096

# Maximum keep-alive connections without a request: a quarter of all connections.
_MOST_IDLE: Final = 1_024

# Those connections, oldest first.
_idle: "dict[BoundedConnection, None]" = {}


class BoundedConnection(HttpToolsProtocol):
    """
    The protocol of a connection, which ends it if a head is too slow or too large.

    It also ends a connection whose client does not read, or sends data outside requests. If too
    many connections have no request, the one that has waited longest is ended.
    """

    # True from the end of a head that requests an upgrade to the end of its data.
    _upgrading = False
    # Runs while the head of a request is incomplete.
    _waiting: asyncio.TimerHandle | None = None
    # Runs while the client does not read.
    _unread: asyncio.TimerHandle | None = None
    # Bytes since the head began, or since the last part of the body.
    _surplus = 0
    # Chunks of the body so far.
    _chunks = 0

    def __init__(self, newcomers: Newcomers, *uvicorn: Any) -> None:
        """
        Args:
            newcomers: Counts connections whose request was not admitted yet.
            *uvicorn: Its configuration and state.
        """
        super().__init__(*uvicorn)
        self._newcomers = newcomers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        # All bytes that the kernel does not accept count as unread.
        transport.set_write_buffer_limits(high=0)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._newcomers.discard(self.transport)
        self._stop_waiting()
        self._stop_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._surplus += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._surplus <= MAX_HEAD:
            return
        if self._waiting is None:
            # Chunk extensions or trailers, which no client needs.
            self.transport.abort()
        else:
            self._stop_waiting()
            self.send_400_response("The head of the request is too large.")

    def _parse(self, data: bytes) -> None:
        """
        Pass data to the parser, including requests for an upgrade.

        A server may ignore that header (RFC 9110, 7.8), and `curl --http2` sends it with each first
        request. But the parser treats the body as data of the other protocol.

        Raises:
            HttpParserError: It is not a valid request.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self._upgrading:
                    # The method CONNECT, which the gate refuses.
                    return
                self._upgrading = False
                data = data[upgrade.args[0] :]
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                # Like uvicorn, accept data after the last request.
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        lines = [
            b"%b %b HTTP/%b"
            % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        ]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _PIPELINED:
            # Stops the parser; uvicorn responds with 400.
            raise ValueError("too many requests wait for a response")
        super().on_message_begin()
        self.scope["state"][LET_IN] = partial(self._newcomers.discard, self.transport)
        if self._waiting is None:
            self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Unless it is a trailer, which uvicorn would add to the headers.
        if self._waiting is not None:
            if len(self.headers) >= MAX_HEADERS:
                raise ValueError("too many headers")
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._upgrading = True
            return
        self._stop_waiting()
        self._surplus = self._chunks = 0
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > _MOST_CHUNKS:
            raise ValueError("too many chunks")

    def on_body(self, body: bytes) -> None:
        self._surplus = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._upgrading:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        last = not self.pipeline
        super().on_response_complete()
        if not last or self.transport.is_closing():
            return
        if self.cycle.more_body:
            # Otherwise the rest of a refused body would keep the connection open.
            self.transport.close()
        else:
            self._note_idle()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._stop_unread()
        super().resume_writing()

    def _await_head(self) -> None:
        self._surplus = 0
        self._waiting = self.loop.call_later(_HEAD_TIME, self.transport.abort)
        _idle.pop(self, None)
        # There is no cycle before the first request.
        if getattr(self.cycle, "response_complete", True):
            self._newcomers.add(self.transport)

    def _note_idle(self) -> None:
        _idle[self] = None
        if len(_idle) > _MOST_IDLE:
            oldest = next(iter(_idle))
            oldest._stop_waiting()  # noqa: SLF001 - of this class
            oldest.transport.abort()

    def _stop_waiting(self) -> None:
        _idle.pop(self, None)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _await_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(_READ_TIME, self._check_reader, unread)

    def _check_reader(self, before: int) -> None:
        """End the connection unless its client has read some data meanwhile."""
        if self.transport.get_write_buffer_size() < before:
            self._await_reader()
        else:
            self.transport.abort()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
