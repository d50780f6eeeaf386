"""The times that calls wait, and a clock for them that stops while a person is asked something."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from holdfast.base.dialect import limits

__all__ = ["GRACE", "LONGEST_POLL", "PausableClock", "exec_wait", "write_wait"]

GRACE = limits.TOOL_GRACE
"""Seconds after a start in which an exit is reported at once, before any clock runs."""

LONGEST_POLL = limits.TOOL_LONGEST_POLL
"""Seconds an empty `write_stdin` may wait, unless told otherwise."""

_SHORTEST = limits.TOOL_SHORTEST_WAIT
_SHORTEST_POLL = limits.TOOL_SHORTEST_POLL
_LONGEST = limits.TOOL_LONGEST_WAIT


def exec_wait(yield_time_ms: int) -> float:
    """Return the seconds that `exec_command` waits."""
    return min(max(yield_time_ms / 1000, _SHORTEST), _LONGEST)


def write_wait(yield_time_ms: int, *, poll: bool, longest_poll: float) -> float:
    """
    Return the seconds that `write_stdin` waits.

    Args:
        yield_time_ms: What the model asked for.
        poll: True if it sends no input.
        longest_poll: The configured maximum of a poll; never below 5 s.
    """
    wanted = max(yield_time_ms / 1000, _SHORTEST)
    if poll:
        return min(max(wanted, _SHORTEST_POLL), max(longest_poll, _SHORTEST_POLL))
    return min(wanted, _LONGEST)


class PausableClock:
    """
    Waits for events with time limits that do not run while the clock is paused.

    Any number of callers may pause it at once; it runs again when the last one resumes.
    """

    def __init__(self, longest: float | None = None) -> None:
        """
        Args:
            longest: Seconds after which every wait is over, also while the clock is paused.
        """
        self._longest = longest
        self._pauses = 0
        self._runs = asyncio.Event()
        self._runs.set()
        # Limits of the waits under way, with their deadlines by the clock of the loop.
        self._limits: dict[asyncio.Timeout, float] = {}
        self._paused_at = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all time limits in the block; they go on behind it with what they had left."""
        loop = asyncio.get_running_loop()
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = loop.time()
            self._runs.clear()
            for limit in self._running_limits():
                limit.reschedule(None)
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                length = loop.time() - self._paused_at
                for limit in self._running_limits():
                    self._limits[limit] += length
                    limit.reschedule(self._limits[limit])
                self._runs.set()

    def _running_limits(self) -> list[asyncio.Timeout]:
        """Return the limits that are not over: a wait may still have to learn that it is."""
        return [limit for limit in self._limits if not limit.expired()]

    async def _running(self) -> None:
        """Wait until the clock runs; it may be paused again before a task comes to its turn."""
        while self._pauses:
            await self._runs.wait()

    async def wait(self, event: asyncio.Event, limit: float) -> bool:
        """
        Wait until an event is set, at most `limit` seconds of running time.

        An event that is set during a pause is reported after it.

        Returns:
            True if the event is set.
        """
        if self._pauses:
            await _within(self._running(), self._longest)
        if event.is_set():
            return True
        if limit <= 0:
            return False
        await self.run(event.wait(), limit)
        return event.is_set()

    async def run(self, work: Awaitable[object], limit: float) -> None:
        """
        Do some work for at most `limit` seconds of running time; then it is cancelled.

        Work that ends during a pause is reported after it.
        """
        if self._longest is None:
            await self._run(work, limit)
        else:
            await _within(self._run(work, limit), self._longest)

    async def _run(self, work: Awaitable[object], limit: float) -> None:
        timeout = asyncio.timeout(limit)
        try:
            async with timeout:
                deadline = timeout.when()
                # The timeout was created with a limit.
                assert deadline is not None
                if self._pauses:
                    timeout.reschedule(None)
                    deadline = self._paused_at + limit
                self._limits[timeout] = deadline
                try:
                    await work
                    await self._running()
                finally:
                    del self._limits[timeout]
        except TimeoutError:
            if not timeout.expired():
                raise


async def _within(work: Awaitable[object], limit: float | None) -> None:
    """Do some work for at most so many seconds of any time; then it is cancelled."""
    whole = asyncio.timeout(limit)
    try:
        async with whole:
            await work
    except TimeoutError:
        if not whole.expired():
            raise
