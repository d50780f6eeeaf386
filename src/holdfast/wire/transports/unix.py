"""
Messages as lines on a unix socket: an extension of Holdfast.

The mode of the file protects it: only its owner can connect.
"""

import asyncio
import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from holdfast.base.errors import ConnectFailed
from holdfast.base.system_text import system_text
from holdfast.base.tasks import was_cancelled
from holdfast.wire.transports.accepting import PlainListener
from holdfast.wire.transports.line_transport import LineTransport
from holdfast.wire.transports.private_directory import listen_privately
from holdfast.wire.transports.transport import Receiver, Transport

__all__ = ["bind_unix", "connect_unix", "listen_unix"]

# Connections that may wait to be accepted.
_BACKLOG = 1024

# Seconds for another server to create its socket file; that takes less than a millisecond.
_LOCK_LIMIT = 2.0

# Seconds between two attempts. A server only waits like this when it starts.
_LOCK_PAUSE = 0.002


async def listen_unix(
    path: str,
    accept: Callable[[Transport], Receiver],
    *,
    listening: socket.socket | None = None,
) -> PlainListener:
    """
    Listen on a socket file of mode 0600; see `bind_unix`.

    Args:
        path: The file.
        accept: Called with each connection; returns the receiver of its messages.
        listening: A socket that is already bound, instead of the file.

    Raises:
        OSError: The address is not available.
    """
    listening = bind_unix(path) if listening is None else listening
    listening.listen(_BACKLOG)
    return PlainListener(listening, lambda: LineTransport("unix", accept, leaves_unread=True))


def bind_unix(path: str) -> socket.socket:
    """
    Return a socket that listens on a file of mode 0600.

    An abandoned file is replaced; one whose server answers is not. Of several servers that start at
    once, one gets the file.

    Raises:
        OSError: The address is not available.
    """
    with _alone(os.path.dirname(path)):
        _remove_stale(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listen_privately(listening, path)
    return listening


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """
    Keep other servers from creating socket files in a directory during the block.

    Otherwise two servers could both find and remove an abandoned file. The second would remove the
    file that the first has created by then.

    Raises:
        OSError: There is no such directory.
    """
    try:
        lock = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        yield  # write-only, or else `bind` reports the fault
        return
    try:
        deadline = time.monotonic() + _LOCK_LIMIT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # In a directory like /tmp any user can hold the lock for ever. That must not keep a
                # server from starting; two servers at the same moment are the lesser evil.
                if time.monotonic() > deadline:
                    break
                time.sleep(_LOCK_PAUSE)
        yield
    finally:
        os.close(lock)


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            # Not a socket: `bind` reports that the address is in use.
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A server too busy to accept answers EAGAIN instead of blocking us.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                os.unlink(path)
        except OSError:
            # `bind` reports the error.
            return


async def connect_unix(
    path: str, accept: Callable[[Transport], Receiver], *, timeout: float = 10.0
) -> Transport:
    """
    Connect to a server on a socket file.

    Raises:
        ConnectFailed: With the reason.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, lines = await loop.create_unix_connection(
                lambda: LineTransport("unix", accept), path
            )
    except asyncio.CancelledError:
        if was_cancelled():
            raise
        raise ConnectFailed(f"failed to connect to unix socket `{path}`: it was closed") from None
    except TimeoutError:
        raise ConnectFailed(f"timed out connecting to unix socket `{path}`", path=path) from None
    except OSError as error:
        raise ConnectFailed(
            f"failed to connect to unix socket `{path}`: {system_text(error)}",
            errno=error.errno,
            path=path,
        ) from error
    return lines
