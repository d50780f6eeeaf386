"""The wait times of calls, and a clock for them that stops while the user is asked."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from holdfast.base.dialect import limits

__all__ = ["GRACE", "LONGEST_POLL", "PausableClock", "exec_wait", "write_wait"]

GRACE = limits.TOOL_GRACE
"""Seconds after a start in which an exit is reported immediately, before any clock starts."""

LONGEST_POLL = limits.TOOL_LONGEST_POLL
"""Default for the most seconds that an empty `write_stdin` may wait."""

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
        yield_time_ms: The time requested by the model.
        poll: True if the call sends no input.
        longest_poll: The configured maximum for polls; at least 5 s.
    """
    wanted = max(yield_time_ms / 1000, _SHORTEST)
    if poll:
        return min(max(wanted, _SHORTEST_POLL), max(longest_poll, _SHORTEST_POLL))
    return min(wanted, _LONGEST)


class PausableClock:
    """
    Waits for events with time limits that stop while the clock is paused.

    Several callers may pause it at once; it continues when the last one resumes.
    """

    def __init__(self, longest: float | None = None) -> None:
        """
        Args:
            longest: Seconds after which every wait ends, even while the clock is paused.
        """
        self._longest = longest
        self._pauses = 0
        self._runs = asyncio.Event()
        self._runs.set()
        # Limits of current waits, with deadlines by the event loop's clock.
        self._limits: dict[asyncio.Timeout, float] = {}
        self._paused_at = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all time limits in the block; afterwards they continue with their remaining time."""
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
        """Return the limits that have not expired; an expired wait may not have noticed yet."""
        return [limit for limit in self._limits if not limit.expired()]

    async def _running(self) -> None:
        """Wait until the clock runs; it may be paused again before the task resumes."""
        while self._pauses:
            await self._runs.wait()

    async def wait(self, event: asyncio.Event, limit: float) -> bool:
        """
        Wait until an event is set, for at most `limit` seconds of running time.

        An event set during a pause is reported after it.

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
        Await `work`, and cancel it after `limit` seconds of running time.

        The end of work during a pause is reported after it.
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
    """Await `work`, and cancel it after `limit` seconds, even if the clock is paused."""
    whole = asyncio.timeout(limit)
    try:
        async with whole:
            await work
    except TimeoutError:
        if not whole.expired():
            raise
