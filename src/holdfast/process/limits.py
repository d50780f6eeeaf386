"""
Limits on what one command may use (an extension of Holdfast).

Memory, address space, processor time, processes and open files are the kernel's to
limit. They are set from outside on a process that waits: between a fork and an exec no
Python can run, and a limit that is set on this process, however short, would hit
its threads. Output and time are watched here.

Memory and processes are limited for a command as a whole, by a cgroup. Without one,
the first cannot be, and the second is by what the kernel counts for the user.
"""

import asyncio
import os
import resource
import signal
from contextlib import ExitStack
from typing import Protocol

import msgspec

from holdfast.errors import InvalidParams
from holdfast.events import Reason, Verdict
from holdfast.process.cgroups import CommandCgroup, shared_cgroups
from holdfast.process.output import OutputLog
from holdfast.process.program import Launch
from holdfast.protocol.process import OutputChunk, ProcessLimits

__all__ = ["Gate", "Watchdog", "apply_limits", "check_limits", "has_kernel_limits", "held_launch"]

_SHELL = "/bin/sh"
_HOLD = 'read -r _ <&3 && exec 3<&- && exec "$@"'
"""Waits for a line before it becomes the command."""


def has_kernel_limits(limits: ProcessLimits) -> bool:
    """Whether any of them has to be set before the command runs."""
    return any(
        value is not None
        for value in (
            limits.memory_bytes,
            limits.address_space_bytes,
            limits.cpu_seconds,
            limits.processes,
            limits.open_files,
        )
    )


def check_limits(limits: ProcessLimits) -> None:
    """
    Refuse what cannot be kept here.

    Raises:
        InvalidParams: With the reason and what to change.
    """
    if limits.memory_bytes is not None:
        problem = shared_cgroups().place().why_not("memory")
        if problem is not None:
            raise InvalidParams(f"memoryBytes needs a cgroup of its own for a command: {problem}")


def apply_limits(
    pid: int, limits: ProcessLimits, *, extra_processes: int = 0
) -> CommandCgroup | None:
    """
    Set the limits that the kernel keeps, on a process that waits for it.

    Args:
        pid: The process; what it starts inherits them.
        limits: What may be used.
        extra_processes: How many of ours are counted with those of the command.

    Returns:
        The cgroup that it is in now, if there is one; to be released when it has ended.

    Raises:
        ProcessLookupError: It is gone.
        OSError: The kernel refused.
    """
    cgroup = _enter_cgroup(pid, limits, extra_processes)
    processes = limits.processes
    if cgroup is not None and cgroup.counts_processes:
        processes = None
    wanted = [
        (resource.RLIMIT_AS, limits.address_space_bytes, 0, 0),
        # At the first number the kernel sends a signal that says why, at the second it kills.
        (resource.RLIMIT_CPU, limits.cpu_seconds, 0, 1),
        (resource.RLIMIT_NPROC, processes, extra_processes, 0),
        (resource.RLIMIT_NOFILE, limits.open_files, 0, 0),
    ]
    try:
        for kind, value, more, above in wanted:
            if value is None:
                continue
            hard = resource.prlimit(pid, kind)[1]
            most = value + more + above
            if hard != resource.RLIM_INFINITY:
                most = min(most, hard)
            resource.prlimit(pid, kind, (min(value + more, most), most))
    except BaseException:
        if cgroup is not None:
            cgroup.release()
        raise
    return cgroup


def _enter_cgroup(pid: int, limits: ProcessLimits, extra_processes: int) -> CommandCgroup | None:
    """Put a process into a cgroup of its own, if one is wanted and can be had."""
    if limits.memory_bytes is None and limits.processes is None:
        return None
    cgroups = shared_cgroups()
    controllers = cgroups.place().controllers
    counted = limits.processes is not None and "pids" in controllers
    if limits.memory_bytes is None and not counted:
        return None
    cgroup = cgroups.make()
    try:
        if limits.memory_bytes is not None:
            cgroup.limit_memory(limits.memory_bytes)
        if limits.processes is not None and counted:
            cgroup.limit_processes(limits.processes, extra_processes)
        cgroup.admit(pid)
    except BaseException:
        cgroup.release()
        raise
    return cgroup


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
        self,
        process: _Watched,
        loop: asyncio.AbstractEventLoop,
        limits: ProcessLimits,
        cgroup: CommandCgroup | None = None,
    ) -> None:
        self._process = process
        self._limits = limits
        self._cgroup = cgroup
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
            if self._cgroup is not None:
                exceeded = self._cgroup.exceeded()
            exceeded = exceeded or self._failed_call()
        if exceeded is None or verdict.reason not in _BY_LIMIT:
            return verdict
        return msgspec.structs.replace(verdict, reason=Reason.LIMIT, detail=exceeded)

    def _failed_call(self) -> str | None:
        """
        The limit that made a call of it fail, by what it wrote about that.

        The kernel tells only the process, which may say so or not, as with a denial. Of
        what a cgroup limits it tells us, so that nothing is left to guess.
        """
        counted = self._cgroup is not None and self._cgroup.counts_processes
        said = b"".join([chunk.chunk for chunk in self._process.log.retained()]).lower()
        for name, words, text in _FAILED_CALLS:
            value = getattr(self._limits, name)
            if counted and name == "processes":
                continue
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
