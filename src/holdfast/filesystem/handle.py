"""
Open files [fs.open.*].

The classes here make system calls and are for threads; `LocalFileHandle` is the
seam in front of them. One operation on a handle comes after the other, in the
order in which they were asked for.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.errors import InvalidRequest, NotFound
from holdfast.filesystem import nofollow
from holdfast.filesystem.atomic_write import Writer, WriteTarget, find_target, start_writing
from holdfast.filesystem.directories import lossy
from holdfast.filesystem.errno_mapping import about
from holdfast.filesystem.threads import SerialQueue, Threads
from holdfast.protocol.base import I64_MAX
from holdfast.protocol.fs import OpenMode

__all__ = [
    "MAX_BLOCK",
    "MAX_FILE",
    "LocalFileHandle",
    "OpenFile",
    "check_read_length",
    "check_write_range",
    "not_a_file",
    "open_file",
    "read_all",
    "read_file",
    "reading",
    "replacing",
]

MAX_BLOCK = 1 << 20
"""Bytes of one block."""

MAX_FILE = 512 << 20
"""Bytes of a file that is read as a whole."""

_UNKNOWN_SIZE = 64 << 10
"""Bytes to ask for where a file does not tell its size, as in `/proc`."""


def check_read_length(size: int) -> None:
    """
    Check the length of a block.

    Raises:
        InvalidRequest: It is out of range.
    """
    if not 1 <= size <= MAX_BLOCK:
        raise InvalidRequest(f"file read block length must be between 1 and {MAX_BLOCK}")


def check_write_range(offset: int, size: int) -> None:
    """
    Check where a block is to go.

    Raises:
        InvalidRequest: Its length or its place is out of range.
    """
    if not 1 <= size <= MAX_BLOCK:
        raise InvalidRequest(f"file write block length must be between 1 and {MAX_BLOCK}")
    if offset + size > I64_MAX:
        raise InvalidRequest("file write range exceeds the signed 64-bit file offset limit")


class OpenFile(Protocol):
    """A file that is open in one of the modes."""

    def read(self, offset: int, size: int) -> tuple[bytes, bool]:
        """A block, and whether the file ends with it."""

    def write(self, offset: int, data: bytes) -> None:
        """Write a block."""

    def close(self) -> None:
        """Finish: what was written is the file from here on."""

    def discard(self) -> None:
        """Let go of it; what was written is forgotten, where that can still be."""


def open_file(path: str, mode: OpenMode, permissions: int | None = None) -> OpenFile:
    """
    Open a regular file, links followed.

    Args:
        path: Where it is.
        mode: To read it, or to replace its content.
        permissions: The permission bits of one that is replaced; as they are unless given.

    Raises:
        InvalidRequest: It is not a regular file.
        OSError: As the kernel says.
    """
    if mode == "read":
        return reading(_open_to_read(path))
    target = find_target(path)
    if target.old >= 0 and not stat.S_ISREG(os.fstat(target.old).st_mode):
        target.close()
        raise not_a_file(path)
    return replacing(target, permissions)


def reading(descriptor: int) -> OpenFile:
    """A regular file that is open to be read; its descriptor goes with it."""
    return _ReadFile(descriptor)


def replacing(target: WriteTarget, permissions: int | None = None) -> OpenFile:
    """
    New content for a regular file; the descriptors of the target go with it.

    Args:
        target: The file.
        permissions: Its permission bits at the end; as they are unless given.

    Raises:
        OSError: As for `start_writing`.
    """
    return _ReplacedFile(start_writing(target), permissions)


def read_file(path: str, *, follow_symlinks: bool) -> bytes:
    """
    All of a regular file.

    Raises:
        InvalidRequest: It is not a regular file, or larger than `MAX_FILE`.
        OSError: As the kernel says.
    """
    descriptor = _open_to_read(path) if follow_symlinks else nofollow.open_to_read(path)
    try:
        return read_all(descriptor)
    finally:
        os.close(descriptor)


def _open_to_read(path: str) -> int:
    # Without O_NONBLOCK a FIFO would wait for its writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise not_a_file(path)
    return descriptor


def not_a_file(path: str) -> InvalidRequest:
    """What is said of a path that leads to something else."""
    return InvalidRequest(f"path `{lossy(path)}` is not a file")


def read_all(descriptor: int) -> bytes:
    """
    All that is left of an open file.

    Raises:
        InvalidRequest: It is larger than `MAX_FILE`.
        OSError: As the kernel says.
    """
    size = os.fstat(descriptor).st_size
    # One byte more than there seems to be: the usual file is then read at once.
    pieces: list[bytes] = []
    total = 0
    while total <= MAX_FILE and size <= MAX_FILE:
        piece = os.read(descriptor, max(size - total, 0) + 1 if size else _UNKNOWN_SIZE)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        total += len(piece)
    raise InvalidRequest(f"file is too large to read: limit is {MAX_FILE} bytes")


class _ReadFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, size: int) -> tuple[bytes, bool]:
        if offset > I64_MAX:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        data = os.pread(self._descriptor, size, offset)
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        if len(data) < size:
            return data, True
        # The real server says so only with the next block, which is then empty.
        # Files that do not tell their size say 0, which is no end of any block.
        return data, os.fstat(self._descriptor).st_size == offset + size

    def write(self, offset: int, data: bytes) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def close(self) -> None:
        os.close(self._descriptor)

    discard = close


class _ReplacedFile:
    def __init__(self, writer: Writer, permissions: int | None) -> None:
        self._writer = writer
        self._permissions = permissions
        # Blocks that could not be written, and were not written again since.
        self._failed: dict[int, OSError] = {}

    def read(self, offset: int, size: int) -> tuple[bytes, bool]:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def write(self, offset: int, data: bytes) -> None:
        try:
            self._writer.write(data, offset)
        except OSError as error:
            self._failed[offset] = error
            raise
        self._failed.pop(offset, None)

    def close(self) -> None:
        if self._failed:
            # Part of it is missing: the old file is worth more.
            self._writer.discard()
            raise next(iter(self._failed.values()))
        self._writer.commit(self._permissions)

    def discard(self) -> None:
        self._writer.discard()


class LocalFileHandle:
    """
    An open file of this machine.

    It can be used before it is open: what is asked for waits for its turn. The
    methods that are not `async` take their turn at once, awaited or not.
    """

    def __init__(self, threads: Threads, opener: Callable[[], OpenFile], path: str) -> None:
        """
        Args:
            threads: Do the work.
            opener: Opens the file, in one of them.
            path: Of the file, for errors.
        """
        self._lane = SerialQueue(threads)
        self._path = path
        # Touched in the lane only, so by one thread at a time.
        self._file: OpenFile | None = None
        self.opened: asyncio.Future[None] = self._lane.run(partial(self._open, opener))
        """Done once it is open, or could not be opened."""

    async def read_block(self, offset: int, size: int) -> tuple[bytes, bool]:
        """
        Up to `size` bytes from there, and whether the file ends with them.

        An error of the system closes the file.

        Raises:
            NotFound: It is closed.
            InvalidRequest: `size` is out of range.
        """
        return await self.start_reading(offset, size)

    def start_reading(self, offset: int, size: int) -> asyncio.Future[tuple[bytes, bool]]:
        """As `read_block`."""
        check_read_length(size)
        return self._lane.run(partial(self._read, offset, size))

    async def write_block(self, offset: int, data: bytes) -> None:
        """
        Write there; a gap becomes zeros. It is seen once the file is closed.

        Raises:
            NotFound: It is closed.
            InvalidRequest: The range is not possible.
        """
        await self.start_writing(offset, data)

    def start_writing(self, offset: int, data: bytes) -> asyncio.Future[None]:
        """As `write_block`."""
        check_write_range(offset, len(data))
        return self._lane.run(partial(self._write, offset, data))

    async def aclose(self) -> None:
        """
        Let go of it; harmless a second time.

        Raises:
            OperationFailed: What was written could not take the place of the file.
        """
        await self.start_closing()

    def start_closing(self) -> asyncio.Future[None]:
        """As `aclose`."""
        return self._lane.run(self._close)

    def discard(self) -> None:
        """Let go of it and forget what was written."""
        self._lane.run(self._discard)

    # -- in the lane

    def _open(self, opener: Callable[[], OpenFile]) -> None:
        self._file = opener()

    def _read(self, offset: int, size: int) -> tuple[bytes, bool]:
        with about(self._path):
            try:
                return self._opened().read(offset, size)
            except OSError:
                self._discard()
                raise

    def _write(self, offset: int, data: bytes) -> None:
        with about(self._path):
            self._opened().write(offset, data)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with about(self._path):
                file.close()

    def _discard(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.discard()

    def _opened(self) -> OpenFile:
        if self._file is None:
            raise NotFound("the file handle is closed")
        return self._file
