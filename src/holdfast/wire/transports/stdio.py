"""Messages on the standard streams of this process, or of a command that is a server."""

import asyncio
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress

from holdfast.wire.transports.line_transport import LineTransport, WriteSide
from holdfast.wire.transports.transport import Receiver, Transport

__all__ = ["connect_pipes", "serve_descriptors", "serve_stdio"]

# Bytes; the default maximum of Linux for ordinary users.
_PIPE_SIZE = 1 << 20


async def serve_stdio(accept: Callable[[Transport], Receiver]) -> Transport:
    """
    Serve one connection on standard input and output.

    Both are taken over: descriptors 0 and 1 become `/dev/null`, so that no other code can read or
    print there by mistake.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return await serve_descriptors(incoming, outgoing, accept)


async def serve_descriptors(
    incoming: int, outgoing: int, accept: Callable[[Transport], Receiver]
) -> Transport:
    """Serve one connection on two descriptors of any kind, which it then owns."""
    if not _is_pipe(incoming):
        reader, writer = os.pipe()
        _copy_in_thread(incoming, writer)
        incoming = reader
    if not _is_pipe(outgoing):
        reader, writer = os.pipe()
        _copy_in_thread(reader, outgoing)
        outgoing = writer
    return await connect_pipes(incoming, outgoing, accept)


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _copy_in_thread(source: int, target: int) -> None:
    """Copy a file or a terminal, which an event loop cannot wait for."""

    def copy() -> None:
        with suppress(OSError):
            while data := os.read(source, 1 << 16):
                while data:
                    data = data[os.write(target, data) :]
        os.close(source)
        os.close(target)

    # A copy of a terminal's input may wait for ever; it must not delay the exit.
    threading.Thread(target=copy, name="stdio", daemon=os.isatty(source)).start()


def _enlarge(pipe: int) -> None:
    """Enlarge a pipe, so that a stream wakes its reader less often."""
    # Fails if it is not a pipe, or if the user's quota of pipe memory is used up.
    with suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


async def connect_pipes(
    incoming: int, outgoing: int, accept: Callable[[Transport], Receiver]
) -> LineTransport:
    """Exchange lines over two descriptors, which the transport then owns."""
    _enlarge(outgoing)
    loop = asyncio.get_running_loop()
    lines = LineTransport("stdio", accept)
    # asyncio closes the file. uvloop closes the descriptor, and the file only if the pipe did not
    # end while it was being connected: a leftover file would close the descriptor again later, when
    # its number may belong to another file.
    closefd = not type(loop).__module__.startswith("uvloop")
    writer, _ = await loop.connect_write_pipe(
        lambda: WriteSide(lines), os.fdopen(outgoing, "wb", buffering=0, closefd=closefd)
    )
    lines.write_to(writer)
    await loop.connect_read_pipe(
        lambda: lines, os.fdopen(incoming, "rb", buffering=0, closefd=closefd)
    )
    return lines
