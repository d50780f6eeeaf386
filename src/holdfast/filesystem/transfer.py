"""
Whole files through open handles: in blocks, several on their way at once, in order.

One block after the other would cost a round trip each. Works on any handle, so what
copies a file need not know on which side of a wire it is.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.backends import FileHandle
from holdfast.errors import HoldfastError, OperationFailed

__all__ = ["BLOCK", "WINDOW", "read_blocks", "write_blocks"]

BLOCK = 1 << 20
"""Bytes of a block: the most that one request takes [fs.read-block]."""

WINDOW = 4
"""Blocks on their way at once."""


async def read_blocks(
    handle: FileHandle, take: Callable[[bytes], Awaitable[None]], *, start: int = 0
) -> None:
    """
    Read a file to its end.

    Args:
        handle: Open for reading.
        take: Gets the pieces in order; none is empty.
        start: Where to begin.

    Raises:
        HoldfastError: As for `read_block`.
    """
    offset = start
    window = 1  # the first block tells whether there is a second: most files are small
    reads: deque[asyncio.Task[tuple[bytes, bool] | HoldfastError]] = deque()
    try:
        async with asyncio.TaskGroup() as tasks:
            while True:
                while len(reads) < window:
                    reads.append(tasks.create_task(_read(handle, offset)))
                    offset += BLOCK
                block = await reads.popleft()
                if isinstance(block, HoldfastError):
                    raise block
                chunk, eof = block
                if chunk:
                    await take(chunk)
                if eof:
                    break
                if len(chunk) < BLOCK:
                    # [fs.read-block]: it would never end.
                    raise OperationFailed("fs/readBlock returned an empty non-terminal block")
                window = WINDOW
            for read in reads:
                read.cancel()
    except ExceptionGroup as group:
        raise _first(group) from None


async def _read(handle: FileHandle, offset: int) -> tuple[bytes, bool] | HoldfastError:
    """A block, or why there is none: told in its turn, for what comes before it is still taken."""
    try:
        return await handle.read_block(offset, BLOCK)
    except HoldfastError as error:
        return error


async def write_blocks(
    handle: FileHandle, give: Callable[[], bytes], *, gave: Callable[[int], None] | None = None
) -> None:
    """
    Write a file from its start.

    Args:
        handle: Open for replacing.
        give: The next piece, of at most `BLOCK` bytes; an empty one is the end. It is
            asked in a thread, since it may have to wait.
        gave: Told the size of each piece that has been written.

    Raises:
        HoldfastError: As for `write_block`.
        OSError: As for `give`.
    """
    offset = 0
    writes: deque[tuple[asyncio.Task[None], int]] = deque()
    try:
        async with asyncio.TaskGroup() as tasks:
            ended = False
            while writes or not ended:
                while not ended and len(writes) < WINDOW:
                    chunk = await asyncio.to_thread(give)
                    if not chunk:
                        ended = True
                        break
                    write = tasks.create_task(handle.write_block(offset, chunk))
                    writes.append((write, len(chunk)))
                    offset += len(chunk)
                if writes:
                    write, size = writes.popleft()
                    await write
                    if gave is not None:
                        gave(size)
    except ExceptionGroup as group:
        raise _first(group) from None


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """What failed first; the others fail for the same reason."""
    found: Exception = group.exceptions[0]
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found
