"""
Detects when a quiet session waits for input, with one check per quiet period.

A check is cheap but not free, and takes a request if the process is remote. So it is made when the
session has been quiet for a while, and not repeated before there is activity.
"""

import asyncio
from collections.abc import Callable

from holdfast.backends import ExecProcess
from holdfast.base.errors import HoldfastError
from holdfast.events import WaitingFor

__all__ = ["QUIET", "InputWatch"]

QUIET = 0.4
"""Seconds without output before a session is checked."""

_WANTED = frozenset({WaitingFor.LINE, WaitingFor.PASSWORD, WaitingFor.KEY})


class InputWatch:
    """
    Checks a process on a terminal whenever it has been quiet for a while.

    Call `activity` on output, on input, and at the start of a call that needs the answer. Call
    `close` at the end. It needs a running event loop and starts immediately.
    """

    def __init__(
        self,
        process: ExecProcess,
        on_found: Callable[[WaitingFor], None] | None = None,
        *,
        quiet: float = QUIET,
    ) -> None:
        """
        Args:
            process: The process, whose `waiting_for` is called.
            on_found: Called with `LINE`, `PASSWORD` or `KEY`, once per quiet period.
            quiet: Seconds without output before a check.
        """
        self.found: WaitingFor | None = None
        """The result of the last check; None after later activity."""
        self._process = process
        self._on_found = on_found
        self._quiet = quiet
        self._loop = asyncio.get_running_loop()
        self._last_activity = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._closed = False
        self._arm()

    @property
    def waiting_for(self) -> WaitingFor | None:
        """`LINE`, `PASSWORD` or `KEY` if the process is known to wait for input."""
        return self.found if self.found in _WANTED else None

    def activity(self) -> None:
        """Note activity, which invalidates the last result."""
        self._last_activity = self._loop.time()
        self.found = None
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._timer is None and not self._closed:
            self._arm()

    def close(self) -> None:
        """Stop checking; idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _arm(self) -> None:
        self._timer = self._loop.call_at(self._last_activity + self._quiet, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if self._loop.time() < self._last_activity + self._quiet:
            # Output only moves the deadline: a new timer for each piece would cost more.
            self._arm()
            return
        self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        try:
            found = await self._process.waiting_for()
        except HoldfastError:
            # The server is lost or no longer knows the process.
            found = WaitingFor.UNKNOWN
        self._looking = None
        self.found = found
        if found in _WANTED and self._on_found is not None:
            self._on_found(found)
