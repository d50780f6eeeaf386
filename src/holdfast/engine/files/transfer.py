"""
Transfers whole files through open handles, with several blocks in flight.

One block at a time would cost a round trip each. The functions work with any `FileHandle`, local
or remote.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.backends import FileHandle
from holdfast.base.errors import HoldfastError, OperationFailed

__all__ = ["BLOCK", "WINDOW", "read_blocks", "write_blocks"]

BLOCK = 1 << 20
"""Bytes of a block: the limit of one request [fs.read-block]."""

WINDOW = 4
"""Blocks in flight."""


async def read_blocks(
    handle: FileHandle, take: Callable[[bytes], Awaitable[None]], *, start: int = 0
) -> None:
    """
    Read a file to its end.

    Args:
        handle: Handle that is open for reading.
        take: Called with the blocks in order; none is empty.
        start: Offset of the first block.

    Raises:
        HoldfastError: The error of `read_block`.
    """
    offset = start
    # Most files fit into one block, so further ones are requested after the first.
    window = 1
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
                    # [fs.read-block]: such a file would never end.
                    raise OperationFailed("fs/readBlock returned an empty non-terminal block")
                window = WINDOW
            # Reads beyond the end of the file, which were started before it was known.
            for read in reads:
                read.cancel()
    except ExceptionGroup as group:
        raise _first(group) from None


async def _read(handle: FileHandle, offset: int) -> tuple[bytes, bool] | HoldfastError:
    """Return a block, or its error, which is raised after the blocks before it are taken."""
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
        handle: Handle that is open for replacing.
        give: Returns the next piece of at most `BLOCK` bytes; an empty one ends the file. It
            is called in a thread, since it may block.
        gave: Called with the size of each piece that has been written.

    Raises:
        HoldfastError: The error of `write_block`.
        OSError: The error of `give`.
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
                # In order, so that the first failed block is the one that is reported.
                if writes:
                    write, size = writes.popleft()
                    await write
                    if gave is not None:
                        gave(size)
    except ExceptionGroup as group:
        raise _first(group) from None


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first exception of a group; the others have the same cause."""
    found: Exception = group.exceptions[0]
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found
