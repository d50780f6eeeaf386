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

# First inherited descriptor (`SD_LISTEN_FDS_START`).
_FIRST = 3

# Maximum sockets of a server. A larger number is probably a mistake in the unit.
_MOST = 16


def inherited_sockets() -> list[ListenUrl]:
    """
    Return the sockets of `LISTEN_FDS` as addresses, if they are for this process.

    Removes the variables, and prevents processes started later from inheriting the sockets.

    Raises:
        BadListenUrl: `LISTEN_FDS` is not a valid number, or a descriptor is not a listening
            stream socket.
    """
    # The process that systemd started: this one, or its guardian.
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
            f"descriptor {descriptor} of LISTEN_FDS is not a socket: {system_text(error)}",
            errno=error.errno,
        ) from error
    try:
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if sock.type != socket.SOCK_STREAM or not listens:
            raise BadListenUrl(f"descriptor {descriptor} of LISTEN_FDS is not a listening socket")
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
        # The listener opens it again by number, so it must stay open.
        sock.detach()


def lets_everybody_in(address: ListenUrl) -> bool:
    """
    Return True for an inherited unix socket that any local user can connect to.

    systemd creates such sockets unless the unit has `SocketMode=0600`.
    """
    if address.descriptor is None or address.kind != "unix":
        return False
    try:
        return bool(os.stat(address.path).st_mode & stat.S_IWOTH)
    except OSError:
        # An abstract socket has no file, and so no mode to protect it.
        return True


def send_signs_of_life(loop: asyncio.AbstractEventLoop) -> None:
    """Send watchdog messages while the event loop runs, if the service manager expects them."""
    manager = service_manager()
    if manager is None or manager.watchdog is None:
        return
    # Half of the limit, as sd_watchdog_enabled(3) recommends.
    interval = manager.watchdog / 2

    def send() -> None:
        notify_service_manager(WATCHDOG)
        loop.call_later(interval, send)

    send()
