"""
WebSocket listeners of a server: HTTP requests in, connections out [http.*].

picows itself only answers `GET`. So a listener reads the head of a request itself, answers it, or
passes a valid upgrade on to picows.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from holdfast.base.late_import import late_module
from holdfast.wire.log_event import LogEvent, clip
from holdfast.wire.transports.accepting import Newcomers, PlainListener
from holdfast.wire.transports.http_head import MAX_HEAD, BadHead, RequestHead, Response
from holdfast.wire.transports.transport import Credential, Receiver, Transport
from holdfast.wire.transports.unix import bind_unix
from holdfast.wire.transports.websocket import (
    WebSocketTransport,
    socket_address,
    websocket_protocol,
)

# Most listeners do not use TLS.
if TYPE_CHECKING:
    from ssl import SSLContext

    from holdfast.wire.transports import tls as tls_listener
else:
    # Loads OpenSSL, and most servers listen without TLS.
    tls_listener = late_module("holdfast.wire.transports.tls")

__all__ = ["PING_INTERVAL", "Gate", "Refused", "listen_websocket", "listen_websocket_unix"]

logger = logging.getLogger(__name__)

PING_INTERVAL = 30.0
"""Seconds between two pings of a server; a missing pong has no consequence."""

HEAD_TIMEOUT = 10.0
"""Seconds a client may take to send its request."""

Gate = Callable[[RequestHead], Response | Credential]
"""Decides on a request before it becomes a WebSocket: an answer, or the client's credential."""

Refused = Callable[[HTTPStatus, str, str], None]
"""Called with the status of a refused request, the address of the client, and the reason."""

# Connections that may wait to be accepted.
_BACKLOG = 1024


class _RequestReader(asyncio.Protocol):
    """Reads one HTTP request and answers it, or turns its connection into a WebSocket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        gate: Gate,
        accept: Callable[[Transport], Receiver],
        ping_interval: float,
        refused: Refused | None,
        newcomers: Newcomers,
    ) -> None:
        self._loop = loop
        self._newcomers = newcomers
        self._ping_interval = ping_interval
        self._gate = gate
        self._accept = accept
        self._refused = refused
        self._data = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_later(HEAD_TIMEOUT, self._transport.abort)
        # Counted even while an answer is sent and TLS ends, since a client may not cooperate.
        self._newcomers.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._newcomers.discard(self._transport)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._timer is None:
            # The head has been answered; the rest is not needed.
            return
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end and len(self._data) <= MAX_HEAD:
            return
        self._timer.cancel()
        self._timer = None
        try:
            if len(head) > MAX_HEAD:
                raise BadHead
            request = RequestHead.parse(head)
        except BadHead:
            self._answer(Response(HTTPStatus.BAD_REQUEST), head_only=False)
            return
        decided = self._gate(request)
        if isinstance(decided, Response):
            self._answer(decided, head_only=request.method == "HEAD")
        else:
            self._upgrade(request, rest, decided)

    def _answer(self, response: Response, *, head_only: bool) -> None:
        if response.status >= HTTPStatus.BAD_REQUEST:
            status = response.status
            address = socket_address(self._transport.get_extra_info("peername"))
            reason = clip(response.body.decode(errors="replace")) or status.phrase
            skipped = self._newcomers.refused.skipped()
            if skipped is not None:
                logger.info(
                    LogEvent(
                        "connection refused",
                        status=status.value,
                        address=address,
                        reason=reason,
                        skipped=skipped or None,
                    )
                )
            if self._refused is not None:
                self._refused(status, address, reason)
        self._transport.write(response.encode(head_only=head_only))
        self._transport.close()

    def _upgrade(self, request: RequestHead, rest: bytes, credential: Credential) -> None:
        self._newcomers.discard(self._transport)
        listener = WebSocketTransport(
            self._loop, self._ping_interval, self._accept, is_client=False
        )
        listener.credential = credential
        protocol = websocket_protocol(lambda _: listener, self._ping_interval)
        self._transport.set_protocol(protocol)
        sock = self._transport.get_extra_info("socket")
        protocol.connection_made(
            _UnixAsTcp(self._transport) if sock.family == socket.AF_UNIX else self._transport
        )
        # The head is checked; picows gets it in the only spelling it knows.
        key = request.get("sec-websocket-key") or ""
        data = (
            "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
        ).encode() + rest
        while data:
            buffer = protocol.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]


async def listen_websocket(
    host: str,
    port: int,
    *,
    gate: Gate,
    accept: Callable[[Transport], Receiver],
    ping_interval: float | None = None,
    tls: "SSLContext | None" = None,
    listening: socket.socket | None = None,
    refused: Refused | None = None,
) -> PlainListener:
    """
    Listen for connections.

    Args:
        host: An address of this machine.
        port: 0 for any free port.
                gate: Called with every request; it calls `upgrade_fault` where that is due.
                accept: Called with each connection; returns the receiver of its messages.
        ping_interval: Seconds between two pings, `PING_INTERVAL` unless given. A client need
            not answer; one whose machine acknowledges nothing for two intervals is lost.
        tls: Makes it `wss`. A handshake may take as long as a request.
        listening: A socket that is already bound, instead of host and port.
        refused: Called for each request that is refused.

    Raises:
        OSError: The address is not available.
    """
    loop = asyncio.get_running_loop()
    interval = PING_INTERVAL if ping_interval is None else ping_interval
    # Given an address, uvloop would start threads to look it up.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = listening is not None
    listening = listening or socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if not bound:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))

        newcomers = Newcomers()

        def make_reader() -> _RequestReader:
            return _RequestReader(loop, gate, accept, interval, refused, newcomers)

        listening.listen(_BACKLOG)
        if tls is None:
            return PlainListener(listening, make_reader, newcomers)
        return tls_listener.TlsListener(
            listening, tls, make_reader, newcomers, timeout=HEAD_TIMEOUT
        )
    except BaseException:
        listening.close()
        raise


async def listen_websocket_unix(
    path: str,
    *,
    gate: Gate,
    accept: Callable[[Transport], Receiver],
    listening: socket.socket | None = None,
) -> PlainListener:
    """
    Listen on a unix socket of mode 0600; see `listen_websocket`.

    Raises:
        OSError: The address is not available.
    """
    loop = asyncio.get_running_loop()
    listening = bind_unix(path) if listening is None else listening
    listening.listen(_BACKLOG)
    newcomers = Newcomers()
    return PlainListener(
        listening,
        lambda: _RequestReader(loop, gate, accept, PING_INTERVAL, None, newcomers),
        newcomers,
    )


class _UnixAsTcp:
    """A unix socket for picows, which sets and reads TCP options on every socket."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def get_extra_info(self, name: str, default: object = None) -> object:
        found = self._transport.get_extra_info(name, default)
        return _UnixSocket(found) if name == "socket" else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _UnixSocket:
    """Passes everything on except TCP options, which unix sockets do not have."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def setsockopt(self, level: int, name: int, value: int) -> None:
        if level != socket.IPPROTO_TCP:
            self._sock.setsockopt(level, name, value)

    def getsockopt(self, level: int, name: int, *size: int) -> int | bytes:
        if level == socket.IPPROTO_TCP and not size:
            return 0
        return self._sock.getsockopt(level, name, *size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)
