"""
Gives memory back to the kernel after commands have written a lot.

Output is kept up to a mebibyte and the rest is freed at once. The C library keeps freed memory
for the next output, which for 64 sessions is as much again as what is kept. A program that
holds many sessions for days should not pay for that.
"""

import asyncio
import ctypes

from holdfast.unified_exec.sessions.session import Consumer

__all__ = ["FreedMemory"]

# Bytes of output since the last time that make it worthwhile.
WORTH = 2 << 20

# Seconds without output before memory is given back: a flood would need it again at once.
QUIET = 0.25


class FreedMemory(Consumer):
    """A consumer of the output of all sessions that counts what was written."""

    def __init__(self) -> None:
        self._written = 0
        self._last_output = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # Not every C library has it.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def output(self, seq: int, data: bytes) -> None:
        """Count bytes that a command wrote."""
        self._written += len(data)
        if self._written < WORTH or self._trim is None:
            return
        loop = asyncio.get_running_loop()
        self._last_output = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(QUIET, self._timer_fired, loop)

    def _timer_fired(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop.time() < self._last_output + QUIET:
            self._timer = loop.call_at(self._last_output + QUIET, self._timer_fired, loop)
            return
        self._timer = None
        self._written = 0
        # Without the function there would be no timer.
        assert self._trim is not None
        self._trim(0)

    def close(self) -> None:
        """Give nothing back any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._trim = None
