"""
Bounded queue of writes to the stdin of a process.

Each write has an id that the client chose. An accepted id is never written again, so a client
that lost its connection may repeat a write, and its bytes arrive once [write.once].
"""

import asyncio
import os
from collections import deque

from holdfast.engine.process.io.input_budget import InputBudget
from holdfast.wire.protocol.process import WriteStatus

__all__ = [
    "FEW_QUEUED_BYTES",
    "MAX_QUEUED_BYTES",
    "MAX_QUEUED_WRITES",
    "MAX_REMEMBERED_IDS",
    "StdinQueue",
]

# Writes in the queue, beyond the kernel's buffer; the next one waits for room.
MAX_QUEUED_WRITES = 128

# Bytes in the queue; the last write may exceed them, the next one waits for room.
MAX_QUEUED_BYTES = 16 << 20

# Bytes in the queue while more than half of the `InputBudget` is used.
FEW_QUEUED_BYTES = 64 << 10

# Bytes that a pipe accepts completely or not at all (PIPE_BUF).
_WHOLE = 4096

# Accepted ids kept per process; one more forgets the oldest.
MAX_REMEMBERED_IDS = 4096

# Writes to the kernel before other descriptors get their turn.
_WRITES_PER_WAKEUP = 32


class StdinQueue:
    """
    Queue in front of one descriptor, which it owns.

    A process that has exited, or closed its end, still accepts writes, which are dropped. A moment
    earlier they would have been lost in the kernel's buffer, too.
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
            fd: A non-blocking descriptor.
            shared: True for a terminal, whose descriptor is closed by the reader of its output.
            budget: Limits the queued bytes of all processes of an owner; by default only these.
        """
        self._loop = loop
        self._fd: int | None = fd
        self._shared = shared
        self._budget = InputBudget() if budget is None else budget
        # Both the queue and the writes that wait for it are booked in the budget. Views of
        # bytes: the rest of a large write is sliced many times before all of it is written.
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        # A dict for its order: the oldest id is forgotten first.
        self._accepted: dict[str, None] = {}
        self._last_id = 0
        # Writes that found the queue full, by id, in the order they came. After `end` they
        # belong to the input, and are written even if their callers were cancelled.
        self._waiting: dict[str, tuple[asyncio.Future[WriteStatus], bytes]] = {}
        self._polled = False
        self._ending = False
        self._refused = False

    def write(self, data: bytes, write_id: str) -> WriteStatus | asyncio.Future[WriteStatus]:
        """
        Queue bytes, once per id.

        Returns:
            The status; or, while the queue is full, a future of it that is done once the write
            is accepted, or the process was terminated.

        Raises:
            InvalidRequest: The queued input exceeds the budget.
        """
        if self._refused:
            return WriteStatus.STDIN_CLOSED
        if write_id in self._accepted:
            return WriteStatus.ACCEPTED
        if self._write_whole(data):
            self._remember(write_id)
            return WriteStatus.ACCEPTED
        waiting = self._waiting.get(write_id)
        if waiting is not None and not waiting[0].done():
            return waiting[0]
        if self._ending and waiting is None:
            return WriteStatus.STDIN_CLOSED
        # After waiting writes, even if there is room now: the order must be kept.
        if self._is_full or self._waiting:
            # A repeated write of a client that reconnected keeps its position and its bytes.
            if waiting is None:
                self._budget.take(len(data))
            else:
                data = waiting[1]
            future: asyncio.Future[WriteStatus] = self._loop.create_future()
            self._waiting[write_id] = (future, data)
            return future
        if self._fd is not None:
            # Booked before the first byte is written, as it may be refused. The part that the
            # kernel takes at once is released again.
            self._budget.take(len(data))
        self._accept(write_id, data)
        return WriteStatus.ACCEPTED

    def unused_id(self) -> str:
        """Return an id for a write without one: a number that no other write has."""
        while True:
            self._last_id += 1
            write_id = str(self._last_id)
            if write_id not in self._accepted and write_id not in self._waiting:
                return write_id

    def _write_whole(self, data: bytes) -> bool:
        """Write a few bytes past the queue and its limits; return False if they did not fit."""
        # Nearly every write. A terminal may accept only a part, and the rest has to be booked
        # first.
        if len(data) > _WHOLE or self._fd is None or self._shared:
            return False
        if self._queue or self._waiting or self._ending:
            return False
        try:
            os.write(self._fd, data)
        except OSError:
            # The pipe is full or broken; the queue knows what to do then.
            return False
        return True

    def _remember(self, write_id: str) -> None:
        self._accepted[write_id] = None
        if len(self._accepted) > MAX_REMEMBERED_IDS:
            del self._accepted[next(iter(self._accepted))]

    @property
    def _is_full(self) -> bool:
        most = FEW_QUEUED_BYTES if self._budget.is_tight else MAX_QUEUED_BYTES
        return len(self._queue) >= MAX_QUEUED_WRITES or self._queued_bytes >= most

    def end(self) -> None:
        """Close the descriptor once all queued bytes are written."""
        if not self._ending:
            # Writes whose callers were cancelled before this were never accepted.
            for write_id in [key for key, wait in self._waiting.items() if wait[0].done()]:
                self._budget.give_back(len(self._waiting.pop(write_id)[1]))
        self._ending = True
        if not self._queue and not self._waiting:
            self._close()

    def discard(self) -> None:
        """Drop the queue of a process that has exited, and accept further writes."""
        self._clear_queue()
        self._close()
        self._admit_waiting()

    def refuse(self) -> None:
        """Drop the queue of a process that was terminated, and refuse all further writes."""
        self._refused = True
        self._clear_queue()
        self._close()
        for future, data in self._waiting.values():
            self._budget.give_back(len(data))
            if not future.done():
                future.set_result(WriteStatus.STDIN_CLOSED)
        self._waiting.clear()

    def _clear_queue(self) -> None:
        self._queue.clear()
        self._budget.give_back(self._queued_bytes)
        self._queued_bytes = 0

    def _accept(self, write_id: str, data: bytes) -> None:
        """Write or queue booked bytes; drop them if the descriptor is closed."""
        self._remember(write_id)
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
        """Write as much as the kernel accepts, and return the rest."""
        try:
            written = os.write(fd, data)
        except BlockingIOError:
            return data
        except OSError:
            # EPIPE: the process has closed its stdin. EIO: the terminal is gone.
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
                # `_write_now` met an error and has discarded the queue.
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
            # A caller that was cancelled before its write was accepted has not written.
            if self._fd is None or (future.done() and not self._ending):
                self._budget.give_back(len(data))
            if self._ending or not future.done():
                self._accept(write_id, data)
            if not future.done():
                future.set_result(WriteStatus.ACCEPTED)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is None:
            return
        # Before the close: the event loop must not watch a number that is reused.
        if self._polled:
            self._polled = False
            self._loop.remove_writer(fd)
        if not self._shared:
            os.close(fd)
