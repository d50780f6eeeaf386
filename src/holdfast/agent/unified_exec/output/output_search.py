"""
Searches the output of one call as it comes.

A search that is certain to be short is done in the event loop, all others in a thread. Output that
comes faster than every 10 ms is searched together: each byte of a stream of single bytes would
otherwise cost a search of all that a match may reach back to.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from holdfast.agent.unified_exec.output.search_thread import SearchThread
from holdfast.agent.unified_exec.output.selection import Selected, Selector
from holdfast.agent.unified_exec.waiting.stream_search import StreamSearch

__all__ = ["OutputSearch"]

# Seconds between two searches, while less than a piece waits.
_INTERVAL = 0.01

# Bytes that are handed to the thread at once; between two pieces it is seen how it goes.
_PIECE = 64 << 10

# Bytes that wait, from which on the command is not read.
_ROOM = 256 << 10


class OutputSearch:
    """Hands output to a selector and to the search of a stream, in order."""

    def __init__(
        self,
        thread: SearchThread,
        selector: Selector | None,
        stream: StreamSearch | None,
        searched: Callable[[], None],
    ) -> None:
        """
        Args:
            thread: Where long searches are done.
            selector: Gets all output, if there is one.
            stream: Gets all output until it has a match, if there is one.
            searched: Called in the event loop after each search.
        """
        self._thread = thread
        self._selector = selector
        self._stream = stream
        self._searched = searched
        self._loop = asyncio.get_running_loop()
        # Output, and numbers of bytes that are left out before the next one.
        self._steps: deque[bytes | int] = deque()
        self._size = 0
        self._running: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_search = 0.0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._closed = False

    def feed(self, data: bytes) -> None:
        """Take output; it is searched now or within 10 ms, or as soon as the thread is free."""
        if self._closed or not data:
            return
        self._steps.append(data)
        self._size += len(data)
        if self._size > _ROOM:
            self._has_room.clear()
        self._schedule()

    def leave_out(self, size: int) -> None:
        """Note that so many bytes before the next output are not kept for this call."""
        self._steps.append(size)

    async def room(self) -> None:
        """Wait until more output may come."""
        await self._has_room.wait()

    async def finish(self) -> Selected | None:
        """Search what is left, and return the selected lines, if lines are selected."""
        while self._steps or self._running is not None:
            self._search_next()
            if self._running is not None:
                await asyncio.wait([self._running])
        self.close()
        if self._failure is not None:
            raise self._failure
        if self._selector is None:
            return None
        if self._selector.is_quick(0, ends=True):
            return self._selector.selected()
        return await self._thread.run(self._selector.selected)

    def close(self) -> None:
        """Search no more; harmless a second time."""
        self._closed = True
        self._steps.clear()
        self._size = 0
        self._has_room.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._running is not None or self._closed or not self._steps:
            return
        if self._size >= _PIECE or self._loop.time() >= self._next_search:
            self._search_next()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_search, self._search_next)

    def _search_next(self) -> None:
        """Search the next piece of what waits, here or in the thread."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running is not None or not self._steps:
            return
        steps: list[bytes | int] = []
        size = 0
        while self._steps and size < _PIECE:
            step = self._steps.popleft()
            steps.append(step)
            size += len(step) if isinstance(step, bytes) else 0
        self._size -= size
        if self._is_quick(size):
            self._search(steps)
            self._after()
        else:
            self._running = self._thread.run(lambda: self._search(steps))
            self._running.add_done_callback(self._done)

    def _is_quick(self, size: int) -> bool:
        return (self._selector is None or self._selector.is_quick(size)) and (
            self._stream is None or self._stream.is_quick(size)
        )

    def _search(self, steps: list[bytes | int]) -> None:
        for step in steps:
            if isinstance(step, int):
                if self._selector is not None:
                    self._selector.leave_out(step)
                continue
            if self._selector is not None:
                self._selector.feed(step)
            if self._stream is not None:
                self._stream.feed(step)

    def _done(self, running: asyncio.Future[None]) -> None:
        self._running = None
        if running.cancelled():
            # The tools were closed.
            self.close()
            return
        if running.exception() is not None:
            self._failure = running.exception()
            self.close()
            return
        self._after()

    def _after(self) -> None:
        self._next_search = self._loop.time() + _INTERVAL
        if self._size <= _ROOM:
            self._has_room.set()
        self._searched()
        self._schedule()
