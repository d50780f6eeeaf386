"""
The standard streams of this process, which are shared with other processes.

They may be pipes, terminals, files or sockets. They are never made non-blocking, since that would
affect all processes that have them open.
"""

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

__all__ = ["OutputWriter", "is_null", "read_chunks"]

# Maximum bytes per read.
_CHUNK = 64 << 10

# Bytes waiting to be written above which `write` blocks.
_MAX_QUEUED = 256 << 10

# Seconds between checks whether this process is in the foreground of its terminal again.
_BACKGROUND_INTERVAL = 0.5


def is_null(fd: int) -> bool:
    """Return True if a descriptor is `/dev/null` or closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return True
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev


async def read_chunks(fd: int) -> AsyncIterator[bytes]:
    """Yield chunks of a descriptor until its end."""
    with select.epoll() as watched:
        try:
            watched.register(fd, select.EPOLLIN)
            can_wait = True
        except PermissionError:
            # EPERM: a regular file cannot be polled, and never blocks.
            can_wait = False
        while True:
            if can_wait:
                await _readable(watched.fileno())
            else:
                await asyncio.sleep(0)
            if _in_background(fd):
                # A read would stop this process (SIGTTIN), and with it a command that may not need
                # input.
                await asyncio.sleep(_BACKGROUND_INTERVAL)
                continue
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                # Another process has read it.
                continue
            except OSError:
                # EIO: the terminal was hung up.
                return
            if not data:
                return
            yield data


async def _readable(watched: int) -> None:
    # The epoll descriptor, not `fd`: uvloop makes descriptors that it watches non-blocking.
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(watched, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(watched)


def _in_background(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:
        # Not a terminal, or not the controlling one.
        return False


class OutputWriter:
    """
    Writes to a descriptor in order and without loss, at the pace of its reader.

    A thread does writes that may block, so that signals are still handled while there is no
    reader. It ends with the last write after `close` or, if that never completes, with the
    process.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[OSError | None] = self._loop.create_future()
        # None marks the end.
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._queued = 0
        self._progress = asyncio.Event()
        self._thread: Thread | None = None
        # A regular file never blocks, so it needs no thread.
        self._never_blocks = is_null(fd) or stat.S_ISREG(os.fstat(fd).st_mode)

    async def write(self, data: bytes) -> None:
        """Queue bytes, waiting while too many are queued; after an error, drop them."""
        if not data or self._ended.done():
            return
        if self._never_blocks:
            try:
                _write_all(self._fd, data)
            except OSError as error:
                self._end(error)
            return
        if self._thread is None:
            self._thread = Thread(target=self._write_queued, daemon=True)
            self._thread.start()
        self._queued += len(data)
        self._queue.put(data)
        # Backpressure: a slow reader makes the command wait instead of filling memory.
        while self._queued > _MAX_QUEUED and not self._ended.done():
            self._progress.clear()
            await self._progress.wait()

    def close(self) -> None:
        """Accept no more bytes, and write those that are queued; idempotent."""
        if self._thread is None:
            self._end(None)
        else:
            self._queue.put(None)

    async def wait(self) -> OSError | None:
        """After `close`, wait until everything is written; return the error that prevented it."""
        return await asyncio.shield(self._ended)

    # -- the thread

    def _write_queued(self) -> None:
        error: OSError | None = None
        # The loop may be closed: then the result is not needed.
        with suppress(RuntimeError):
            try:
                while data := self._next():
                    _write_all(self._fd, data)
                    self._loop.call_soon_threadsafe(self._written, len(data))
            except OSError as failure:
                error = failure
            self._loop.call_soon_threadsafe(self._end, error)

    def _next(self) -> bytes:
        """Return all queued bytes, waiting for the first; empty at the end."""
        parts: list[bytes] = []
        part = self._queue.get()
        with suppress(Empty):
            while part is not None:
                parts.append(part)
                part = self._queue.get_nowait()
            # Put back, so that the next call finds the end.
            self._queue.put(None)
        return b"".join(parts)

    # -- called by the thread

    def _written(self, size: int) -> None:
        self._queued -= size
        self._progress.set()

    def _end(self, error: OSError | None) -> None:
        if not self._ended.done():
            self._ended.set_result(error)
            self._progress.set()


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            # Another process has made the shared descriptor non-blocking.
            select.select([], [fd], [])
