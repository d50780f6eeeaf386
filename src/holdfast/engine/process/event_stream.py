"""
Event streams of one log, with backpressure: a slow reader makes the writer wait.

A log keeps a bounded tail. A reader of every byte has to exist before the first one is written.
So the first stream of a process is opened before a caller asks for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from holdfast.base.errors import HoldfastError, OutputLost
from holdfast.engine.process.io.log import LogListener, OutputLog
from holdfast.events import Closed, Exited, Gap, ProcessEvent, StreamEnded, Verdict
from holdfast.wire.protocol.process import OutputChunk, check_after_seq

__all__ = [
    "CLAIM_TIME",
    "HIGH_EVENTS",
    "HIGH_WATER",
    "LOW_EVENTS",
    "LOW_WATER",
    "MOST_BYTES",
    "MOST_EVENTS",
    "READER_TIME",
    "TURN_BYTES",
    "TURN_EVENTS",
    "EventReaders",
    "LogEventStream",
]

# Bytes a reader may fall behind before the writer has to wait.
HIGH_WATER = 1 << 20

# Bytes left in the queue at which the writer may continue.
LOW_WATER = 256 << 10

# Events a reader may fall behind: many events of single bytes need memory too.
HIGH_EVENTS = 4096

# Events left in the queue at which the writer may continue.
LOW_EVENTS = 1024

# Bytes and events a reader that accepts gaps may fall behind while its writer does not wait.
#
# A connection is read in spite of a slow reader while a call waits for its answer, which follows
# the output. Without this limit the queue would grow until then.
MOST_BYTES = 4 * HIGH_WATER
MOST_EVENTS = 4 * HIGH_EVENTS

# Bytes a stream returns before it lets the event loop run other tasks.
TURN_BYTES = 64 << 10

# Events a stream returns before it lets the event loop run other tasks.
TURN_EVENTS = 64

# Seconds that a connection waits for a reader that accepts gaps and reads nothing.
#
# The connection waits for a reader that makes progress: a socket delivers more in one turn of the
# event loop than a stream returns in one. Only a reader that makes no progress loses events, so
# that other readers of the same connection need not wait for it.
READER_TIME = 0.25

# Seconds that a writer waits until a caller asks for the first stream.
#
# The time starts when the stream has fallen behind, but not before the caller has the process.
# After that there is no reader to wait for.
CLAIM_TIME = 1.0

Hold = Callable[[object], None]
"""Callback that makes the writer wait on behalf of a reader, or ends that wait."""


class EventReaders:
    """All event streams of one log."""

    def __init__(
        self,
        log: OutputLog,
        hold: Hold,
        release: Hold,
        *,
        can_hold: Callable[[], bool] = lambda: True,
        handed_over: bool = True,
    ) -> None:
        """
        Open the first stream, which the first call of `stream` returns.

        Args:
            log: Source of the events.
            hold: Makes the writer wait on behalf of a reader.
            release: Ends that wait.
            can_hold: Returns False if holding one process would hold others too. A stream
                that accepts gaps then drops its oldest events instead.
            handed_over: False if the caller gets the process only at `hand_over`.
        """
        self._log = log
        self._hold = hold
        self._release = release
        self._can_hold = can_hold
        self._handed_over = handed_over
        self._loop = asyncio.get_running_loop()
        self._claim_timer: asyncio.TimerHandle | None = None
        self._failure: HoldfastError | None = None
        self._open: set[_Queue] = set()
        # The first stream until a caller asks for it. It accepts no gap: its reader may want all
        # events.
        self._unclaimed: _Queue | None = self._open_queue(0, gaps=False)

    def stream(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> "LogEventStream":
        """
        Return a stream of the events after a number.

        Raises:
            InvalidParams: The number is below zero.
        """
        check_after_seq(after_seq)
        # The first call gets the stream that was opened with the process, and so every byte.
        queue, self._unclaimed = self._unclaimed, None
        self._stop_claim_timer()
        if queue is None:
            queue = self._open_queue(after_seq, gaps=gaps)
        else:
            queue.gaps = gaps
            if after_seq:
                queue.skip_through(after_seq)
            # It has been holding since before it had a reader. From now on it has to make progress.
            if gaps and queue.holding and not self._can_hold():
                self._wait_for_reader(queue)
        return LogEventStream(
            queue, self._close, self._close_soon, after_seq, stream_ends=stream_ends
        )

    def hand_over(self) -> None:
        """Declare that the caller has the process and can ask for a stream from now on."""
        self._handed_over = True
        self._start_claim_timer()

    def give_up(self) -> None:
        """Declare that no caller will ask for a stream, so that the writer need not wait."""
        self._stop_claim_timer()
        self._drop_unclaimed()

    @property
    def lossless(self) -> bool:
        """True if an open stream, or the unclaimed first one, accepts no gap."""
        return any(not queue.gaps for queue in self._open)

    def fail(self, error: HoldfastError) -> None:
        """End all streams with this error, after the events before it."""
        self._failure = error
        for queue in self._open:
            queue.fail(error)

    def _open_queue(self, after_seq: int, *, gaps: bool) -> "_Queue":
        entries = self._log.entries(after_seq)
        if self._log.closed and not (entries and type(entries[-1]) is Closed):
            # `Closed` ends the iteration of a stream. The log leaves it out if `after_seq`
            # is at or behind the close.
            entries.append(Closed(self._log.next_seq - 1))
        queue = _Queue(entries, self._behind, self._too_far_behind, self._release, gaps=gaps)
        if self._failure is not None:
            queue.fail(self._failure)
        self._open.add(queue)
        # No event can come between `entries` and this: there is no await.
        self._log.subscribe(queue)
        return queue

    def _close(self, queue: "_Queue") -> None:
        if queue in self._open:
            self._open.discard(queue)
            self._log.unsubscribe(queue)
            self._release(queue)

    def _close_soon(self, queue: "_Queue") -> None:
        """Close a queue later in the event loop; safe in any thread and inside any method here."""
        # The loop is closed, so no writer waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._close, queue)

    def _behind(self, queue: "_Queue") -> bool:
        """Make the writer wait for a queue; return False if it should drop events instead."""
        # The writer always waits for a reader that accepts no gap: dropping events would break it.
        if queue.gaps and not self._can_hold():
            if queue.stands_still:
                return False
            self._wait_for_reader(queue)
        self._hold(queue)
        self._start_claim_timer()
        return True

    def _too_far_behind(self, queue: "_Queue") -> bool:
        """Return True if a queue should drop events, although the writer was made to wait."""
        return queue.gaps and not self._can_hold()

    def _wait_for_reader(self, queue: "_Queue") -> None:
        """Check every `READER_TIME` that a reader still reads, and give up on it if not."""
        if not queue.watched:
            queue.watched = True
            self._loop.call_later(READER_TIME, self._look_at_reader, queue, queue.taken, 1)

    def _look_at_reader(self, queue: "_Queue", taken: int, times: int) -> None:
        if not queue.holding:
            queue.watched = False
        elif queue.taken != taken:
            self._loop.call_later(READER_TIME, self._look_at_reader, queue, queue.taken, 1)
        elif times:
            # A second chance: the loop itself may have been busy, so that the reader could not run.
            self._loop.call_later(READER_TIME, self._look_at_reader, queue, taken, times - 1)
        else:
            queue.watched = False
            queue.stands_still = True
            queue.drop_instead_of_holding()

    def _start_claim_timer(self) -> None:
        unclaimed = self._unclaimed
        if unclaimed is not None and unclaimed.holding and self._handed_over:
            self._stop_claim_timer()
            self._claim_timer = self._loop.call_later(CLAIM_TIME, self._drop_unclaimed)

    def _stop_claim_timer(self) -> None:
        if self._claim_timer is not None:
            self._claim_timer.cancel()
            self._claim_timer = None

    def _drop_unclaimed(self) -> None:
        queue, self._unclaimed = self._unclaimed, None
        if queue is not None:
            self._close(queue)


class _Queue(LogListener):
    """Events that one reader has not read yet."""

    def __init__(
        self,
        entries: list[ProcessEvent],
        behind: Callable[["_Queue"], bool],
        too_far_behind: Callable[["_Queue"], bool],
        caught_up: Hold,
        *,
        gaps: bool,
    ) -> None:
        self.gaps = gaps
        """True if the reader accepts a `Gap` in place of lost events."""
        self.entries: deque[ProcessEvent] = deque(entries)
        """The events, oldest first."""
        self._behind = behind
        self._too_far_behind = too_far_behind
        self._caught_up = caught_up
        self._size = sum([len(entry.chunk) for entry in entries if type(entry) is OutputChunk])
        self.holding = False
        """True while the writer waits for this reader."""
        self.taken = 0
        """Number of events that the reader has read."""
        self.stands_still = False
        """True after a wait for the reader was in vain, until it has caught up."""
        self.watched = False
        """True while a timer checks that the reader makes progress."""
        self._failure: HoldfastError | None = None
        self._woken = asyncio.Event()
        self._ended = False

    async def wait(self) -> bool:
        """Wait until there is an event; return False after `end`."""
        while not self.entries:
            if self._ended:
                return False
            if self._failure is not None:
                # The same exception object is raised in every stream; without this, each raise
                # would add to its traceback.
                raise self._failure.with_traceback(None)
            self._woken.clear()
            await self._woken.wait()
        return True

    def get_output(self, most: int, after_seq: int) -> OutputChunk | None:
        """Return the next event if it is queued output of at most `most` bytes, else None."""
        event = self.entries[0] if self.entries else None
        if type(event) is not OutputChunk or len(event.chunk) > most or event.seq <= after_seq:
            return None
        self.take()
        return event

    def take(self) -> ProcessEvent:
        """Return the first event; call it only if there is one."""
        event = self.entries.popleft()
        self.taken += 1
        if type(event) is OutputChunk:
            self._size -= len(event.chunk)
        if self.holding or self.stands_still:
            self._release_if_low()
        return event

    def end(self) -> None:
        """Drop all events and wake a reader that waits for one."""
        self._ended = True
        self.entries.clear()
        self._woken.set()

    def fail(self, error: HoldfastError) -> None:
        self._failure = error
        self._woken.set()
        # No further event could have to wait.
        self._release()

    def drop_instead_of_holding(self) -> None:
        """Turn the oldest output into gaps, so that the writer need not wait."""
        self._drop_oldest()
        self._release()

    def _release_if_low(self) -> None:
        if self._size <= LOW_WATER and len(self.entries) <= LOW_EVENTS:
            self.stands_still = False
            self._release()

    def _release(self) -> None:
        if self.holding:
            self.holding = False
            self._caught_up(self)

    def skip_through(self, seq: int) -> None:
        """Drop the events up to a sequence number, which the reader has already."""
        while self.entries and self.entries[0].seq <= seq:
            event = self.entries.popleft()
            if type(event) is OutputChunk:
                self._size -= len(event.chunk)
            elif type(event) is Closed:
                # Kept in any case: it ends the iteration of the stream.
                self.entries.append(event)
                break
        # Otherwise the writer would wait for a reader that has nothing left to read.
        self._release_if_low()

    # -- LogListener

    def output(self, chunk: OutputChunk) -> None:
        entries = self.entries
        # A reader waits only for the first event of an empty queue.
        if not entries:
            self._woken.set()
        entries.append(chunk)
        self._size += len(chunk.chunk)
        if self._size <= HIGH_WATER and len(entries) <= HIGH_EVENTS:
            return
        if self.holding:
            too_many = self._size > MOST_BYTES or len(entries) > MOST_EVENTS
            if too_many and self._too_far_behind(self):
                self._drop_oldest()
            return
        # Set first: `_behind` starts timers that check it.
        self.holding = True
        if not self._behind(self):
            self.holding = False
            self._drop_oldest()

    def stream_ended(self, event: StreamEnded) -> None:
        self._add(event)

    def exited(self, seq: int, verdict: Verdict) -> None:
        self._add(Exited(seq, verdict))

    def closed(self, seq: int) -> None:
        self._add(Closed(seq))
        # No further event could have to wait.
        self._release()

    def gap(self, gap: Gap) -> None:
        self._add(gap)

    def _add(self, event: ProcessEvent) -> None:
        self.entries.append(event)
        self._woken.set()

    def _drop_oldest(self) -> None:
        """Replace the oldest output by gaps until half of the queue is free; keep other events."""
        kept: list[ProcessEvent] = []
        entries = self.entries
        while entries and (self._size > HIGH_WATER // 2 or len(entries) > HIGH_EVENTS // 2):
            event = entries.popleft()
            if type(event) is OutputChunk:
                self._size -= len(event.chunk)
                event = Gap(event.seq, event.seq)
            # Neighbouring gaps become one: a queue of gaps must not grow without end.
            last = kept[-1] if kept else None
            if type(event) is Gap and type(last) is Gap and last.last_seq + 1 == event.first_seq:
                kept[-1] = Gap(last.first_seq, event.last_seq)
            else:
                kept.append(event)
        entries.extendleft(reversed(kept))


class LogEventStream:
    """
    The events of a process in order, up to its close; see `backends.EventStream`.

    A stream counts as a reader from the moment it is made. One that is garbage-collected before
    its end stops holding the writer.
    """

    def __init__(
        self,
        queue: _Queue,
        close: Callable[[_Queue], None],
        close_soon: Callable[[_Queue], None],
        after_seq: int,
        *,
        stream_ends: bool,
    ) -> None:
        self._queue = queue
        self._close = close
        self._close_soon = close_soon
        self._after_seq = after_seq
        self._stream_ends = stream_ends
        self._ended = False
        # Events and bytes returned since the event loop last ran other tasks.
        self._turn_events = 0
        self._turn_bytes = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProcessEvent:
        queue = self._queue
        while not self._ended:
            if not queue.entries:
                # Other tasks run meanwhile.
                self._turn_events = self._turn_bytes = 0
                try:
                    # False if the stream was closed while this call waited.
                    if not await queue.wait():
                        break
                except HoldfastError:
                    self.close()
                    raise
            elif self._turn_events >= TURN_EVENTS or self._turn_bytes >= TURN_BYTES:
                # A reader of a full queue never waits, and would keep all other tasks from
                # running.
                self._turn_events = self._turn_bytes = 0
                await asyncio.sleep(0)
                # The queue may have been ended or emptied meanwhile.
                continue
            event = queue.take()
            self._turn_events += 1
            kind = type(event)
            if kind is OutputChunk:
                self._turn_bytes += len(event.chunk)  # type: ignore[union-attr]  # its kind
            elif kind is Closed:
                self.close()
            elif kind is Gap and not queue.gaps:
                self.close()
                raise OutputLost(event.first_seq, event.last_seq)  # type: ignore[union-attr]
            elif kind is StreamEnded and not self._stream_ends:
                continue
            # `after_seq` may be ahead of the log, and a close at or before it only ends the
            # iteration. The end of a stream has no number itself.
            if event.seq > self._after_seq or kind is StreamEnded:
                return event
        raise StopAsyncIteration

    def take_output(self, most: int) -> OutputChunk | None:
        """Return the next event if it is queued output of at most `most` bytes, else None."""
        chunk = None if self._ended else self._queue.get_output(most, self._after_seq)
        if chunk is not None:
            self._turn_events += 1
            self._turn_bytes += len(chunk.chunk)
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading; a second call does nothing. A waiting reader gets the end of the stream."""
        self._ended = True
        self._close(self._queue)
        self._queue.end()

    @property
    def ready(self) -> bool:
        """True if the next event can be read without a wait."""
        return bool(self._queue.entries)

    def __del__(self) -> None:
        # The garbage collector may run in any thread and inside any method, so close later.
        if not self._ended:
            self._close_soon(self._queue)
