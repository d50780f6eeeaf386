"""Integration with systemd: socket activation and watchdog messages."""

import asyncio
import os
import socket
import stat

from holdfast.base.system_text import system_text
from holdfast.engine.supervision.guardian import (
    guardian_pid,
    notify_service_manager,
    service_manager,
)
from holdfast.engine.supervision.service_manager import WATCHDOG
from holdfast.server.listen import BadListenUrl, ListenUrl

__all__ = ["inherited_sockets", "lets_everybody_in", "send_signs_of_life"]

# Number of the first inherited descriptor (`SD_LISTEN_FDS_START`).
_FIRST = 3

# Sockets of one server. A larger number is most likely a mistake in the unit.
_MOST = 16


def inherited_sockets() -> list[ListenUrl]:
    """
    Return the sockets of `LISTEN_FDS` as addresses; none unless they are meant for this process.

    Removes the variables, and makes sure that no process started later inherits the sockets.

    Raises:
        BadListenUrl: `LISTEN_FDS` is not a valid number, or a descriptor is not a listening
            stream socket.
    """
    # systemd names the process that it started: this one, or its guardian.
    owner = os.environ.get("LISTEN_PID")
    if owner is None or owner not in (str(os.getpid()), str(guardian_pid())):
        return []
    text = os.environ.pop("LISTEN_FDS", "0")
    for name in ("LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID"):
        os.environ.pop(name, None)
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else -1
    if not 0 <= count <= _MOST:
        raise BadListenUrl(f"LISTEN_FDS is `{text}`; expected a number from 0 to {_MOST}")
    return [_address(descriptor) for descriptor in range(_FIRST, _FIRST + count)]


def _address(descriptor: int) -> ListenUrl:
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise BadListenUrl(
            f"descriptor {descriptor} of LISTEN_FDS is no socket: {system_text(error)}",
            errno=error.errno,
        ) from error
    try:
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if sock.type != socket.SOCK_STREAM or not listens:
            raise BadListenUrl(f"descriptor {descriptor} of LISTEN_FDS is no listening socket")
        name = sock.getsockname()
        if sock.family == socket.AF_UNIX:
            path = name if isinstance(name, str) else "@" + os.fsdecode(name[1:])
            return ListenUrl("unix", path=path, descriptor=descriptor)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            host = str(name[0]).partition("%")[0]
            return ListenUrl("ws", host, int(name[1]), descriptor=descriptor)
        raise BadListenUrl(
            f"descriptor {descriptor} of LISTEN_FDS is neither a unix nor an internet socket"
        )
    finally:
        # The listener opens it again by its number, so it must stay open.
        sock.detach()


def lets_everybody_in(address: ListenUrl) -> bool:
    """
    Return True for an inherited unix socket that every local user can connect to.

    systemd makes such sockets unless a unit says `SocketMode=0600`.
    """
    if address.descriptor is None or address.kind != "unix":
        return False
    try:
        return bool(os.stat(address.path).st_mode & stat.S_IWOTH)
    except OSError:
        # An abstract socket has no file, and so no mode that could protect it.
        return True


def send_signs_of_life(loop: asyncio.AbstractEventLoop) -> None:
    """Send watchdog messages while the event loop runs, if the service manager wants them."""
    manager = service_manager()
    if manager is None or manager.watchdog is None:
        return
    # Half of the limit, as sd_watchdog_enabled(3) advises.
    interval = manager.watchdog / 2

    def send() -> None:
        notify_service_manager(WATCHDOG)
        loop.call_later(interval, send)

    send()
