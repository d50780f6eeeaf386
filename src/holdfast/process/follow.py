"""
Readers of a log that lose nothing, and make the writer wait when they cannot keep up.

A log keeps a bounded tail. Whoever wants every byte has to be there from the
start, so the first reader of a process exists before anybody asks for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from holdfast.errors import HoldfastError
from holdfast.events import Closed, Exited, ProcessEvent, Verdict
from holdfast.process.output import OutputLog
from holdfast.protocol.process import OutputChunk

__all__ = ["CLAIM_TIME", "HIGH_WATER", "LOW_WATER", "EventStream", "Followers"]

HIGH_WATER = 1 << 20
"""Bytes a reader may fall behind before the writer has to wait."""

LOW_WATER = 256 << 10
"""Bytes at which the writer may go on."""

CLAIM_TIME = 0.1
"""
Seconds that a writer waits for somebody to ask for the first reader.

Only once that has fallen behind; and without a claim there is nobody to wait for.
"""


class Followers:
    """All complete readers of one log."""

    def __init__(
        self,
        log: OutputLog,
        hold: Callable[[object], None],
        release: Callable[[object], None],
    ) -> None:
        """`hold` makes the writer wait on behalf of a reader, `release` takes that back."""
        self._log = log
        self._hold = hold
        self._release = release
        self._failure: HoldfastError | None = None
        self._open: set[_Queue] = set()
        self._unclaimed: _Queue | None = self._follow()

    def stream(self) -> "EventStream":
        """A reader that begins with the first event, or with what is retained if that was had."""
        queue, self._unclaimed = self._unclaimed or self._follow(), None
        return EventStream(queue, self._stop)

    def fail(self, error: HoldfastError) -> None:
        """Nothing more will come: readers get this once they have read everything before it."""
        self._failure = error
        for queue in self._open:
            queue.fail(error)

    def _follow(self) -> "_Queue":
        queue = _Queue(self._log.entries(), self._behind, self._caught_up)
        if self._failure is not None:
            queue.fail(self._failure)
        self._open.add(queue)
        self._log.subscribe(queue)
        return queue

    def _stop(self, queue: "_Queue") -> None:
        if queue in self._open:
            self._open.discard(queue)
            self._log.unsubscribe(queue)
            self._release(queue)

    def _behind(self, queue: "_Queue") -> None:
        self._hold(queue)
        if queue is self._unclaimed:
            asyncio.get_running_loop().call_later(CLAIM_TIME, self._drop_unclaimed)

    def _caught_up(self, queue: "_Queue") -> None:
        self._release(queue)

    def _drop_unclaimed(self) -> None:
        queue, self._unclaimed = self._unclaimed, None
        if queue is not None:
            self._stop(queue)


class _Queue:
    """What one reader has still to read. It listens to the log."""

    def __init__(
        self,
        entries: list[ProcessEvent],
        behind: Callable[["_Queue"], None],
        caught_up: Callable[["_Queue"], None],
    ) -> None:
        self._entries: deque[ProcessEvent] = deque(entries)
        self._behind = behind
        self._caught_up = caught_up
        self._size = sum(len(entry.chunk) for entry in entries if type(entry) is OutputChunk)
        self._full = False
        self._failure: HoldfastError | None = None
        self._woken = asyncio.Event()

    async def get(self) -> ProcessEvent:
        while not self._entries:
            if self._failure is not None:
                raise self._failure
            self._woken.clear()
            await self._woken.wait()
        event = self._entries.popleft()
        if type(event) is OutputChunk:
            self._size -= len(event.chunk)
            if self._full and self._size <= LOW_WATER:
                self._full = False
                self._caught_up(self)
        return event

    def fail(self, error: HoldfastError) -> None:
        self._failure = error
        self._woken.set()

    # -- LogListener

    def output(self, chunk: OutputChunk) -> None:
        self._add(chunk)
        self._size += len(chunk.chunk)
        if self._size > HIGH_WATER and not self._full:
            self._full = True
            self._behind(self)

    def exited(self, seq: int, verdict: Verdict) -> None:
        self._add(Exited(seq, verdict))

    def closed(self, seq: int) -> None:
        self._add(Closed(seq))

    def _add(self, event: ProcessEvent) -> None:
        self._entries.append(event)
        self._woken.set()


class EventStream:
    """
    The events of a process in order, up to its close.

    It counts as reading from the moment it is made. One that is dropped before its
    end holds nobody up any more.
    """

    def __init__(self, queue: _Queue, stop: Callable[[_Queue], None]) -> None:
        self._queue = queue
        self._stop = stop
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProcessEvent:
        if self._ended:
            raise StopAsyncIteration
        try:
            event = await self._queue.get()
        except HoldfastError:
            self.close()
            raise
        if type(event) is Closed:
            self.close()
        return event

    def close(self) -> None:
        """Read no more."""
        self._ended = True
        self._stop(self._queue)

    def __del__(self) -> None:
        self._stop(self._queue)
