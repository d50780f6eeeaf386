"""What the end of a sandboxed process means: a program that was not there, or a denial."""

import os
import signal
from collections.abc import Sequence

import msgspec

from holdfast.events import Reason, Verdict
from holdfast.process.output import OutputLog
from holdfast.protocol.process import OutputChunk
from holdfast.sandbox.denial import find_denial

__all__ = ["SandboxedOutcome"]

_LAUNCHER_FAILED = 1
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
"""What shells say of a program that cannot be run."""

_LONGEST_REASON = 100
"""Bytes, at most, of what the system says about an error."""

_BY_US = (
    Reason.TERMINATED,
    Reason.SESSION_EXPIRED,
    Reason.SERVER_STOPPING,
    Reason.LIMIT,
)


class SandboxedOutcome:
    """Says more of how a process in a sandbox ended."""

    def __init__(self, program: str) -> None:
        self._complaint = b"bwrap: execvp " + os.fsencode(program) + b": "

    def __call__(self, verdict: Verdict, log: OutputLog) -> Verdict:
        """The verdict for a command, from that for its launcher."""
        code = verdict.exit_code
        if not code or verdict.reason is Reason.LOST:
            return verdict
        chunks = log.retained()
        if verdict.reason in _BY_US:
            # The launcher outlives the command, and exits with a number as a shell does.
            if code == 128 + signal.SIGKILL:
                verdict = msgspec.structs.replace(verdict, signal=signal.SIGKILL)
        elif code == _LAUNCHER_FAILED:
            code = self._exec_failure(chunks) or code
        denial = find_denial(code, chunks)
        return msgspec.structs.replace(verdict, exit_code=code, denial=denial)

    def _exec_failure(self, chunks: Sequence[OutputChunk]) -> int | None:
        """
        The code for a command that could not be executed.

        The launcher's one line is all that was written then: a command that ran
        would have to write just that, of itself, to be mistaken.
        """
        # It comes in as many pieces as the launcher writes it in.
        if sum(len(chunk.chunk) for chunk in chunks) > len(self._complaint) + _LONGEST_REASON:
            return None
        said = b"".join([chunk.chunk for chunk in chunks]).rstrip(b"\r\n")
        if b"\n" in said or not said.startswith(self._complaint):
            return None
        missing = said.endswith(b"No such file or directory")
        return _NOT_FOUND if missing else _NOT_EXECUTABLE
