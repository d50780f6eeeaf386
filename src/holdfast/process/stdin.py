"""
The way into a process: a bounded queue in front of a descriptor.

Each write has an id of the client's. An id that was accepted is never written
again, so a client that lost its connection may repeat a write and be sure that
the bytes arrive once (exec-server spec 10).
"""

import asyncio
import os
from collections import deque

from holdfast.errors import StdinClosed
from holdfast.protocol.process import WriteStatus

__all__ = ["MAX_QUEUED_WRITES", "MAX_REMEMBERED_IDS", "StdinQueue"]

MAX_QUEUED_WRITES = 128
"""Writes kept beyond what the kernel takes; the next one waits for room."""

MAX_REMEMBERED_IDS = 4096
"""Accepted ids kept per process; one more forgets the oldest."""

_GONE = "failed to write to process stdin"


class StdinQueue:
    """
    Feeds one descriptor, which it owns.

    A process that has gone, or closed its end, still accepts writes: they vanish,
    as they do in the kernel's buffers a moment earlier.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, *, shared: bool = False) -> None:
        """`shared`: the descriptor is a terminal's, and its other user closes it."""
        self._loop = loop
        self._fd: int | None = fd
        self._shared = shared
        self._queue: deque[bytes] = deque()
        self._accepted: dict[str, None] = {}
        # Writes that found the queue full, by id, in the order they came. Once the input is to
        # end these are part of it, and are written also if their callers are cut off.
        self._waiting: dict[str, tuple[asyncio.Future[None], bytes]] = {}
        self._polled = False
        self._ending = False
        self._refused = False

    def write(self, data: bytes, write_id: str) -> WriteStatus | asyncio.Future[None]:
        """
        Queue bytes, once per id.

        Returns:
            The status; or, while the queue is full, a future that is done once
            the write was accepted.

        Raises:
            StdinClosed: The process was terminated.
        """
        if self._refused:
            raise StdinClosed(_GONE)
        if write_id in self._accepted:
            return WriteStatus.ACCEPTED
        waiting = self._waiting.get(write_id)
        if waiting is not None and not waiting[0].done():
            return waiting[0]
        if self._ending and waiting is None:
            return WriteStatus.STDIN_CLOSED
        if len(self._queue) >= MAX_QUEUED_WRITES or self._waiting:
            # One whose caller went away and came back keeps its place.
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting[write_id] = (future, data)
            return future
        self._accept(write_id, data)
        return WriteStatus.ACCEPTED

    def end(self) -> None:
        """Close the descriptor once everything queued so far is written."""
        if not self._ending:
            self._waiting = {key: wait for key, wait in self._waiting.items() if not wait[0].done()}
        self._ending = True
        if not self._queue and not self._waiting:
            self._close()

    def discard(self) -> None:
        """The process has gone: drop what is queued, and go on accepting."""
        self._queue.clear()
        self._close()
        self._admit_waiting()

    def refuse(self) -> None:
        """The process was terminated: drop what is queued and refuse all further writes."""
        self._refused = True
        self._queue.clear()
        self._close()
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(StdinClosed(_GONE))
        self._waiting.clear()

    def _accept(self, write_id: str, data: bytes) -> None:
        self._accepted[write_id] = None
        if len(self._accepted) > MAX_REMEMBERED_IDS:
            del self._accepted[next(iter(self._accepted))]
        if self._fd is None or not data:
            return
        if not self._queue:
            data = self._write_now(self._fd, data)
            if not data:
                return
        self._queue.append(data)
        if not self._polled and self._fd is not None:
            self._polled = True
            self._loop.add_writer(self._fd, self._writable, self._fd)

    def _write_now(self, fd: int, data: bytes) -> bytes:
        """Write what the kernel takes and return the rest."""
        try:
            written = os.write(fd, data)
        except BlockingIOError:
            return data
        except OSError:
            # The other end is closed (EPIPE), or the terminal is gone (EIO).
            self.discard()
            return b""
        return data[written:] if written < len(data) else b""

    def _writable(self, fd: int) -> None:
        while self._queue:
            rest = self._write_now(fd, self._queue[0])
            if not self._queue:
                return  # discarded meanwhile
            if rest:
                self._queue[0] = rest
                break
            self._queue.popleft()
        self._admit_waiting()
        if not self._queue and self._fd is not None:
            self._polled = False
            self._loop.remove_writer(fd)
            if self._ending:
                self._close()

    def _admit_waiting(self) -> None:
        while self._waiting and len(self._queue) < MAX_QUEUED_WRITES:
            write_id = next(iter(self._waiting))
            future, data = self._waiting.pop(write_id)
            # A caller that went away before its write was accepted has not written.
            if self._ending or not future.done():
                self._accept(write_id, data)
            if not future.done():
                future.set_result(None)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is None:
            return
        if self._polled:
            self._polled = False
            self._loop.remove_writer(fd)
        if not self._shared:
            os.close(fd)
