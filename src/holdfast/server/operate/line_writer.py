"""
Writes lines to a file or stream, in a separate thread.

A full disk, a dead mount or a stuck reader only blocks this thread. The size of the queue is
bounded. Lines that do not fit or cannot be written are counted.
"""

import asyncio
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Generic, TypeVar

from holdfast.engine.linux.child_signals import block_child_signals

__all__ = ["CHUNK", "CLOSE_LIMIT", "GATHER", "LineWriter", "PartlyWritten", "write_all"]

T = TypeVar("T")

# Maximum bytes per call of `write`; a longer line is passed by itself.
CHUNK = 64 << 10

# Maximum bytes in the queue.
MAX_WAITING = 8 << 20

# Seconds for which lines are collected. While the thread waits for the GIL, each system call of the
# event loop wakes it in vain, which costs more than formatting the lines.
GATHER = 0.1

# Seconds to write remaining lines when a server ends.
CLOSE_LIMIT = 2.0

# Seconds between warnings about lost records.
WARN_INTERVAL = 10.0

# Seconds for which a non-blocking descriptor may accept nothing.
_STUCK = 5.0

FULL = "they arrived faster than they could be written"


class PartlyWritten(Exception):
    """A write failed after some of its lines."""

    def __init__(self, lines: int, reason: str, *, torn: bool) -> None:
        super().__init__(reason)
        self.lines = lines
        """Number of completely written lines."""
        self.torn = torn
        """True if part of the next line was written too."""


class LineWriter(Generic[T]):
    """
    A queue of records, with a thread that formats and writes them.

    The thread starts with the first record. `put` never blocks or raises; only one thread at a
    time may call it.
    """

    def __init__(
        self,
        name: str,
        *,
        encode: Callable[[T], bytes],
        write: Callable[[bytes], None],
        gap: Callable[[int, str], bytes],
        warn: Callable[[int, str], None] | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        """
        Args:
            name: Name of the thread.
            encode: Formats a record as a line with its newline; called in the thread.
            write: Writes whole lines, at most `CHUNK` bytes unless one line is longer. Raises
                `OSError` if nothing was written, or `PartlyWritten`.
            gap: Formats a line in place of lost records, from their number and the reason.
            warn: Called with the number of records lost since the start and the reason: at the
                first loss, and then at most every `WARN_INTERVAL` seconds.
            max_waiting: Maximum bytes in the queue.
        """
        self._name = name
        self._encode = encode
        self._write = write
        self._gap = gap
        self._warn = warn
        self._max_waiting = max_waiting
        self._queue: deque[tuple[T, int]] = deque()
        # No locks: only one of the two threads changes each counter.
        self._put_bytes = 0
        self._taken_bytes = 0
        self._refused = 0
        self._failed = 0
        # Number of records of the current write.
        self._in_hand = 0
        # Number of lost records that a line in the file accounts for.
        self._marked = 0
        # Reason for the last loss, and whether the last write failed.
        self._reason = FULL
        self._failing = False
        self._warned = 0
        self._warned_at = -WARN_INTERVAL
        self._wake = threading.Event()
        # Time by which the thread will have been woken for all records so far. If it has passed,
        # the event loop that was to wake the thread may have ended.
        self._woken_by = 0.0
        self._closing = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def lost(self) -> int:
        """Number of records not written since the start."""
        return self._refused + self._failed

    def put(self, record: T, size: int) -> None:
        """Queue a record of about `size` bytes; if the queue is full, count it as lost."""
        waiting = self._put_bytes - self._taken_bytes + size
        if waiting > self._max_waiting or self._closing:
            self._refused += 1
            if not self._failing:
                self._reason = FULL
            self._warn_now_and_then()
            return
        self._put_bytes += size
        self._queue.append((record, size))
        now = monotonic()
        if now >= self._woken_by:
            self._woken_by = now + 2 * GATHER
            self._wake_soon()
        elif waiting > self._max_waiting // 2:
            self._wake_now()

    def flush(self) -> None:
        """Wake the thread now, in case the event loop ends."""
        if self._queue:
            self._wake_now()

    def _wake_soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._wake_now()
        else:
            loop.call_later(GATHER, self._wake_now)

    def _wake_now(self) -> None:
        self._woken_by = 0.0
        if self._has_thread():
            self._wake.set()

    def _has_thread(self) -> bool:
        """Start the thread unless it runs; return False if it cannot be started now."""
        # The event loop and another thread may both find that it is not running.
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread = thread
        return True

    def close(self, limit: float = CLOSE_LIMIT) -> bool:
        """
        Write the remaining records for at most `limit` seconds, and count the others as lost.

        Returns:
            True if the thread has ended, and writes nothing more.
        """
        self._closing = True
        if self._queue:
            self._wake_now()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(limit)
        ended = not self._queue if self._thread is None else not self._thread.is_alive()
        # The thread is stuck in a write, so its records count as lost too.
        if not ended:
            self._refused += len(self._queue) + self._in_hand
        self._warn_now_and_then(last=True)
        return ended

    def _warn_now_and_then(self, *, last: bool = False) -> None:
        lost, now = self.lost, monotonic()
        due = last or now >= self._warned_at + WARN_INTERVAL
        if self._warn is not None and lost > self._warned and due:
            self._warned, self._warned_at = lost, now
            self._warn(lost, self._reason)

    # -- in the thread

    def _run(self) -> None:
        block_child_signals()
        while True:
            self._wake.wait()
            # Cleared before the queue is read, so that a later record sets it again.
            self._wake.clear()
            while self._queue:
                self._write_some()
            if self._closing:
                # No record follows before which the line about lost records could be written.
                if self.lost > self._marked:
                    self._write_some()
                return

    def _write_some(self) -> None:
        lines: list[bytes] = []
        size = 0
        lost = self.lost - self._marked
        if lost:
            lines.append(self._gap(lost, self._reason))
            size = len(lines[0])
        while self._queue and size < CHUNK:
            record, weight = self._queue[0]
            try:
                line = self._encode(record)
            except Exception as error:  # noqa: BLE001 - one odd record must not end the thread
                self._queue.popleft()
                self._taken_bytes += weight
                self._failed += 1
                self._reason = f"one could not be formatted: {type(error).__name__}"
                self._warn_now_and_then()
                continue
            if lines and size + len(line) > CHUNK:
                break
            self._queue.popleft()
            self._taken_bytes += weight
            lines.append(line)
            size += len(line)
        if not lines:
            return
        self._in_hand = len(lines) - (1 if lost else 0)
        try:
            self._write(b"".join(lines))
        except PartlyWritten as error:
            self._lose(lines[error.lines :], lost, error.lines > 0, str(error))
        except OSError as error:
            self._lose(lines, lost, False, error.strerror or str(error))
        else:
            self._marked += lost
            self._failing = False
        self._in_hand = 0

    def _lose(self, lines: Sequence[bytes], gap: int, gap_written: bool, reason: str) -> None:
        """Count the records of a failed write, excluding a line about a gap."""
        self._failed += len(lines) - (1 if gap and not gap_written else 0)
        if gap_written:
            self._marked += gap
        self._reason = reason
        self._failing = True
        self._warn_now_and_then()


def write_all(descriptor: int, data: bytes) -> None:
    """
    Write all bytes to a descriptor that may be non-blocking.

    Raises:
        OSError: Nothing was written.
        PartlyWritten: Some bytes were written.
    """
    done = 0
    try:
        while done < len(data):
            try:
                done += os.write(descriptor, data[done:] if done else data)
            except BlockingIOError:
                if not select.select([], [descriptor], [], _STUCK)[1]:
                    raise
    except OSError as error:
        if not done:
            raise
        lines = data.count(b"\n", 0, done)
        reason = error.strerror or str(error)
        raise PartlyWritten(lines, reason, torn=data[done - 1 : done] != b"\n") from error
