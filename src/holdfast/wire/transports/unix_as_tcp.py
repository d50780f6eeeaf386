"""Unix sockets for picows, which takes every socket for one of TCP."""

import asyncio
import socket
from typing import Any

__all__ = ["UnixAsTcp"]


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
