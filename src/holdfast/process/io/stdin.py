"""
The way into a process: a bounded queue in front of a descriptor.

Each write has an id of the client's. An id that was accepted is never written
again, so a client that lost its connection may repeat a write and be sure that
the bytes arrive once [write.once].
"""

import asyncio
import os
from collections import deque

from holdfast.errors import StdinClosed
from holdfast.process.io.input_budget import InputBudget
from holdfast.protocol.process import WriteStatus

__all__ = [
    "FEW_QUEUED_BYTES",
    "MAX_QUEUED_BYTES",
    "MAX_QUEUED_WRITES",
    "MAX_REMEMBERED_IDS",
    "StdinQueue",
]

MAX_QUEUED_WRITES = 128
"""Writes kept beyond what the kernel takes; the next one waits for room."""

MAX_QUEUED_BYTES = 16 << 20
"""Bytes of these writes; the last one may exceed it, the next one waits for room."""

FEW_QUEUED_BYTES = 64 << 10
"""The same where much waits for other processes."""

MAX_REMEMBERED_IDS = 4096
"""Accepted ids kept per process; one more forgets the oldest."""

# Writes to the kernel before the event loop gets to look at others.
_WRITES_PER_WAKEUP = 32

_GONE = "failed to write to process stdin"


class StdinQueue:
    """
    Feeds one descriptor, which it owns.

    A process that has gone, or closed its end, still accepts writes: they vanish,
    as they do in the kernel's buffers a moment earlier.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        *,
        shared: bool = False,
        budget: InputBudget | None = None,
    ) -> None:
        """
        Args:
            loop: Runs everything here.
            fd: Not blocking.
            shared: The descriptor is a terminal's, and its other user closes it.
            budget: Bounds what waits here and elsewhere; one of its own by default.
        """
        self._loop = loop
        self._fd: int | None = fd
        self._shared = shared
        self._budget = InputBudget() if budget is None else budget
        # Both the queue and the writes that wait for it are booked in the budget.
        # Views, as most of a large write is moved on many times before it is written.
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
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
            InvalidRequest: More input waits already than may.
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
        if self._is_full or self._waiting:
            # One whose caller went away and came back keeps its place, and its bytes.
            if waiting is None:
                self._budget.take(len(data))
            else:
                data = waiting[1]
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting[write_id] = (future, data)
            return future
        if self._fd is not None:
            # Refused before anything of it is written: what the kernel takes is given back.
            self._budget.take(len(data))
        self._accept(write_id, data)
        return WriteStatus.ACCEPTED

    @property
    def _is_full(self) -> bool:
        most = FEW_QUEUED_BYTES if self._budget.is_tight else MAX_QUEUED_BYTES
        return len(self._queue) >= MAX_QUEUED_WRITES or self._queued_bytes >= most

    def end(self) -> None:
        """Close the descriptor once everything queued so far is written."""
        if not self._ending:
            for write_id in [key for key, wait in self._waiting.items() if wait[0].done()]:
                self._budget.give_back(len(self._waiting.pop(write_id)[1]))
        self._ending = True
        if not self._queue and not self._waiting:
            self._close()

    def discard(self) -> None:
        """The process has gone: drop what is queued, and go on accepting."""
        self._clear_queue()
        self._close()
        self._admit_waiting()

    def refuse(self) -> None:
        """The process was terminated: drop what is queued and refuse all further writes."""
        self._refused = True
        self._clear_queue()
        self._close()
        for future, data in self._waiting.values():
            self._budget.give_back(len(data))
            if not future.done():
                future.set_exception(StdinClosed(_GONE))
        self._waiting.clear()

    def _clear_queue(self) -> None:
        self._queue.clear()
        self._budget.give_back(self._queued_bytes)
        self._queued_bytes = 0

    def _accept(self, write_id: str, data: bytes) -> None:
        """Write or queue bytes that are booked in the budget; without a process, drop them."""
        self._accepted[write_id] = None
        if len(self._accepted) > MAX_REMEMBERED_IDS:
            del self._accepted[next(iter(self._accepted))]
        if self._fd is None or not data:
            return
        rest = memoryview(data)
        if not self._queue:
            rest = self._write_now(self._fd, rest)
            self._budget.give_back(len(data) - len(rest))
            if not rest:
                return
        self._queue.append(rest)
        self._queued_bytes += len(rest)
        if not self._polled and self._fd is not None:
            self._polled = True
            self._loop.add_writer(self._fd, self._writable, self._fd)

    def _write_now(self, fd: int, data: memoryview) -> memoryview:
        """Write what the kernel takes and return the rest."""
        try:
            written = os.write(fd, data)
        except BlockingIOError:
            return data
        except OSError:
            # The other end is closed (EPIPE), or the terminal is gone (EIO).
            self.discard()
            written = len(data)
        return data[written:]

    def _writable(self, fd: int) -> None:
        for _ in range(_WRITES_PER_WAKEUP):
            if not self._queue:
                break
            size = len(self._queue[0])
            rest = self._write_now(fd, self._queue[0])
            if not self._queue:
                # Discarded meanwhile.
                return
            self._queued_bytes -= size - len(rest)
            self._budget.give_back(size - len(rest))
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
        while self._waiting and not self._is_full:
            write_id = next(iter(self._waiting))
            future, data = self._waiting.pop(write_id)
            # A caller that went away before its write was accepted has not written.
            if self._fd is None or (future.done() and not self._ending):
                self._budget.give_back(len(data))
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
