"""
The limits of one command (an extension of Holdfast): watching them, and telling which was met.

Output and time are watched here. The rest is the kernel's to keep (`process.bounds`). Some
of it the kernel tells us of, the rest only the command, which may say so or not.
"""

import asyncio
import signal
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from holdfast.events import LimitKind, Reason, Verdict
from holdfast.process.output import LogListener, OutputLog
from holdfast.protocol.process import OutputChunk, ProcessLimits

if TYPE_CHECKING:
    from holdfast.process.cgroups import CommandCgroup

__all__ = ["ExceededLimit", "Watchdog"]


class ExceededLimit(NamedTuple):
    """A limit that a command went over."""

    kind: LimitKind
    text: str
    """For a person, with the limit's value."""


class _Watched(Protocol):
    log: OutputLog

    def terminate(self, reason: Reason = ..., *, tree: bool = ...) -> bool: ...


class Watchdog(LogListener):
    """Kills a process that writes too much or takes too long."""

    def __init__(
        self,
        process: _Watched,
        loop: asyncio.AbstractEventLoop,
        limits: ProcessLimits,
        cgroup: "CommandCgroup | None" = None,
    ) -> None:
        self._process = process
        self._limits = limits
        self._cgroup = cgroup
        self._written = 0
        self._exceeded: ExceededLimit | None = None
        self._timer: asyncio.TimerHandle | None = None
        if limits.wall_time_ms is not None:
            seconds = limits.wall_time_ms / 1000
            late = ExceededLimit(LimitKind.WALL_TIME, f"ran for more than {seconds:g} seconds")
            self._timer = loop.call_later(min(seconds, _LONGEST_TIMER), self._exceed, late)
        if limits.output_bytes is not None:
            process.log.subscribe(self)

    def stop(self) -> None:
        """The process has exited."""
        if self._timer is not None:
            self._timer.cancel()

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
        if self._exceeded is None and self._process.terminate(Reason.LIMIT, tree=True):
            self._exceeded = what

    # -- as a listener of the log

    def output(self, chunk: OutputChunk) -> None:
        limit = self._limits.output_bytes
        assert limit is not None  # or it would not listen
        self._written += len(chunk.chunk)
        if self._written > limit:
            self._exceed(ExceededLimit(LimitKind.OUTPUT, f"wrote more than {limit} bytes"))


_BY_LIMIT = (Reason.LIMIT, Reason.EXITED, Reason.SIGNALED)
"""Ends that may be the work of a limit; others were asked for."""

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
"""Limits that make calls fail, and what programs say then, in lower case."""

_LONGEST_TIMER = 1e6
"""Seconds; no timer takes more."""
