"""
Writes lines to a file or a stream, in a thread of its own.

A full disk, a dead mount or a stuck reader blocks only this thread. The queue is bounded in
bytes. Lines that do not fit or cannot be written are counted.
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

# Bytes passed to one call of `write`, at most; a longer line is passed alone.
CHUNK = 64 << 10

# Bytes in the queue, at most.
MAX_WAITING = 8 << 20

# Seconds in which lines are collected. As long as the thread waits for the interpreter, each system
# call of the event loop wakes it in vain, which costs more than to format the lines.
GATHER = 0.1

# Seconds to write the rest when a server ends.
CLOSE_LIMIT = 2.0

# Seconds between two warnings about lost records.
WARN_INTERVAL = 10.0

# Seconds for which a non-blocking descriptor may accept no byte.
_STUCK = 5.0

FULL = "they came faster than they could be written"


class PartlyWritten(Exception):
    """A write failed after some of the lines."""

    def __init__(self, lines: int, reason: str, *, torn: bool) -> None:
        super().__init__(reason)
        self.lines = lines
        """Number of lines that were written completely."""
        self.torn = torn
        """True if a part of the next line was written too."""


class LineWriter(Generic[T]):
    """
    Queue of records, with the thread that formats and writes them.

    The thread starts with the first record. `put` never blocks and never raises; only one thread
    at a time may call it.
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
            encode: Formats a record as a line, with its line end; called in the thread.
            write: Writes whole lines, at most `CHUNK` bytes unless one line is longer. Raises
                `OSError` if nothing was written, or `PartlyWritten`.
            gap: Makes the line that stands for lost records, from their number and the reason.
            warn: Called with the number of records lost since the start, and the reason: at the
                first loss, and then every `WARN_INTERVAL` seconds at most.
            max_waiting: Bytes in the queue, at most.
        """
        self._name = name
        self._encode = encode
        self._write = write
        self._gap = gap
        self._warn = warn
        self._max_waiting = max_waiting
        self._queue: deque[tuple[T, int]] = deque()
        # Each counter is changed by one of the two threads only, so no lock is needed.
        self._put_bytes = 0
        self._taken_bytes = 0
        self._refused = 0
        self._failed = 0
        # Records of the current write.
        self._in_hand = 0
        # Lost records that a line in the file already stands for.
        self._marked = 0
        # Reason of the last loss, and whether the last write failed.
        self._reason = FULL
        self._failing = False
        self._warned = 0
        self._warned_at = -WARN_INTERVAL
        self._wake = threading.Event()
        # Time at which the thread has been woken for all records so far. Later than planned: the
        # event loop that was to do it may have ended.
        self._woken_by = 0.0
        self._closing = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def lost(self) -> int:
        """Number of records since the start that were not written."""
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
        """Have the records so far written now; call it if the event loop may end after them."""
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
        """Start the thread unless it runs; return False if the system cannot start one now."""
        # The event loop and another thread with a record may find at once that none runs.
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
        Write the rest for at most `limit` seconds, and count what is left then as lost.

        Returns:
            True if the thread has ended, so that it writes no more.
        """
        self._closing = True
        if self._queue:
            self._wake_now()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(limit)
        ended = not self._queue if self._thread is None else not self._thread.is_alive()
        # The thread is still in a write. Nobody waits for it, so its records count as lost too.
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
            # Cleared before the queue is read: a record that comes later sets it again.
            self._wake.clear()
            while self._queue:
                self._write_some()
            if self._closing:
                # Nothing will follow that the line about lost records could stand before.
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
        """Count the records of a failed write; the line about a gap is not a record."""
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
        PartlyWritten: A part was written.
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
