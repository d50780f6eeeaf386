"""
The log of one process: numbered output, then one exit, then one close.

Pure: no event loop, no descriptor and no clock. Readers are plural and cheap, and
what is kept is decided here alone [output.seq].
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from holdfast.events import Closed, Exited, Gap, LogEntry, ProcessEvent, StreamEnded, Verdict
from holdfast.protocol.process import OutputChunk, OutputStream, ReadResponse

__all__ = ["MAX_RETAINED_BYTES", "MAX_RETAINED_CHUNKS", "LogListener", "OutputLog", "Retention"]

MAX_RETAINED_BYTES = 1 << 20
"""Bytes of output kept for readers; the oldest whole chunks go first."""

MAX_RETAINED_CHUNKS = 50_000
"""Chunks kept, for processes that write a byte at a time."""


class Retention(NamedTuple):
    """Limits of a log; beyond them the oldest chunks are dropped unless they are pinned."""

    max_bytes: int = MAX_RETAINED_BYTES
    max_chunks: int = MAX_RETAINED_CHUNKS


class LogListener:
    """Told of every entry as it is made, in order. A method must not raise."""

    def output(self, chunk: OutputChunk) -> None:
        """Take bytes that the process wrote."""

    def stream_ended(self, event: StreamEnded) -> None:
        """Take the end of one stream; not every log is told of it."""

    def exited(self, seq: int, verdict: Verdict) -> None:
        """Take the exit of the process itself; its children may still write."""

    def closed(self, seq: int) -> None:
        """Take the close, the last entry."""

    def gap(self, gap: Gap) -> None:
        """Take numbers whose events never reached this log."""


def _seq(chunk: OutputChunk | None) -> int:
    # Only slots before `_first` are emptied.
    assert chunk is not None
    return chunk.seq


class OutputLog:
    """Output and end of one process, under one numbering from 1."""

    def __init__(self, retention: Retention = Retention()) -> None:  # noqa: B008 - immutable
        self.next_seq = 1
        """The number the next entry will get."""
        self.verdict: Verdict | None = None
        """Set by the exit."""
        self.closed = False
        self.total_bytes = 0
        """Bytes of output since the start, whether they are kept or not."""
        self.exit_seq = 0
        """The number of the exit; 0 before it."""
        self._pinned_after: int | None = None
        self._max_bytes, self._max_chunks = retention
        # Chunks in order; those before `_first` were evicted and left a hole
        # that is cut off now and then, so that eviction costs nothing.
        self._chunks: list[OutputChunk | None] = []
        self._first = 0
        self._retained = 0
        self._stream_ends: list[StreamEnded] = []
        self._listeners: list[LogListener] = []
        self._wakers: list[Callable[[], None]] = []
        self._exit_callbacks: list[Callable[[], None]] = []

    # -- writing

    def append(self, stream: OutputStream, data: bytes) -> None:
        """Add output."""
        chunk = OutputChunk(seq=self.next_seq, stream=stream, chunk=data)
        self.next_seq += 1
        self._chunks.append(chunk)
        self._retained += len(data)
        self.total_bytes += len(data)
        if self._retained > self._max_bytes or len(self._chunks) - self._first > self._max_chunks:
            self._evict()
        for listener in self._listeners:
            listener.output(chunk)
        if self._wakers:
            self._wake()

    def exit(self, verdict: Verdict) -> None:
        """Add the exit; output may still follow."""
        # A process exits once.
        assert self.verdict is None
        self.verdict = verdict
        seq = self.exit_seq = self.next_seq
        self.next_seq += 1
        for listener in self._listeners:
            listener.exited(seq, verdict)
        callbacks, self._exit_callbacks = self._exit_callbacks, []
        for callback in callbacks:
            callback()
        self._wake()

    def end_stream(self, stream: OutputStream) -> None:
        """Note that nothing more comes on one stream; takes no number."""
        event = StreamEnded(stream, self.next_seq - 1)
        self._stream_ends.append(event)
        for listener in self._listeners:
            listener.stream_ended(event)

    def skip_to(self, seq: int) -> None:
        """Leave out the numbers before `seq`: their events were lost on the way here."""
        gap = Gap(self.next_seq, seq - 1)
        # Numbers only grow.
        assert gap.first_seq <= gap.last_seq
        self.next_seq = seq
        for listener in self._listeners:
            listener.gap(gap)
        self._wake()

    def close(self) -> None:
        """Add the close; nothing follows it."""
        # And it is closed once.
        assert not self.closed
        self.closed = True
        seq = self.next_seq
        self.next_seq += 1
        for listener in self._listeners:
            listener.closed(seq)
        self._wake()

    def pin(self, after_seq: int | None) -> None:
        """
        Keep all chunks after a number, beyond the limits; `None` keeps no more than those.

        For an owner that bounds in another way how much that can be: it holds the writer.
        """
        self._pinned_after = after_seq
        self._evict()

    def _evict(self) -> None:
        # A chunk above the limit evicts itself too: its number is spent, and
        # readers meet a gap in `seq` rather than a chunk that was cut.
        while self._first < len(self._chunks) and (
            self._retained > self._max_bytes or len(self._chunks) - self._first > self._max_chunks
        ):
            chunk = self._chunks[self._first]
            # Only slots before `_first` are emptied.
            assert chunk is not None
            if self._pinned_after is not None and chunk.seq > self._pinned_after:
                break
            self._retained -= len(chunk.chunk)
            self._chunks[self._first] = None
            self._first += 1
        if self._first > 64 and self._first * 2 > len(self._chunks):
            del self._chunks[: self._first]
            self._first = 0

    # -- reading

    @property
    def retained_bytes(self) -> int:
        """How much output is kept at the moment."""
        return self._retained

    @property
    def has_pinned_output(self) -> bool:
        """True if its owner has pinned entries: they may not have arrived yet."""
        return self._pinned_after is not None and self._pinned_after < self.next_seq - 1

    def read(self, after_seq: int = 0, max_bytes: int | None = None) -> ReadResponse:
        """The retained chunks after a number, and the state beside them."""
        at = bisect_right(self._chunks, after_seq, lo=self._first, key=_seq)
        if max_bytes is None:
            chunks = self._chunks[at:]
        else:
            end = at
            size = 0
            while end < len(self._chunks):
                chunk = self._chunks[end]
                # Only slots before `_first` are emptied.
                assert chunk is not None
                size += len(chunk.chunk)
                # The first one goes out whatever its size, or a reader would be stuck.
                if size > max_bytes and end > at:
                    break
                end += 1
            chunks = self._chunks[at:end]
        paged = max_bytes is not None and chunks
        verdict = self.verdict
        return ReadResponse(
            chunks=chunks,  # type: ignore[arg-type]  # no hole at or after `_first`
            next_seq=_seq(chunks[-1]) + 1 if paged else self.next_seq,
            exited=verdict is not None,
            exit_code=None if verdict is None else verdict.exit_code,
            closed=self.closed,
            sandbox_denied=verdict is not None and verdict.denial is not None,
        )

    def retained(self) -> list[OutputChunk]:
        """All output that is kept, oldest first."""
        return [chunk for chunk in self._chunks[self._first :] if chunk is not None]

    def entries(self, after_seq: int = 0) -> list[ProcessEvent]:
        """Return everything retained after a number; a `Gap` stands for what is not."""
        at = bisect_right(self._chunks, after_seq, lo=self._first, key=_seq)
        numbered: list[LogEntry] = [c for c in self._chunks[at:] if c is not None]
        if self.verdict is not None and self.exit_seq > after_seq:
            place = bisect_right(numbered, self.exit_seq, key=lambda entry: entry.seq)
            numbered.insert(place, Exited(self.exit_seq, self.verdict))
        if self.closed and self.next_seq - 1 > after_seq:
            numbered.append(Closed(self.next_seq - 1))
        entries: list[ProcessEvent] = []
        ends = [end for end in self._stream_ends if end.seq >= after_seq]
        last = after_seq
        for entry in numbered:
            while ends and ends[0].seq <= last:
                entries.append(ends.pop(0))
            if entry.seq > last + 1:
                entries.append(Gap(last + 1, entry.seq - 1))
            entries.append(entry)
            last = entry.seq
        if self.next_seq - 1 > last:
            entries.append(Gap(last + 1, self.next_seq - 1))
        return entries + ends

    def has_news(self, after_seq: int = 0) -> bool:
        """Whether a read after that number answers at once, however long it may wait."""
        if self.closed or (self.verdict is not None and after_seq < self.next_seq - 1):
            return True
        last = self._chunks[-1] if len(self._chunks) > self._first else None
        return last is not None and last.seq > after_seq

    # -- watching

    def when_exited(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the exit, once; at once if that was before."""
        if self.verdict is None:
            self._exit_callbacks.append(callback)
        else:
            callback()

    def forget_exit_callback(self, callback: Callable[[], None]) -> None:
        """Undo `when_exited`; harmless if it was called already."""
        if callback in self._exit_callbacks:
            self._exit_callbacks.remove(callback)

    def subscribe(self, listener: LogListener) -> None:
        """Notify `listener` of all entries from now on."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: LogListener) -> None:
        """Undo `subscribe`."""
        self._listeners.remove(listener)

    def wake_once(self, waker: Callable[[], None]) -> None:
        """Call `waker` after the next entry, once."""
        self._wakers.append(waker)

    def forget_waker(self, waker: Callable[[], None]) -> None:
        """Undo `wake_once`; harmless if it was called already."""
        if waker in self._wakers:
            self._wakers.remove(waker)

    def _wake(self) -> None:
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()
