"""What the end of a sandboxed process means: a program that was not there, or a denial."""

import errno
import signal
from typing import Protocol

import msgspec

from holdfast.events import Reason, Verdict
from holdfast.process.io.log import OutputLog
from holdfast.process.sandboxed.init_channel import StageReport
from holdfast.protocol.process import NetworkAttempt
from holdfast.sandbox.policy.denial import find_denial

__all__ = ["SandboxedOutcome"]

_BY_US = (
    Reason.TERMINATED,
    Reason.SESSION_EXPIRED,
    Reason.SERVER_STOPPING,
    Reason.LIMIT,
)


class _Attempts(Protocol):
    @property
    def made(self) -> tuple[NetworkAttempt, ...]: ...


class SandboxedOutcome:
    """Says more of how a process in a sandbox ended."""

    def __init__(self, report: StageReport, attempts: _Attempts | None) -> None:
        """
        Args:
            report: Tells why it could not be executed, if that is so.
            attempts: Tells what it tried to reach, if that is known.
        """
        self._report = report
        self._attempts = attempts

    def __call__(self, verdict: Verdict, log: OutputLog) -> Verdict:
        """The verdict for a command, from that for its launcher."""
        code = verdict.exit_code
        if code is None or verdict.reason is Reason.LOST:
            return verdict
        if verdict.reason in _BY_US and code == 128 + signal.SIGKILL:
            # The launcher outlives the command, and exits with a number as a shell does.
            verdict = msgspec.structs.replace(verdict, signal=signal.SIGKILL)
        # What is not there was not denied, whatever its name makes the line look like.
        missing = self._report.exec_error() == errno.ENOENT
        denial = None if missing else find_denial(code, log.retained())
        tried = () if self._attempts is None else self._attempts.made
        if denial is not None and denial.path is None and tried:
            # A denial that names no path is about the network, if that was tried.
            denial = msgspec.structs.replace(denial, network=True)
        return msgspec.structs.replace(verdict, denial=denial, network_attempts=tried)
