"""
Log of one process: numbered output, then one exit, then one close.

No event loop, no descriptor and no clock. Any number of readers share one log, and only the log
decides how much output is kept [output.seq].
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from holdfast.base.dialect import limits
from holdfast.events import Closed, Exited, Gap, LogEntry, ProcessEvent, StreamEnded, Verdict
from holdfast.wire.protocol.process import OutputChunk, OutputStream, ReadResponse

__all__ = ["MAX_RETAINED_BYTES", "MAX_RETAINED_CHUNKS", "LogListener", "OutputLog", "Retention"]

# Bytes of output kept for readers; the oldest whole chunks are dropped first.
MAX_RETAINED_BYTES = limits.OUTPUT_KEPT

# Chunks kept: a process that writes single bytes would need a hundred times the memory.
MAX_RETAINED_CHUNKS = 50_000

# Bytes of memory that a chunk takes in addition to its content: three objects and a slot.
_CHUNK_OVERHEAD = 128


class Retention(NamedTuple):
    """Limits of a log; beyond them the oldest chunks are dropped unless they are pinned."""

    max_bytes: int = MAX_RETAINED_BYTES
    max_chunks: int = MAX_RETAINED_CHUNKS


class LogListener:
    """Receiver of every new entry, in order. Its methods must not raise."""

    def output(self, chunk: OutputChunk) -> None:
        """Handle bytes that the process wrote."""

    def stream_ended(self, event: StreamEnded) -> None:
        """Handle the end of one stream; not every log gets these."""

    def exited(self, seq: int, verdict: Verdict) -> None:
        """Handle the exit of the process itself; its descendants may still write."""

    def closed(self, seq: int) -> None:
        """Handle the close, the last entry."""

    def gap(self, gap: Gap) -> None:
        """Handle numbers whose entries never reached this log."""


def _seq(chunk: OutputChunk | None) -> int:
    # Callers only pass chunks at or after `_first`, and only slots before it are empty.
    assert chunk is not None
    return chunk.seq


class OutputLog:
    """Output, exit and close of one process, numbered from 1."""

    def __init__(self, retention: Retention = Retention()) -> None:  # noqa: B008 - immutable
        self.next_seq = 1
        """Number of the next entry."""
        self.verdict: Verdict | None = None
        """Exit status and reason; None before the exit."""
        self.closed = False
        self.total_bytes = 0
        """Bytes of output since the start, kept or not."""
        self.exit_seq = 0
        """Number of the exit; 0 before it."""
        # Chunks after this number are never evicted; see `pin`.
        self._pinned_after: int | None = None
        self._max_bytes, self._max_chunks = retention
        # Chunks in order. Evicted ones leave None before `_first`, removed occasionally: shifting
        # the list at each eviction would cost more than the rest of `append`.
        self._chunks: list[OutputChunk | None] = []
        self._first = 0
        self._retained = 0
        self._stream_ends: list[StreamEnded] = []
        self._listeners: list[LogListener] = []
        # Called at the next entry, once. Separate from listeners: most logs have none, and `append`
        # then skips them with one test.
        self._wakers: list[Callable[[], None]] = []
        self._exit_callbacks: list[Callable[[], None]] = []
        # Readers that cannot keep up, and the callback that makes the process wait for them.
        self._holders: set[object] = set()
        self._hold_writer: Callable[[bool], None] | None = None

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
        # After the eviction, so that a listener that reads the log sees it within its limits.
        for listener in self._listeners:
            listener.output(chunk)
        if self._wakers:
            self._wake()

    def exit(self, verdict: Verdict) -> None:
        """Add the exit; output may still follow."""
        # The only caller is the handler of the pidfd, which is removed first.
        assert self.verdict is None
        self.verdict = verdict
        seq = self.exit_seq = self.next_seq
        self.next_seq += 1
        for listener in self._listeners:
            listener.exited(seq, verdict)
        # Taken out first: a callback may register another one.
        callbacks, self._exit_callbacks = self._exit_callbacks, []
        for callback in callbacks:
            callback()
        self._wake()

    def end_stream(self, stream: OutputStream) -> None:
        """Add the end of one stream, which has no number itself."""
        event = StreamEnded(stream, self.next_seq - 1)
        self._stream_ends.append(event)
        for listener in self._listeners:
            listener.stream_ended(event)

    def skip_to(self, seq: int) -> None:
        """Add a gap up to `seq`: the entries between were lost on their way from a server."""
        gap = Gap(self.next_seq, seq - 1)
        # The caller has seen a number above the expected one.
        assert gap.first_seq <= gap.last_seq
        self.next_seq = seq
        for listener in self._listeners:
            listener.gap(gap)
        self._wake()

    def close(self) -> None:
        """Add the close; nothing follows it."""
        # The owner checks `closed` first.
        assert not self.closed
        self.closed = True
        # Without a cycle the process is freed at once, and not by the garbage collector.
        self._hold_writer = None
        seq = self.next_seq
        self.next_seq += 1
        for listener in self._listeners:
            listener.closed(seq)
        self._wake()

    def record(self, event: ProcessEvent) -> None:
        """Add an event of another log; it gets the next number here, after a gap as well."""
        match event:
            case OutputChunk():
                self.append(event.stream, event.chunk)
            case Exited():
                self.exit(event.verdict)
            case Closed():
                self.close()
            case Gap():
                self.skip_to(event.last_seq + 1)
            case StreamEnded():
                self.end_stream(event.stream)

    def pin(self, after_seq: int | None) -> None:
        """
        Keep all chunks after a number, even beyond the limits; None applies the limits again.

        For an owner that bounds the output in another way: it stops reading from the process.
        """
        self._pinned_after = after_seq
        self._evict()

    def drop_output(self) -> None:
        """Drop all output that is not pinned, and the rest as soon as it is not pinned either."""
        self._max_bytes = self._max_chunks = 0
        self._evict()

    def _evict(self) -> None:
        # A chunk larger than the limit evicts itself too. Its number stays used: readers find
        # a gap in `seq`, never a truncated chunk.
        while self._first < len(self._chunks) and (
            self._retained > self._max_bytes or len(self._chunks) - self._first > self._max_chunks
        ):
            chunk = self._chunks[self._first]
            # Only slots before `_first` are empty.
            assert chunk is not None
            if self._pinned_after is not None and chunk.seq > self._pinned_after:
                break
            self._retained -= len(chunk.chunk)
            self._chunks[self._first] = None
            self._first += 1
        # Cut off when half of the list is empty: amortised constant time per chunk.
        if self._first > 64 and self._first * 2 > len(self._chunks):
            del self._chunks[: self._first]
            self._first = 0

    # -- waiting for readers

    def when_held(self, hold_writer: Callable[[bool], None]) -> None:
        """Call `hold_writer` with True when the writer has to wait, and with False afterwards."""
        self._hold_writer = hold_writer

    def hold(self, holder: object) -> None:
        """
        Make the writer wait, for a reader that cannot keep up.

        Output that a process wrote before its exit is logged all the same.
        """
        self._holders.add(holder)
        if self._hold_writer is not None:
            self._hold_writer(True)

    def release(self, holder: object) -> None:
        """Let the writer continue unless another holder is left; does nothing without a hold."""
        self._holders.discard(holder)
        if self._hold_writer is not None and not self._holders:
            self._hold_writer(False)

    @property
    def is_held(self) -> bool:
        """True while the writer has to wait."""
        return bool(self._holders)

    # -- reading

    @property
    def retained_bytes(self) -> int:
        """Bytes of output that are kept at the moment."""
        return self._retained

    @property
    def memory(self) -> int:
        """Bytes of memory that the kept output takes."""
        return self._retained + _CHUNK_OVERHEAD * (len(self._chunks) - self._first)

    @property
    def has_pinned_output(self) -> bool:
        """True if there are entries after the pin, which the client has not acknowledged."""
        return self._pinned_after is not None and self._pinned_after < self.next_seq - 1

    def read(self, after_seq: int = 0, max_bytes: int | None = None) -> ReadResponse:
        """Return the retained chunks after a number and the state, as `process/read` does."""
        at = bisect_right(self._chunks, after_seq, lo=self._first, key=_seq)
        if max_bytes is None:
            chunks = self._chunks[at:]
        else:
            end = at
            size = 0
            while end < len(self._chunks):
                chunk = self._chunks[end]
                # Only slots before `_first` are empty.
                assert chunk is not None
                size += len(chunk.chunk)
                # The first chunk is returned whatever its size, or a reader would be stuck.
                if size > max_bytes and end > at:
                    break
                end += 1
            chunks = self._chunks[at:end]
        # With a byte limit, the reader continues after the last chunk that it got, not at the end.
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
        """Return all output that is kept, oldest first."""
        return [chunk for chunk in self._chunks[self._first :] if chunk is not None]

    def entries(self, after_seq: int = 0) -> list[ProcessEvent]:
        """Return all entries after a number, with a `Gap` for those that were dropped."""
        at = bisect_right(self._chunks, after_seq, lo=self._first, key=_seq)
        numbered: list[LogEntry] = [c for c in self._chunks[at:] if c is not None]
        if self.verdict is not None and self.exit_seq > after_seq:
            # Output may follow the exit, so its position is among the chunks.
            index = bisect_right(numbered, self.exit_seq, key=lambda entry: entry.seq)
            numbered.insert(index, Exited(self.exit_seq, self.verdict))
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
        """Return True if a read after that number answers at once, whatever its `wait`."""
        if self.closed or (self.verdict is not None and after_seq < self.next_seq - 1):
            return True
        last = self._chunks[-1] if len(self._chunks) > self._first else None
        return last is not None and last.seq > after_seq

    # -- watching

    def when_exited(self, callback: Callable[[], None]) -> None:
        """Call `callback` once at the exit; immediately if the process has exited."""
        if self.verdict is None:
            self._exit_callbacks.append(callback)
        else:
            callback()

    def forget_exit_callback(self, callback: Callable[[], None]) -> None:
        """Undo `when_exited`; does nothing if the callback was called already."""
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
        """Undo `wake_once`; does nothing if the waker was called already."""
        if waker in self._wakers:
            self._wakers.remove(waker)

    def _wake(self) -> None:
        # Taken out first: a waker may register again, for the next entry.
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()
