"""
A sandboxed command, as a `Child` of this process.

Three processes make up a sandbox: bwrap, which is our child; PID 1 of its pid namespace, with
which the kernel kills all others; and the command. bwrap receives neither signals nor a
controlling terminal: both belong to the command.
"""

import asyncio
import errno
import os
import select
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

import msgspec

from holdfast.engine.linux.proc import children_of_thread
from holdfast.engine.process.child import Child
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.sandbox.bubblewrap.init_channel import InitChannel
from holdfast.engine.sandbox.bubblewrap.network_denials import NetworkAttempts
from holdfast.engine.sandbox.policy.denial import find_denial
from holdfast.events import Reason, Verdict
from holdfast.wire.protocol.process import NetworkAttempt, OutputStream

__all__ = ["SandboxedChild", "first_child", "sandboxed_verdict"]


class SandboxedChild(Child):
    """The bwrap process of a sandbox, which stands for the command inside."""

    __slots__ = ("_waits", "attempts", "cwd", "ended", "init_fd", "reasons", "report")

    def __init__(
        self, pid: int, pidfd: int, stdin: int | None, outputs: list[tuple[OutputStream, int]]
    ) -> None:
        super().__init__(pid, pidfd, stdin, outputs)
        self.ended: Callable[[], None] = lambda: None
        """Callback for when it is reaped."""
        self.init_fd: int | None = None
        """Pidfd of PID 1 inside: readable once no process is left in the sandbox."""
        self.report: InitChannel | None = None
        """Channel to PID 1, which reports the start and the end of the command."""
        self.attempts: NetworkAttempts | None = None
        """Refused attempts to reach the network, if the filter reports them."""
        self.reasons: Mapping[str, str] = {}
        """Reasons why some paths are read-only, for a denial."""
        self.cwd = "/"
        """Working directory of the command."""
        # True while `call_when_empty` waits.
        self._waits = False

    def exit_status(self) -> os.waitid_result | None:
        """Return the exit status of the command, or of bwrap if PID 1 has reported none."""
        launchers = super().exit_status()
        if launchers is None or self.report is None:
            return launchers
        return self.report.end() or launchers

    def complete_verdict(self, verdict: Verdict, log: OutputLog) -> Verdict:
        """Return the verdict of the command, with what the sandbox denied."""
        # Set when the sandbox was built; only then there is a process with a verdict.
        assert self.report is not None
        return sandboxed_verdict(verdict, log, self.report, self.attempts, self.reasons, self.cwd)

    def signal_code(self, number: int) -> int:
        """Return 128 + the signal, on a terminal too: bwrap exits like that [sandbox.exit-code]."""
        return 128 + number

    def signal(self, number: int) -> None:
        first = first_child(self.pid)
        if first is None:
            # The sandbox has ended, or bwrap has not made PID 1 yet.
            os.killpg(self.pid, number)
        elif number == signal.SIGKILL:
            # The kernel kills all others a moment after PID 1. The command is stopped first,
            # or it could still act on the end of its stdin. bwrap waits for all of them.
            with suppress(ProcessLookupError):
                os.killpg(_group_inside(first), signal.SIGSTOP)
            os.kill(first, number)
        else:
            # On pipes, PID 1 is in the command's group. But the kernel delivers no signal to
            # PID 1 of a namespace that it has no handler for.
            os.killpg(_group_inside(first), number)

    def kill_tree(self) -> None:
        # No process can leave a sandbox, so this kills all descendants.
        self.signal(signal.SIGKILL)

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)

    def kill_left(self) -> bool:
        """
        Return False: a sandboxed command leaves no process behind.

        PID 1 exits with the command, and the kernel then kills all others.
        """
        return False

    @property
    def left_something(self) -> bool:
        """False: a sandboxed command leaves no process behind."""
        return False

    def call_when_empty(self, callback: Callable[[], None]) -> bool:
        """
        Return True if the sandbox still holds processes, and call back once it is empty.

        bwrap exits with the command, a moment before the kernel has killed the rest.
        """
        if self.init_fd is None or self._waits:
            return self._waits
        first = self.init_fd
        # Most sandboxes are empty by now: then no reader has to be added and removed.
        ready = select.poll()
        ready.register(first, select.POLLIN)
        if ready.poll(0):
            return False
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(first)
            self._waits = False
            callback()

        self._waits = True
        loop.add_reader(first, gone)
        return True

    def _reaped_at_last(self) -> None:
        super()._reaped_at_last()
        if self.init_fd is not None:
            if self._waits:
                asyncio.get_running_loop().remove_reader(self.init_fd)
            os.close(self.init_fd)
            self.init_fd = None
        # Only now: until the reaping, the verdict reads from them.
        for held in (self.report, self.attempts):
            if held is not None:
                held.close()
        self.ended()

    def kill_unbuilt(self) -> None:
        """Kill the sandbox of a failed or cancelled start, which may not be built yet."""
        # If bwrap dies while it starts PID 1, that process waits for ever. A stopped bwrap
        # starts nothing more, so PID 1 is found now or never exists.
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
            first = first_child(self.pid)
            if first is not None:
                os.kill(first, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def discard(self) -> None:
        self.kill_unbuilt()
        for fd in {fd for _, fd in self.outputs} | ({self.stdin} - {None}):
            # For the type checker, which does not see that the line above removes None.
            assert fd is not None
            os.close(fd)
        self.reap()


def first_child(pid: int) -> int | None:
    """Return the oldest child of a process, or None; adopted orphans come after it."""
    try:
        return next(iter(children_of_thread(f"/proc/{pid}/task/{pid}")), None)
    except OSError:
        return None


def _group_inside(first: int) -> int:
    """Return the process group of the command, in our pid namespace."""
    command = first_child(first)
    with suppress(ProcessLookupError):
        return first if command is None else os.getpgid(command)
    return first


# Reasons for which this server sends SIGKILL.
_BY_US = (
    Reason.TERMINATED,
    Reason.SESSION_EXPIRED,
    Reason.SERVER_STOPPING,
    Reason.LIMIT,
)


class _Attempts(Protocol):
    @property
    def made(self) -> tuple[NetworkAttempt, ...]: ...


def sandboxed_verdict(
    verdict: Verdict,
    log: OutputLog,
    report: InitChannel,
    attempts: _Attempts | None,
    reasons: Mapping[str, str],
    cwd: str,
) -> Verdict:
    """
    Return the verdict of a command, from the verdict of its bwrap process.

    Args:
        verdict: The verdict of bwrap.
        log: The output, in which denials are found.
        report: Channel to PID 1, which reports a failed exec.
        attempts: Refused attempts to reach the network, if the filter reports them.
        reasons: Reasons why some paths are read-only.
        cwd: Working directory of the command.
    """
    code = verdict.exit_code
    # Without an exit status there is nothing to explain.
    if code is None or verdict.reason is Reason.LOST:
        return verdict
    if verdict.reason in _BY_US and code == 128 + signal.SIGKILL:
        # bwrap outlives the command and exits with 128 + the signal, as a shell does.
        verdict = msgspec.structs.replace(verdict, signal=signal.SIGKILL)
    # A missing program was not denied, even if its name makes the error look like that.
    missing = report.exec_error() == errno.ENOENT
    denial = None if missing else find_denial(code, log.retained(), reasons, cwd)
    tried = () if attempts is None else attempts.made
    if denial is not None and denial.path is None and tried:
        # A denial that names no path is about the network, if that was tried.
        denial = msgspec.structs.replace(denial, network=True)
    return msgspec.structs.replace(verdict, denial=denial, network_attempts=tried)
