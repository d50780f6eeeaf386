"""
The log of one process: numbered output, then one exit, then one close.

Pure: no event loop, no descriptor and no clock. Readers are plural and cheap, and
what is kept is decided here alone (exec-server spec 8, 9, 13).
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import Protocol

from holdfast.events import Closed, Exited, ProcessEvent, Verdict
from holdfast.protocol.process import OutputChunk, OutputStream, ReadResponse

__all__ = ["MAX_RETAINED_BYTES", "MAX_RETAINED_CHUNKS", "LogListener", "OutputLog"]

MAX_RETAINED_BYTES = 1 << 20
"""Bytes of output kept for readers; the oldest whole chunks go first."""

MAX_RETAINED_CHUNKS = 50_000
"""Chunks kept, for processes that write a byte at a time."""


class LogListener(Protocol):
    """Told of every entry as it is made, in order. It must not raise."""

    def output(self, chunk: OutputChunk) -> None:
        """The process wrote something."""

    def exited(self, seq: int, verdict: Verdict) -> None:
        """The process itself is gone; its children may still write."""

    def closed(self, seq: int) -> None:
        """Nothing more will come."""


def _seq(chunk: OutputChunk | None) -> int:
    assert chunk is not None  # only slots before `_first` are emptied
    return chunk.seq


class OutputLog:
    """What a process wrote and how it ended, under one numbering from 1."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_RETAINED_BYTES,
        max_chunks: int = MAX_RETAINED_CHUNKS,
    ) -> None:
        self.next_seq = 1
        """The number the next entry will get."""
        self.verdict: Verdict | None = None
        """Set by the exit."""
        self.closed = False
        self._exit_seq = 0
        self._max_bytes = max_bytes
        self._max_chunks = max_chunks
        # Chunks in order; those before `_first` were evicted and left a hole
        # that is cut off now and then, so that eviction costs nothing.
        self._chunks: list[OutputChunk | None] = []
        self._first = 0
        self._retained = 0
        self._listeners: list[LogListener] = []
        self._wakers: list[Callable[[], None]] = []

    # -- writing

    def append(self, stream: OutputStream, data: bytes) -> None:
        """Add output."""
        chunk = OutputChunk(seq=self.next_seq, stream=stream, chunk=data)
        self.next_seq += 1
        self._chunks.append(chunk)
        self._retained += len(data)
        if self._retained > self._max_bytes or len(self._chunks) - self._first > self._max_chunks:
            self._evict()
        for listener in self._listeners:
            listener.output(chunk)
        if self._wakers:
            self._wake()

    def exit(self, verdict: Verdict) -> None:
        """Add the exit; output may still follow."""
        assert self.verdict is None  # a process exits once
        self.verdict = verdict
        seq = self._exit_seq = self.next_seq
        self.next_seq += 1
        for listener in self._listeners:
            listener.exited(seq, verdict)
        self._wake()

    def close(self) -> None:
        """Add the close; nothing follows it."""
        assert not self.closed  # and it is closed once
        self.closed = True
        seq = self.next_seq
        self.next_seq += 1
        for listener in self._listeners:
            listener.closed(seq)
        self._wake()

    def _evict(self) -> None:
        # A chunk above the limit evicts itself too: its number is spent, and
        # readers meet a gap in `seq` rather than a chunk that was cut.
        while self._first < len(self._chunks) and (
            self._retained > self._max_bytes or len(self._chunks) - self._first > self._max_chunks
        ):
            chunk = self._chunks[self._first]
            assert chunk is not None  # only slots before `_first` are emptied
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
                assert chunk is not None  # only slots before `_first` are emptied
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

    def entries(self) -> list[ProcessEvent]:
        """All that is retained, the exit and the close in their places."""
        entries: list[ProcessEvent] = [c for c in self._chunks[self._first :] if c is not None]
        if self.verdict is not None:
            at = bisect_right(entries, self._exit_seq, key=lambda entry: entry.seq)
            entries.insert(at, Exited(self._exit_seq, self.verdict))
        if self.closed:
            entries.append(Closed(self.next_seq - 1))
        return entries

    def has_news(self, after_seq: int = 0) -> bool:
        """Whether a read after that number answers at once, however long it may wait."""
        if self.closed or (self.verdict is not None and after_seq < self.next_seq - 1):
            return True
        last = self._chunks[-1] if len(self._chunks) > self._first else None
        return last is not None and last.seq > after_seq

    # -- watching

    def subscribe(self, listener: LogListener) -> None:
        """Tell `listener` of all entries from now on."""
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
