"""Verdict of a sandboxed process: adds what the sandbox denied, if that made it fail."""

import errno
import signal
from collections.abc import Mapping
from typing import Protocol

import msgspec

from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.sandbox.bubblewrap.init_channel import InitChannel
from holdfast.engine.sandbox.policy.denial import find_denial
from holdfast.events import Reason, Verdict
from holdfast.wire.protocol.process import NetworkAttempt

__all__ = ["SandboxedOutcome"]

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


class SandboxedOutcome:
    """Function that completes the verdict of a sandboxed process."""

    def __init__(
        self,
        report: InitChannel,
        attempts: _Attempts | None,
        reasons: Mapping[str, str] | None = None,
        cwd: str = "/",
    ) -> None:
        """
        Args:
            report: Channel to PID 1, which reports a failed exec.
            attempts: Refused attempts to reach the network, if the filter reports them.
            reasons: Reasons why some paths are read-only.
            cwd: Working directory of the command.
        """
        self._report = report
        self._attempts = attempts
        self._reasons = reasons or {}
        self._cwd = cwd

    def __call__(self, verdict: Verdict, log: OutputLog) -> Verdict:
        """Return the verdict of the command, from the verdict of its bwrap process."""
        code = verdict.exit_code
        # Without an exit status there is nothing to explain.
        if code is None or verdict.reason is Reason.LOST:
            return verdict
        if verdict.reason in _BY_US and code == 128 + signal.SIGKILL:
            # bwrap outlives the command and exits with 128 + the signal, as a shell does.
            verdict = msgspec.structs.replace(verdict, signal=signal.SIGKILL)
        # A missing program was not denied, even if its name makes the error look like that.
        missing = self._report.exec_error() == errno.ENOENT
        denial = None
        if not missing:
            denial = find_denial(code, log.retained(), self._reasons, self._cwd)
        tried = () if self._attempts is None else self._attempts.made
        if denial is not None and denial.path is None and tried:
            # A denial that names no path is about the network, if that was tried.
            denial = msgspec.structs.replace(denial, network=True)
        return msgspec.structs.replace(verdict, denial=denial, network_attempts=tried)
