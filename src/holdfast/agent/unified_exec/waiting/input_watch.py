"""
Finds out when a quiet session waits for input: one look per quiet period.

A look at the kernel is cheap but not free, and on a server it is a call. So it is made once
the session has been quiet for a while, and not again before something has happened.
"""

import asyncio
from collections.abc import Callable

from holdfast.backends import ExecProcess
from holdfast.base.errors import HoldfastError
from holdfast.events import WaitingFor

__all__ = ["QUIET", "InputWatch"]

QUIET = 0.4
"""Seconds without output after which a session is looked at."""

_WANTED = frozenset({WaitingFor.LINE, WaitingFor.PASSWORD, WaitingFor.KEY})


class InputWatch:
    """
    Looks at one process on a terminal whenever it has been quiet for a while.

    Call `activity` at every output, at every input, and at the begin of a call that wants to
    know. Call `close` at the end. It needs a running event loop, and begins with its creation.
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
            process: Is asked for `waiting_for`.
            on_found: Called with `LINE`, `PASSWORD` or `KEY`, once per quiet period.
            quiet: Seconds.
        """
        self.found: WaitingFor | None = None
        """The result of the last look; `None` if something has happened since."""
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
        """The input it waits for, if it does and that is known: `LINE`, `PASSWORD` or `KEY`."""
        return self.found if self.found in _WANTED else None

    def activity(self) -> None:
        """Note that something has happened: what was found does not hold any more."""
        self._last_activity = self._loop.time()
        self.found = None
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._timer is None and not self._closed:
            self._arm()

    def close(self) -> None:
        """Look no more; harmless a second time."""
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
            # Output only moves the time on: a timer for each piece would cost more than this.
            self._arm()
            return
        self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        try:
            found = await self._process.waiting_for()
        except HoldfastError:
            # The server is lost, or has forgotten the process.
            found = WaitingFor.UNKNOWN
        self._looking = None
        self.found = found
        if found in _WANTED and self._on_found is not None:
            self._on_found(found)
