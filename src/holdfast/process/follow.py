"""A reader of a log that loses nothing, and makes the writer wait when it cannot keep up."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from holdfast.errors import HoldfastError
from holdfast.events import Closed, Exited, ProcessEvent, Verdict
from holdfast.process.output import OutputLog
from holdfast.protocol.process import OutputChunk

__all__ = ["Follower", "follow"]

HIGH_WATER = 1 << 20
"""Bytes a reader may fall behind before the writer has to wait."""

LOW_WATER = 256 << 10
"""Bytes at which it may go on."""


class Follower:
    """One such reader. It is a listener of the log, and what holds its writer up."""

    def __init__(
        self,
        log: OutputLog,
        hold: Callable[[object], None],
        release: Callable[[object], None],
    ) -> None:
        self._log = log
        self._hold = hold
        self._release = release
        self._queue: deque[ProcessEvent] = deque(log.entries())
        self._behind = 0
        self._held = False
        self._woken = asyncio.Event()
        self._failure: HoldfastError | None = None
        log.subscribe(self)

    def stop(self) -> None:
        """Read no more, and hold nobody up."""
        self._log.unsubscribe(self)
        if self._held:
            self._release(self)

    def fail(self, error: HoldfastError) -> None:
        """Nothing more will come: raise this once everything before it was read."""
        self._failure = error
        self._woken.set()

    async def events(self) -> AsyncIterator[ProcessEvent]:
        """Everything up to the close."""
        while True:
            while self._queue:
                event = self._queue.popleft()
                if type(event) is OutputChunk:
                    self._behind -= len(event.chunk)
                    if self._held and self._behind <= LOW_WATER:
                        self._held = False
                        self._release(self)
                yield event
                if type(event) is Closed:
                    return
            if self._failure is not None:
                raise self._failure
            self._woken.clear()
            await self._woken.wait()

    # -- LogListener

    def output(self, chunk: OutputChunk) -> None:
        self._queue.append(chunk)
        self._behind += len(chunk.chunk)
        if self._behind > HIGH_WATER and not self._held:
            self._held = True
            self._hold(self)
        self._woken.set()

    def exited(self, seq: int, verdict: Verdict) -> None:
        self._queue.append(Exited(seq, verdict))
        self._woken.set()

    def closed(self, seq: int) -> None:
        self._queue.append(Closed(seq))
        self._woken.set()


async def follow(follower: Follower) -> AsyncIterator[ProcessEvent]:
    """The events of a follower, which is stopped when the caller has enough."""
    try:
        async for event in follower.events():
            yield event
    finally:
        follower.stop()
