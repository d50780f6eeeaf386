"""
The limits of one command (an extension of Holdfast): watching them, and telling which was met.

Output and time are watched here. The rest is the kernel's to keep (`process.limits.rlimits`). Some
of it the kernel tells us of, the rest only the command, which may say so or not.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from holdfast.events import LimitKind, Reason, Verdict
from holdfast.process.io.log import OutputLog
from holdfast.process.io.reader import Sink
from holdfast.process.limits.rlimit_marks import is_left, kill_by_rlimit_soon
from holdfast.protocol.process import OutputStream, ProcessLimits

if TYPE_CHECKING:
    from holdfast.process.limits.cgroup import CommandCgroup

__all__ = ["ExceededLimit", "Watchdog"]


class ExceededLimit(NamedTuple):
    """A limit that a command went over."""

    kind: LimitKind
    text: str
    """For a person, with the limit's value."""


class _Watched(Protocol):
    log: OutputLog

    @property
    def running(self) -> bool: ...

    def terminate(self, reason: Reason = ..., *, tree: bool = ...) -> bool: ...

    def end_left(self) -> None: ...


class _Limited(Protocol):
    """The child of a process, as far as it matters here."""

    cgroup: "CommandCgroup | None"
    mark: int | None


class Watchdog:
    """
    Kills a process that writes too much or takes too long, with all that it started.

    It watches on after the exit of the process: what was left in the background is held to
    the same limits until all of it is gone.
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
        self._exceeded: ExceededLimit | None = None
        self._timer: asyncio.TimerHandle | None = None
        if limits.wall_time_ms is not None:
            seconds = limits.wall_time_ms / 1000
            late = ExceededLimit(LimitKind.WALL_TIME, f"ran for more than {seconds:g} seconds")
            self._timer = loop.call_later(min(seconds, _LONGEST_TIMER), self._exceed, late)

    def before(self, log: OutputLog) -> Sink:
        """Return a sink before the log, which passes on no more output than the limit allows."""
        limit = self._limits.output_bytes
        if limit is None:
            return log
        much = ExceededLimit(LimitKind.OUTPUT, f"wrote more than {limit} bytes")
        return _Meter(log, limit, lambda: self._exceed(much))

    def process_closed(self) -> None:
        """Nothing more can come of the process, but a daemon of it may have time left."""
        if self._timer is None or self._timer.cancelled():
            return
        self._timer.cancel()
        if self._mark is not None and is_left(self._mark):
            self._loop.call_at(self._timer.when(), kill_by_rlimit_soon, self._mark)

    def judge(self, verdict: Verdict) -> Verdict:
        """The verdict with the limit that ended it, if one did."""
        exceeded = self._exceeded
        out_of_time = (verdict.exit_code or 0) - 128 == signal.SIGXCPU
        if (
            exceeded is None
            and self._limits.cpu_seconds is not None
            and (out_of_time or verdict.signal == signal.SIGXCPU)
        ):
            exceeded = ExceededLimit(
                LimitKind.CPU_TIME,
                f"used more than {self._limits.cpu_seconds} seconds of processor time",
            )
        if exceeded is None and verdict.exit_code and verdict.reason in _BY_LIMIT:
            if self._cgroup is not None:
                exceeded = self._cgroup.exceeded()
            exceeded = exceeded or self._failed_call()
        if exceeded is None or verdict.reason not in _BY_LIMIT:
            return verdict
        return msgspec.structs.replace(
            verdict, reason=Reason.LIMIT, limit=exceeded.kind, detail=exceeded.text
        )

    def _failed_call(self) -> ExceededLimit | None:
        """
        The limit that made a call of it fail, by what it wrote about that.

        The kernel tells only the process, which may say so or not, as with a denial. Of
        what a cgroup limits it tells us, so that nothing is left to guess.
        """
        counted = self._cgroup is not None and self._cgroup.counts_processes
        said = b"".join([chunk.chunk for chunk in self._process.log.retained()]).lower()
        for name, kind, words, text in _FAILED_CALLS:
            value = getattr(self._limits, name)
            if counted and name == "processes":
                continue
            if value is not None and any(word in said for word in words):
                return ExceededLimit(kind, text.format(value))
        return None

    def _exceed(self, what: ExceededLimit) -> None:
        if self._exceeded is not None:
            return
        if self._process.terminate(Reason.LIMIT, tree=True):
            self._exceeded = what
        elif not self._process.running:
            self._exceeded = what
            # Later: it may be reading just now what it is to close.
            self._loop.call_soon(self._process.end_left)


class _Meter:
    """Passes output on, up to a number of bytes."""

    def __init__(self, log: OutputLog, limit: int, exceeded: Callable[[], None]) -> None:
        self._log = log
        self._left = limit
        self._exceeded = exceeded

    def append(self, stream: OutputStream, data: bytes) -> None:
        passed = data[: self._left]
        self._left -= len(passed)
        if passed:
            self._log.append(stream, passed)
        if len(passed) < len(data):
            self._exceeded()

    def end_stream(self, stream: OutputStream) -> None:
        self._log.end_stream(stream)


# Ends that may be the work of a limit; others were asked for.
_BY_LIMIT = (Reason.LIMIT, Reason.EXITED, Reason.SIGNALED)

# Limits that make calls fail, and what programs say then, in lower case.
_FAILED_CALLS = (
    (
        "open_files",
        LimitKind.OPEN_FILES,
        (b"too many open files",),
        "ran into its limit of {} open files",
    ),
    (
        "address_space_bytes",
        LimitKind.ADDRESS_SPACE,
        (b"cannot allocate memory", b"memoryerror", b"out of memory", b"bad_alloc"),
        "ran into its limit of {} bytes of address space",
    ),
    (
        "processes",
        LimitKind.PROCESSES,
        (b"resource temporarily unavailable", b"can't start new thread", b"cannot fork"),
        "ran into its limit of {} processes",
    ),
)

# Seconds; no timer takes more.
_LONGEST_TIMER = 1e6
