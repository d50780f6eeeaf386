"""
Open files, read and written in blocks [fs.open.*].

`LocalFileHandle` is for asyncio. The other classes make system calls, and run in threads.
Operations on one handle run one after the other, in the order of their requests.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import UNSET, UnsetType

from holdfast.base.dialect import limits, texts
from holdfast.base.errors import InvalidRequest, NotFound
from holdfast.engine.files import nofollow
from holdfast.engine.files.atomic_write import Writer, WriteTarget, find_target, start_writing
from holdfast.engine.files.directories import lossy
from holdfast.engine.files.errno_mapping import about, too_large
from holdfast.engine.files.threads import SerialQueue, Threads
from holdfast.wire.protocol.fs import OpenParams, ReadFileParams
from holdfast.wire.protocol.wire_types import I64_MAX

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

MAX_BLOCK = limits.FILE_BLOCK
"""Largest number of bytes of one block."""

MAX_FILE = limits.FILE_READ
"""Largest number of bytes of a file that is read as a whole."""

# Bytes of one `read` where `fstat` reports size 0, as in `/proc`.
_UNKNOWN_SIZE = 64 << 10


def check_read_length(size: int) -> None:
    """
    Check the length of a block to read.

    Raises:
        InvalidRequest: The length is out of range.
    """
    if not 1 <= size <= MAX_BLOCK:
        raise InvalidRequest(texts.block_length("read", MAX_BLOCK))


def check_write_range(offset: int, size: int) -> None:
    """
    Check the offset and the length of a block to write.

    Raises:
        InvalidRequest: One of them is out of range.
    """
    if not 1 <= size <= MAX_BLOCK:
        raise InvalidRequest(texts.block_length("write", MAX_BLOCK))
    if offset + size > I64_MAX:
        raise InvalidRequest(texts.WRITE_RANGE)


class OpenFile(Protocol):
    """File that is open for reading or for replacing its content."""

    def read(self, offset: int, size: int) -> tuple[bytes, bool]:
        """Return a block, and True if the file ends with it."""

    def write(self, offset: int, data: bytes) -> None:
        """Write a block."""

    def close(self) -> None:
        """Close the file, and make the written content visible."""

    def discard(self) -> None:
        """Close the file, and drop the written content unless it was written in place."""


def open_file(params: OpenParams) -> OpenFile:
    """
    Open a regular file; links are followed.

    Raises:
        InvalidRequest: The path is not a regular file.
        OSError: The error of the system call.
    """
    path = params.path.native
    if params.mode == "read":
        return reading(_open_to_read(path))
    target = find_target(path)
    if target.old >= 0 and not stat.S_ISREG(os.fstat(target.old).st_mode):
        target.close()
        raise not_a_file(path)
    return replacing(target, params.permissions)


def reading(descriptor: int) -> OpenFile:
    """Return an open file for reading; it takes over the descriptor."""
    return _ReadFile(descriptor)


def replacing(target: WriteTarget, permissions: int | UnsetType) -> OpenFile:
    """
    Return an open file for new content; it takes over the descriptors of the target.

    Args:
        target: File to replace.
        permissions: Final permission bits; unchanged if unset.

    Raises:
        OSError: The error of `start_writing`.
    """
    return _ReplacedFile(start_writing(target), None if permissions is UNSET else permissions)


def read_file(params: ReadFileParams) -> bytes:
    """
    Return the content of a regular file.

    Raises:
        InvalidRequest: The path is not a regular file, or it is too large.
        OSError: The error of the system call.
    """
    open_to_read = nofollow.open_to_read if params.follow_symlinks is False else _open_to_read
    descriptor = open_to_read(params.path.native)
    try:
        return read_all(descriptor, params)
    finally:
        os.close(descriptor)


def _open_to_read(path: str) -> int:
    # Without O_NONBLOCK, the open of a FIFO would wait for a writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise not_a_file(path)
    return descriptor


def not_a_file(path: str) -> InvalidRequest:
    """Return the error for a path that is not a regular file."""
    return InvalidRequest(texts.not_a_file(lossy(path)))


def read_all(descriptor: int, params: ReadFileParams) -> bytes:
    """
    Return the rest of an open file.

    Raises:
        InvalidRequest: The file is larger than `max_bytes` or `MAX_FILE`.
        OSError: The error of the system call.
    """
    most = MAX_FILE if params.max_bytes is UNSET else min(params.max_bytes, MAX_FILE)
    size = os.fstat(descriptor).st_size
    pieces: list[bytes] = []
    total = 0
    while total <= most and size <= most:
        # At least one byte: only an empty read marks the end, whatever `fstat` reported.
        piece = os.read(descriptor, max(size - total, 0) + 1 if size else _UNKNOWN_SIZE)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        total += len(piece)
    raise too_large(most)


class _ReadFile:
    """File that is open for reading."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, size: int) -> tuple[bytes, bool]:
        # The protocol allows unsigned offsets, which `pread` does not take.
        if offset > I64_MAX:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        # A read may be short before the end of the file, for example after a signal.
        data = os.pread(self._descriptor, size, offset)
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        if len(data) < size:
            return data, True
        # The end is reported only with the next block, an empty one. Files in
        # `/proc` have size 0, which never equals the end of a block.
        return data, os.fstat(self._descriptor).st_size == offset + size

    def write(self, offset: int, data: bytes) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def close(self) -> None:
        os.close(self._descriptor)

    discard = close


class _ReplacedFile:
    """File that is open for replacing its content."""

    def __init__(self, writer: Writer, permissions: int | None) -> None:
        self._writer = writer
        self._permissions = permissions
        # Errors by offset of blocks that failed and have not been written since.
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
            # A part is missing, so the old content is kept.
            self._writer.discard()
            raise next(iter(self._failed.values()))
        self._writer.commit(self._permissions)

    def discard(self) -> None:
        self._writer.discard()


class LocalFileHandle:
    """
    Open file of this machine.

    Operations may be called before the file is open, and wait for their turn.
    """

    def __init__(self, threads: Threads, opener: Callable[[], OpenFile], path: str) -> None:
        """
        Args:
            threads: Threads for the system calls.
            opener: Opens the file, in a thread.
            path: Path for errors.
        """
        self._queue = SerialQueue(threads)
        self._path = path
        # Used by operations of the queue only, so by one thread at a time.
        self._file: OpenFile | None = None
        self.opened: asyncio.Future[None] = self._queue.run(partial(self._open, opener))
        """Done when the file is open, or failed with the error of the open."""

    async def read_block(self, offset: int, size: int) -> tuple[bytes, bool]:
        """
        Return up to `size` bytes from an offset, and whether the file ends with them.

        An error of the system closes the file.

        Raises:
            NotFound: It is closed.
            InvalidRequest: `size` is out of range.
        """
        check_read_length(size)
        return await self._queue.run(partial(self._read, offset, size))

    async def write_block(self, offset: int, data: bytes) -> None:
        """
        Write a block; a gap before it becomes zeros. The content is visible after `aclose`.

        Raises:
            NotFound: The handle is closed.
            InvalidRequest: The range is out of bounds.
        """
        check_write_range(offset, len(data))
        await self._queue.run(partial(self._write, offset, data))

    async def aclose(self) -> None:
        """
        Close the file and make the written content visible; a second call does nothing.

        If the caller is cancelled first, the written content is dropped.

        Raises:
            OperationFailed: The new content could not replace the file.
        """
        try:
            await self._queue.run(self._close)
        except asyncio.CancelledError:
            # The queue does not start a cancelled call, so the file would stay open.
            self.discard()
            raise

    def discard(self) -> None:
        """Close the file in the background, and drop the written content."""
        self._queue.run(self._discard)

    # -- in the queue

    def _open(self, opener: Callable[[], OpenFile]) -> None:
        self._file = opener()

    def _read(self, offset: int, size: int) -> tuple[bytes, bool]:
        with about(self._path):
            try:
                return self._opened().read(offset, size)
            except OSError:
                # The protocol closes a handle after a failed read.
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
