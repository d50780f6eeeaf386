"""Closed processes that can still be read, until their retention time is over."""

import asyncio
from collections import deque
from collections.abc import Callable

from holdfast.base.dialect import limits
from holdfast.engine.process.logged import LoggedProcess

__all__ = ["MAX_OUTPUT", "RESUMED_TIME", "RETENTION", "ClosedProcesses"]

# Seconds after a resume in which no process with unacknowledged output is forgotten.
RESUMED_TIME = 5.0

# Seconds that a closed process can still be read and its id stays taken.
RETENTION = limits.PROCESS_KEPT

MAX_OUTPUT = 64 << 20
"""Bytes of memory for the output of all closed processes of one table."""


class ClosedProcesses:
    """
    Closed processes, the oldest first; one timer forgets them all.

    Beyond `MAX_OUTPUT`, the output of the oldest is dropped, unless it is not acknowledged.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        retention: float,
        forget: Callable[[LoggedProcess], None],
    ) -> None:
        """
        Args:
            loop: Has the clock and the timer.
            retention: Seconds a closed process is kept.
            forget: Called with each process whose time is over.
        """
        self._loop = loop
        self._retention = retention
        self._forget = forget
        # With the time at which to forget each.
        self._closed: deque[tuple[float, LoggedProcess]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        # Times at which the forgetting was paused, and at which it last went on.
        self._paused_at: float | None = None
        self._resumed_at = -RESUMED_TIME
        # At least the memory of all output: it becomes less without notice here, when a client
        # acknowledges or a process is forgotten.
        self._output = 0
        # Where to count it again: not at each close, if nothing can be dropped.
        self._recount_at = MAX_OUTPUT

    def add(self, process: LoggedProcess) -> None:
        """Keep a process that was closed just now."""
        self._closed.append((self._loop.time() + self._retention, process))
        # A timer that runs is for an older process, and is set again after it.
        if self._timer is None and self._paused_at is None:
            self._timer = self._loop.call_later(self._retention, self._forget_old)
        # Without a retention time, only a reader in this program can keep the log, and needs it.
        if self._retention:
            self._output += process.log.memory
            if self._output > self._recount_at:
                self._drop_output()

    def exceeds(self) -> bool:
        """Return True if the output takes too much memory, and nothing of it can be dropped."""
        if self._output > MAX_OUTPUT:
            self._drop_output()
        return self._output > MAX_OUTPUT

    def keep_no_more(self) -> None:
        """Forget each process at its close from now on: nobody will read it."""
        self._retention = 0.0

    def pause(self) -> None:
        """Keep all until `resume`; for a client that is disconnected."""
        if self._paused_at is None:
            self._paused_at = self._loop.time()
        # `resume` sets it anew, by the times that are left.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def resume(self) -> None:
        """
        Let the retention time of all go on where it was paused.

        The time does not start again: a client whose connection breaks again and again would
        keep every process that ever ended. Unacknowledged output is kept `RESUMED_TIME` longer.
        """
        if self._paused_at is None:
            return
        now = self._loop.time()
        pause = now - self._paused_at
        self._paused_at = None
        self._resumed_at = now
        # All by the same amount, so the order by time stays.
        self._closed = deque((due + pause, process) for due, process in self._closed)
        if self._closed:
            self._timer = self._loop.call_at(self._closed[0][0], self._forget_old)

    def _forget_old(self) -> None:
        self._timer = None
        now = self._loop.time()
        protected_until = self._resumed_at + min(RESUMED_TIME, self._retention)
        while self._closed and self._closed[0][0] <= now:
            _, process = self._closed.popleft()
            # The client may have lost this output with its connection, and is about to ask.
            if now < protected_until and process.log.has_pinned_output:
                self._closed.append((protected_until, process))
            else:
                self._forget(process)
        if self._closed:
            self._timer = self._loop.call_at(self._closed[0][0], self._forget_old)

    def _drop_output(self) -> None:
        """Drop the oldest output until a quarter of the memory is free."""
        self._output = sum(process.log.memory for _, process in self._closed)
        for _, process in self._closed:
            if self._output <= MAX_OUTPUT - MAX_OUTPUT // 4:
                break
            before = process.log.memory
            process.log.drop_output()
            self._output -= before - process.log.memory
        self._recount_at = max(MAX_OUTPUT, self._output + MAX_OUTPUT // 4)
