"""What `websocket` needs beside frames: unix sockets for picows, and the words of failures."""

import asyncio
import socket
from typing import Any

from picows import WSHandshakeError

from holdfast.system_text import system_text

__all__ = ["UnixAsTcp", "connect_failure", "handshake_refusal"]


class UnixAsTcp:
    """A unix socket as picows wants it: that sets and reads options of TCP on every socket."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def get_extra_info(self, name: str, default: object = None) -> object:
        found = self._transport.get_extra_info(name, default)
        return _UnixSocket(found) if name == "socket" else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _UnixSocket:
    """Passes everything on but plain options of TCP, which it does not have."""

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


def connect_failure(error: Exception) -> tuple[str, int | None]:
    """Return why there is no connection, and the number of the system if it has one."""
    if not isinstance(error, OSError) or not error.errno:
        return str(error), None
    from ssl import SSLCertVerificationError, SSLError  # most connections do without it

    if isinstance(error, SSLCertVerificationError):
        return f"TLS error: certificate verify failed: {error.verify_message}", None
    if isinstance(error, SSLError):  # its numbers are those of OpenSSL
        return f"TLS error: {error.reason}", None
    # The event loop's words are its own; a name that is unknown has no number to tell.
    known = error.errno > 0 and not isinstance(error, socket.gaierror)
    reason = f"IO error: {system_text(error) if known else error.strerror}"
    return reason, error.errno if known else None


def handshake_refusal(error: WSHandshakeError) -> str:
    """Return what a server answered instead of becoming a WebSocket."""
    if error.response is None:
        return str(error)
    body = (error.raw_body or b"").decode("utf-8", "replace").strip()
    status = error.response.status
    return f"HTTP error: {int(status)}" + (f": {body}" if body else "")
