"""
WebSocket connections by picows [ws.*].

picows handles frames; fragmented messages, the limit of a message and slow readers are handled
here.
"""

import asyncio
import io
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
)
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in its stub

from holdfast.base.dialect import limits
from holdfast.wire.transports.liveness import HangUpMonitor, HeartbeatMonitor, keep_alive
from holdfast.wire.transports.transport import (
    HIGH_WATER,
    LOCAL,
    LOW_WATER,
    MAX_MESSAGE,
    Receiver,
    Transport,
)

__all__ = [
    "MAX_FRAME",
    "WebSocketTransport",
    "socket_address",
    "websocket_protocol",
]

logger = logging.getLogger(__name__)


class _FromPicows(logging.Handler):
    """
    Passes on picows' log messages.

    picows logs it as an error when a peer breaks the rules of WebSocket. That ends the connection
    and is not a fault of ours; an exception in a callback is, and has a traceback. What picows logs
    as information, such as connections, the server logs itself.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= logging.INFO:
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        elif record.exc_info is None:
            record.levelno, record.levelname = logging.INFO, "INFO"
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


# Not a filter: picows creates a child of this logger for each connection.
_picows_logger = logging.getLogger(f"{__name__}.picows")
_picows_logger.addHandler(_FromPicows())
_picows_logger.propagate = False

MAX_FRAME = limits.MESSAGE_FRAME
"""Largest frame in bytes; a larger one ends the connection."""

_READ_BUFFER = 64 << 10

# Largest message, in bytes, that picows copies when it sends for a server.
_COPIED = 8192

# Heads of text frames with less than 126 bytes: most answers have one.
_SHORT_HEADS = [bytes((0x81, size)) for size in range(126)]

# Messages of at most `_COPIED` bytes that are kept back to be sent together: 2 MiB in all.
_MAX_CORKED = 256


class WebSocketTransport(WSListener):
    """One WebSocket connection, of either side."""

    kind = "websocket"
    went_silent = False
    was_closed = False
    credential = LOCAL
    text_only = False

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ping_interval: float,
        accept: Callable[[Transport], Receiver],
        *,
        is_client: bool,
    ) -> None:
        """
        Args:
            loop: The event loop of the connection.
            ping_interval: Seconds between two pings.
            accept: Returns the receiver of the messages. A client's is called at once, so that the
                receiver is notified of a failed handshake; a server's is called with the open
                connection.
            is_client: True for the end that connects.
        """
        self._loop = loop
        self._ping_interval = ping_interval
        self._accept = accept
        self._is_client = is_client
        self._receiver: Receiver
        self._ws: WSTransport
        # A fragmented message, until its last fragment arrives.
        self._fragments: io.BytesIO | None = None
        # Small messages of a server that are sent together. It is a list, empty or not, while
        # frames are received and while a call of `_uncork` is scheduled.
        self._corked: list[bytes] | None = None
        # True while a server handles a frame that arrived alone, until it sends something.
        self._lone_frame = False
        self._quick_ack: socket.socket | None = None
        self._heartbeats = HeartbeatMonitor(loop, send_heartbeat=self._ping, end=self._give_up)
        # Only while receiving is paused.
        self._hang_up: HangUpMonitor | None = None
        # The reason for its end, as far as known.
        self._reason = "connection closed"
        self._open = False
        self._closed = asyncio.Event()
        self._lost = False
        # Aborted from this side: later messages of the other side are dropped.
        self._aborted = False
        self.label = "exec-server websocket"
        if is_client:
            self._receiver = accept(self)

    @property
    def was_opened(self) -> bool:
        """True once the handshake has succeeded."""
        return self._open

    def acknowledge_at_once(self) -> None:
        """Make the kernel acknowledge each batch of frames without delay; for TCP only."""
        self._quick_ack = self._ws.underlying_transport.get_extra_info("socket")

    # -- Transport

    def send(self, message: bytes, *, alone: bool = False) -> None:
        corked = self._corked
        if corked is not None and len(message) <= _COPIED:
            corked.append(message)
            if len(corked) > _MAX_CORKED:
                self._uncork()
        elif self._is_client:
            self._send_now(message)
        elif len(message) > _COPIED:
            self._write_frame(len(message), (message,))
        elif self._lone_frame:
            # The answer, and nearly always the only message.
            self._lone_frame = False
            self._corked = []
            self._send_now(message)
        elif alone:
            self._send_now(message)
        else:
            # There are often several: the last output of a process and its exit, the exits of many,
            # the answers to a batch. A system call for each would cost more than all the rest.
            self._corked = [message]
            self._loop.call_soon(self._uncork)

    def send_parts(self, parts: Sequence[bytes], *, alone: bool = False) -> None:
        size = sum(map(len, parts))
        if size <= _COPIED or self._is_client:
            self.send(b"".join(parts), alone=alone)
        else:
            self._write_frame(size, parts)

    def pause_receiving(self) -> None:
        underlying = self._ws.underlying_transport
        if underlying.is_closing():
            return
        underlying.pause_reading()
        self._heartbeats.pause()
        if self._hang_up is None:
            self._hang_up = HangUpMonitor(
                self._loop,
                underlying.get_extra_info("socket").fileno(),
                reset=self._reset,
                ended=self._ended_unread,
                left=None if self._is_client else self._leave,
            )

    def resume_receiving(self) -> None:
        self._stop_hang_up()
        underlying = self._ws.underlying_transport
        if not underlying.is_closing():
            self._heartbeats.resume()
            underlying.resume_reading()

    def expect_heartbeats(self, interval: float) -> None:
        if not self._lost:
            self._heartbeats.start(interval, judge_silence=True, mutual=True)

    def excuse_silence(self, excused: Callable[[], bool]) -> None:
        self._heartbeats.excuse(excused)

    def close(self) -> None:
        self._uncork()
        # Reading has stopped, so silence means nothing; a lost route is still noticed.
        self._heartbeats.pause()
        self._stop_hang_up()
        if self._is_client and not self._lost and not self._ws.underlying_transport.is_closing():
            # It shows a server that the client left, and did not just lose its connection.
            self._ws.send_close(WSCloseCode.OK)
        self._ws.disconnect()

    def abort(self) -> None:
        self._aborted = True
        self._stop_hang_up()
        self._ws.disconnect(False)

    async def wait_closed(self) -> None:
        await self._closed.wait()

    # -- picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport
        self._open = True
        underlying = transport.underlying_transport
        underlying.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        peer = underlying.get_extra_info("peername")
        if peer:
            self.label = f"exec-server websocket {socket_address(peer)}"
        sock = underlying.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            keep_alive(sock, self._ping_interval)
        # A client may be silent for minutes: only its machine has to be there.
        self._heartbeats.start(self._ping_interval, judge_silence=self._is_client, sock=sock)
        if not self._is_client:
            self._receiver = self._accept(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if self._aborted:
            return
        if self._corked is None and not self._is_client:
            if frame.last_in_buffer:
                self._lone_frame = True
            else:
                self._corked = []
        try:
            whole = frame.fin and frame.msg_type is WSMsgType.TEXT and self._fragments is None
            if whole and frame.payload_size <= MAX_FRAME:
                # Nearly every frame; all others take the longer path.
                self._receiver.received(frame.get_payload_as_bytes())
            else:
                self._frame(transport, frame)
        finally:
            if frame.last_in_buffer:
                self._lone_frame = False
                if self._corked is not None:
                    self._uncork()
                if self._quick_ack is not None:
                    # Not a lasting option: the kernel resets it. It makes a server that waits for
                    # acknowledgements answer many times faster.
                    self._quick_ack.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._is_client:
            self._loop.call_soon(_retrieve_end, transport)
        self._closed.set()
        self._lost = True
        self._heartbeats.stop()
        self._stop_hang_up()
        self._receiver.lost(self._reason)

    def pause_writing(self) -> None:
        self._receiver.pause_sending()

    def resume_writing(self) -> None:
        self._receiver.resume_sending()

    # -- internals

    def _frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind is WSMsgType.TEXT or kind is WSMsgType.BINARY:
            if self._fragments is not None:
                self._violated("a new message inside a fragmented one")
            elif frame.payload_size > MAX_FRAME:
                # picows has noticed it, too, but takes a moment to end the connection.
                self._violated(f"a frame of more than {MAX_FRAME} bytes")
            elif frame.fin:
                self._receiver.received(frame.get_payload_as_bytes())
            else:
                # Copied once, into the buffer that becomes the message.
                self._fragments = io.BytesIO()
                self._fragments.write(frame.get_payload_as_memoryview())
        elif kind is WSMsgType.CONTINUATION:
            if self._fragments is None:
                self._violated("a continuation of nothing")
                return
            if self._fragments.tell() + frame.payload_size > MAX_MESSAGE:
                self._violated(f"a message of more than {MAX_MESSAGE} bytes")
                return
            self._fragments.write(frame.get_payload_as_memoryview())
            if frame.fin:
                message = self._fragments.getvalue()
                self._fragments = None
                self._receiver.received(message)
        elif kind is WSMsgType.PING:
            # Answered here, since picows would not report that this frame was the last one of a
            # batch.
            transport.send_pong(frame.get_payload_as_bytes())
        elif kind is WSMsgType.CLOSE:
            self.was_closed = True
            self._uncork()
            transport.send_close(frame.get_close_code(), frame.get_close_message())
            transport.disconnect()

    def _violated(self, what: str) -> None:
        logger.info("%s sent %s", self.label, what)
        self.abort()

    def _send_now(self, message: bytes) -> None:
        # asyncio logs writes after an end that it has not reported yet.
        if not self._ws.underlying_transport.is_closing():
            self._ws.send(WSMsgType.TEXT, message)

    def _write_frame(self, size: int, parts: Sequence[bytes]) -> None:
        """Send a large message of a server at once, so that a sender of too much is notified."""
        self._uncork()
        # Dropped after `close`, as small messages are: the peer must not get only some of the last
        # ones. asyncio would also keep watching the socket, whose number the next one gets.
        if not self._lost and not self._ws.underlying_transport.is_closing():
            # picows would pass the transport a view of a buffer that it reuses at once; uvloop
            # keeps the view until the socket accepts it.
            self._ws.underlying_transport.writelines((_frame_head(size), *parts))

    def _uncork(self) -> None:
        corked, self._corked = self._corked, None
        # The loop may have ended the connection without having reported it yet.
        if not corked or self._lost or self._ws.underlying_transport.is_closing():
            return
        if len(corked) == 1:
            self._send_now(corked[0])
        else:
            # A server's frames are not masked, so building their heads here is easy.
            self._ws.underlying_transport.write(
                b"".join([_frame_head(len(message)) + message for message in corked])
            )

    def _ping(self) -> None:
        underlying = self._ws.underlying_transport
        # While data waits to be sent, that will serve as a heartbeat.
        if not underlying.is_closing() and not underlying.get_write_buffer_size():
            self._ws.send_ping(b"")

    def _reset(self) -> None:
        self._give_up("connection reset")

    def _ended_unread(self, unread: bool) -> None:
        if unread or self._ws.is_secure:
            # Writing now would break the connection and lose the unread data: TLS has taken
            # undelivered data from the socket.
            self._heartbeats.stop_sending()
        else:
            # Nothing but the end is left to read.
            self.resume_receiving()

    def _give_up(self, reason: str) -> None:
        self.went_silent = True
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        self._reason = reason
        self.abort()

    def _stop_hang_up(self) -> None:
        if self._hang_up is not None:
            self._hang_up.stop()
            self._hang_up = None


def websocket_protocol(
    make_listener: Callable[..., WSListener],
    ping_interval: float,
    *,
    host: str | None = None,
    resource: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> WSProtocol:
    """
    Return picows' protocol for one connection.

    Args:
        make_listener: Returns the transport; on a server, picows passes it the request.
        ping_interval: Seconds; picows itself sends no pings.
        host: The server to connect to; None on a server.
        resource: The path of the request.
        headers: Sent with the request.
    """
    return WSProtocol(
        host,
        resource,
        # True for the client's end.
        host is not None,
        make_listener,
        _picows_logger,
        # An exception in a callback ends the connection.
        True,
        # No limit for the handshake: callers have their own. uvloop does not report the end of a
        # connection whose caller is cancelled, so the timer would keep running and set an exception
        # that is never retrieved.
        None,
        # `HeartbeatMonitor` sends pings, and on a server expects no answer.
        False,
        ping_interval,
        ping_interval,
        WSAutoPingStrategy.PING_PERIODICALLY,
        # Pings of the peer are answered in `_frame`.
        False,
        MAX_FRAME,
        None if headers is None else dict(headers),
        _READ_BUFFER,
    )


def _retrieve_end(ended: WSTransport) -> None:
    """Retrieve the error that picows stores for a client, which asyncio would otherwise log."""
    waiting = ended.wait_disconnected()
    # For an ended connection it does not wait; StopIteration is an exception, too.
    with suppress(Exception):
        waiting.send(None)
    waiting.close()


def _frame_head(size: int) -> bytes:
    """Return the head of a complete text frame from a server (RFC 6455, 5.2)."""
    if size < 126:
        return _SHORT_HEADS[size]
    if size < 1 << 16:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")


def socket_address(peer: Any) -> str:
    """Return the other end of a socket as `IP:PORT`; a unix socket has no name there."""
    if not peer:
        return "unix"
    host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
    return f"{host}:{peer[1]}"
