"""
Limits on what one command may use (an extension of Holdfast).

Address space, processor time, processes and open files are the kernel's to limit.
In a sandbox they are set by the stage before the command. Without one they are set
from outside on a process that waits: between a fork and an exec no Python can run, and
a limit that is set on this process, however short, would hit its threads. Output and
time are watched here.
"""

import asyncio
import os
import resource
import signal
from contextlib import ExitStack
from typing import Protocol, TypeAlias

import msgspec

from holdfast.events import Reason, Verdict
from holdfast.process.output import OutputLog
from holdfast.process.program import Launch
from holdfast.protocol.process import OutputChunk, ProcessLimits

__all__ = [
    "Gate",
    "KernelLimit",
    "Watchdog",
    "apply_limits",
    "has_kernel_limits",
    "held_launch",
    "kernel_limits",
]

KernelLimit: TypeAlias = tuple[int, int, int]
"""A resource, the limit, and what the process itself could raise it to."""

_SHELL = "/bin/sh"
_HOLD = 'read -r _ <&3 && exec 3<&- && exec "$@"'
"""Waits for a line before it becomes the command."""


def has_kernel_limits(limits: ProcessLimits) -> bool:
    """Whether any of them has to be set before the command runs."""
    return any(
        value is not None
        for value in (
            limits.address_space_bytes,
            limits.cpu_seconds,
            limits.processes,
            limits.open_files,
        )
    )


def kernel_limits(limits: ProcessLimits, *, extra_processes: int = 0) -> list[KernelLimit]:
    """
    What the kernel is to keep: a resource, the limit, and how far that could be raised again.

    Args:
        limits: What may be used.
        extra_processes: How many of ours are counted with those of the command.
    """
    wanted = [
        (resource.RLIMIT_AS, limits.address_space_bytes, 0, 0),
        # At the first number the kernel sends a signal that says why, at the second it kills.
        (resource.RLIMIT_CPU, limits.cpu_seconds, 0, 1),
        (resource.RLIMIT_NPROC, limits.processes, extra_processes, 0),
        (resource.RLIMIT_NOFILE, limits.open_files, 0, 0),
    ]
    found: list[KernelLimit] = []
    for kind, value, more, above in wanted:
        if value is None:
            continue
        hard = resource.getrlimit(kind)[1]
        most = value + more + above
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        found.append((kind, min(value + more, most), most))
    return found


def apply_limits(pid: int, limits: ProcessLimits) -> None:
    """
    Set those limits on a process that waits for it; what it starts inherits them.

    Raises:
        ProcessLookupError: It is gone.
    """
    for kind, soft, hard in kernel_limits(limits):
        resource.prlimit(pid, kind, (soft, hard))


class Gate:
    """Holds back a command until its limits are set."""

    def __init__(self, stack: ExitStack) -> None:
        self.theirs, self._ours = os.pipe()
        stack.callback(os.close, self.theirs)
        stack.callback(os.close, self._ours)

    def open(self) -> None:
        os.write(self._ours, b"\n")


def held_launch(launch: Launch) -> Launch:
    """The same command, behind a shell that waits for a line on descriptor 3."""
    return Launch(_SHELL, ["sh", "-c", _HOLD, "sh", launch.program, *launch.argv[1:]], launch.cwd)


class _Watched(Protocol):
    log: OutputLog

    def terminate(self, reason: Reason = ...) -> bool: ...


class Watchdog:
    """Kills a process that writes too much or takes too long."""

    def __init__(
        self, process: _Watched, loop: asyncio.AbstractEventLoop, limits: ProcessLimits
    ) -> None:
        self._process = process
        self._limits = limits
        self._written = 0
        self._exceeded: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        if limits.wall_time_ms is not None:
            seconds = limits.wall_time_ms / 1000
            self._timer = loop.call_later(
                min(seconds, _LONGEST_TIMER), self._exceed, f"ran for more than {seconds:g} seconds"
            )
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
            exceeded = f"used more than {self._limits.cpu_seconds} seconds of processor time"
        if exceeded is None and verdict.exit_code and verdict.reason in _BY_LIMIT:
            exceeded = self._failed_call()
        if exceeded is None or verdict.reason not in _BY_LIMIT:
            return verdict
        return msgspec.structs.replace(verdict, reason=Reason.LIMIT, detail=exceeded)

    def _failed_call(self) -> str | None:
        """
        The limit that made a call of it fail, by what it wrote about that.

        The kernel tells only the process, which may say so or not, as with a denial.
        """
        said = b"".join([chunk.chunk for chunk in self._process.log.retained()]).lower()
        for name, words, text in _FAILED_CALLS:
            value = getattr(self._limits, name)
            if value is not None and any(word in said for word in words):
                return text.format(value)
        return None

    def _exceed(self, what: str) -> None:
        if self._exceeded is None and self._process.terminate(Reason.LIMIT):
            self._exceeded = what

    # -- as a listener of the log

    def output(self, chunk: OutputChunk) -> None:
        limit = self._limits.output_bytes
        assert limit is not None  # or it would not listen
        self._written += len(chunk.chunk)
        if self._written > limit:
            self._exceed(f"wrote more than {limit} bytes")

    def exited(self, seq: int, verdict: Verdict) -> None:
        pass

    def closed(self, seq: int) -> None:
        pass


_BY_LIMIT = (Reason.LIMIT, Reason.EXITED, Reason.SIGNALED)
"""Ends that may be the work of a limit; others were asked for."""

_FAILED_CALLS = (
    ("open_files", (b"too many open files",), "ran into its limit of {} open files"),
    (
        "address_space_bytes",
        (b"cannot allocate memory", b"memoryerror", b"out of memory", b"bad_alloc"),
        "ran into its limit of {} bytes of address space",
    ),
    (
        "processes",
        (b"resource temporarily unavailable", b"can't start new thread", b"cannot fork"),
        "ran into its limit of {} processes",
    ),
)
"""Limits that make calls fail, and what programs say then, in lower case."""

_LONGEST_TIMER = 1e6
"""Seconds; no timer takes more."""
