"""
Enforces the limits of one command on output and time, and reports which limit was reached.

The kernel enforces the other limits (`process.limits.rlimits`). A cgroup counts its events, but
an rlimit only makes a system call of the command fail, which the command may report or not.
Limits are an extension of Holdfast.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import msgspec

from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.io.output_reader import Sink
from holdfast.engine.process.limits.rlimit_marks import has_live_process, kill_by_rlimit_soon
from holdfast.events import LimitKind, Reason, Verdict
from holdfast.wire.protocol.limits import LIMITS, Limit, limit_of
from holdfast.wire.protocol.process import OutputStream, ProcessLimits

if TYPE_CHECKING:
    from holdfast.engine.process.limits.cgroup import CommandCgroup

__all__ = ["ExceededLimit", "Watchdog"]


class ExceededLimit(NamedTuple):
    """A limit that a command has reached."""

    kind: LimitKind
    text: str
    """Description for people, with the limit's value."""

    @classmethod
    def of(cls, limit: Limit, value: int) -> Self:
        """Return a limit of the table as exceeded, with its text."""
        return cls(limit.kind, limit.exceeded(value))


class _Watched(Protocol):
    log: OutputLog

    @property
    def running(self) -> bool: ...

    def kill(self, reason: Reason, *, tree: bool) -> bool: ...

    def end_left(self) -> None: ...


class _Limited(Protocol):
    """The part of `Child` that is used here."""

    cgroup: "CommandCgroup | None"
    mark: int | None


class Watchdog:
    """
    Watchdog that kills a process with its descendants if it writes too much or runs too long.

    It continues after the exit of the process: descendants in the background have the same limits
    until all of them are gone.
    """

    def __init__(
        self,
        process: _Watched,
        loop: asyncio.AbstractEventLoop,
        limits: ProcessLimits,
        child: _Limited,
    ) -> None:
        self._process = process
        self._loop = loop
        self._limits = limits
        self._cgroup = child.cgroup
        self._mark = child.mark
        # The first limit that was reached; later ones follow from the kill.
        self._exceeded: ExceededLimit | None = None
        self._timer: asyncio.TimerHandle | None = None
        if limits.wall_time_ms is not None:
            seconds = limits.wall_time_ms / 1000
            delay = min(seconds, _LONGEST_TIMER)
            self._timer = loop.call_later(delay, self._exceed, _WALL_TIME)

    def before(self, log: OutputLog) -> Sink:
        """Return a sink in front of the log that passes on output up to the limit."""
        limit = self._limits.output_bytes
        if limit is None:
            # No layer in between: most limits are not about output.
            return log
        return _Meter(log, limit, lambda: self._exceed(_OUTPUT))

    def process_closed(self) -> None:
        """Stop the timer at the close of the process, unless its daemon still runs."""
        if self._timer is None or self._timer.cancelled():
            return
        self._timer.cancel()
        # Only the mark leads to a daemon, which has left its group and its parent.
        if self._mark is not None and has_live_process(self._mark):
            self._loop.call_at(self._timer.when(), kill_by_rlimit_soon, self._mark)

    def judge(self, verdict: Verdict) -> Verdict:
        """Return the verdict, with the limit that ended the process if one did."""
        exceeded = self._exceeded or self._signalled(verdict)
        # Only for a failure: a command may reach a limit, cope with it and succeed.
        if exceeded is None and verdict.exit_code and verdict.reason in _BY_LIMIT:
            if self._cgroup is not None:
                exceeded = self._cgroup.exceeded()
            exceeded = exceeded or self._failed_call()
        if exceeded is None or verdict.reason not in _BY_LIMIT:
            return verdict
        return msgspec.structs.replace(
            verdict, reason=Reason.LIMIT, limit=exceeded.kind, detail=exceeded.text
        )

    def _signalled(self, verdict: Verdict) -> ExceededLimit | None:
        """Return the limit for which the kernel killed a process, by its signal."""
        for limit, number in _SIGNALS:
            value = getattr(self._limits, limit.field)
            # A shell reports the death of its child by a signal as 128 + the signal's number.
            if value is not None and number in (verdict.signal, (verdict.exit_code or 0) - 128):
                return ExceededLimit.of(limit, value)
        return None

    def _failed_call(self) -> ExceededLimit | None:
        """
        Guess from its output which rlimit made a system call of the command fail.

        The kernel reports the failure only to the command, as it does a denial. What a cgroup
        limits need not be guessed: the kernel counts it.
        """
        counted = self._cgroup is not None and self._cgroup.counts_processes
        said = b"".join([chunk.chunk for chunk in self._process.log.retained()]).lower()
        for limit in _GUESSED:
            value = getattr(self._limits, limit.field)
            if value is None or (counted and limit.kind is LimitKind.PROCESSES):
                continue
            if any(message in said for message in limit.messages):
                return ExceededLimit.of(limit, value)
        return None

    def _exceed(self, limit: Limit) -> None:
        if self._exceeded is not None:
            return
        what = ExceededLimit.of(limit, getattr(self._limits, limit.field))
        # The tree, not only the group: a limit holds for all descendants.
        if self._process.kill(Reason.LIMIT, tree=True):
            self._exceeded = what
        elif not self._process.running:
            self._exceeded = what
            # Not at once: this may be called by the output reader that `end_left` closes.
            self._loop.call_soon(self._process.end_left)


class _Meter:
    """Sink that passes output on, up to a number of bytes."""

    def __init__(self, log: OutputLog, limit: int, exceeded: Callable[[], None]) -> None:
        self._log = log
        self._left = limit
        self._exceeded = exceeded

    def append(self, stream: OutputStream, data: bytes) -> None:
        # The part within the limit is still logged: it often says what went wrong.
        passed = data[: self._left]
        self._left -= len(passed)
        if passed:
            self._log.append(stream, passed)
        if len(passed) < len(data):
            self._exceeded()

    def end_stream(self, stream: OutputStream) -> None:
        self._log.end_stream(stream)


# Reasons that a limit may explain; all others were requested.
_BY_LIMIT = (Reason.LIMIT, Reason.EXITED, Reason.SIGNALED)

# Limits that are enforced here.
_WALL_TIME = limit_of(LimitKind.WALL_TIME)
_OUTPUT = limit_of(LimitKind.OUTPUT)

# Limits that make system calls fail, in the order of the table.
_GUESSED = [limit for limit in LIMITS if limit.messages]

# Limits that the kernel enforces by a specific signal.
_SIGNALS = [(limit, getattr(signal, limit.signal)) for limit in LIMITS if limit.signal is not None]

# Seconds. A client may ask for more than the timers of event loops accept.
_LONGEST_TIMER = 1e6
