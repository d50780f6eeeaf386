"""Messages on the standard streams: of this process, or of a command that serves on its own."""

import asyncio
import os
from collections.abc import Callable

from holdfast.transports.base import Receiver, Transport
from holdfast.transports.lines import LineTransport, WriteSide

__all__ = ["connect_pipes", "serve_stdio"]


async def serve_stdio(accept: Callable[[Transport], Receiver]) -> Transport:
    """
    Serve one connection on standard input and output.

    Both are taken over: descriptors 0 and 1 become `/dev/null`, so that nothing
    else can be read or printed by mistake.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return await connect_pipes(incoming, outgoing, accept)


async def connect_pipes(
    incoming: int, outgoing: int, accept: Callable[[Transport], Receiver]
) -> LineTransport:
    """Speak lines over two descriptors, which belong to the transport from here on."""
    loop = asyncio.get_running_loop()
    lines = LineTransport("stdio", accept)
    writer, _ = await loop.connect_write_pipe(
        lambda: WriteSide(lines), os.fdopen(outgoing, "wb", buffering=0)
    )
    lines.write_to(writer)
    await loop.connect_read_pipe(lambda: lines, os.fdopen(incoming, "rb", buffering=0))
    return lines
