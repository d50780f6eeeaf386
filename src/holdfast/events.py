"""
Events of one process, as the seams name them: output, one exit, one close.

The reason of an end is recorded where it is known. The wire has room
for an exit code only [output.exit-code]; the verdict tells apart what that
number cannot.
"""

import re
import signal
from enum import StrEnum

import msgspec

from holdfast.wire.protocol.limits import LimitKind
from holdfast.wire.protocol.process import NetworkAttempt, OutputChunk, OutputStream

__all__ = [
    "UNKNOWN_DENIAL",
    "Closed",
    "Denial",
    "DenialKind",
    "Exited",
    "Gap",
    "LimitKind",
    "LogEntry",
    "ProcessEvent",
    "Reason",
    "StreamEnded",
    "Verdict",
    "WaitingFor",
]


class Reason(StrEnum):
    """The cause of the end of a process."""

    EXITED = "exited"
    """It ended by itself."""
    SIGNALED = "signaled"
    """A signal killed it that nobody here asked for."""
    TERMINATED = "terminated"
    """`terminate` was called."""
    TIMED_OUT = "timedOut"
    """It took longer than it was given, and was terminated."""
    SESSION_EXPIRED = "sessionExpired"
    """Its session was without a connection for too long."""
    SERVER_STOPPING = "serverStopping"
    """The server, or the owner of the backend, ended."""
    LIMIT = "limit"
    """It went over one of the limits it was started with."""
    SPAWN_FAILED = "spawnFailed"
    """It never ran."""
    LOST = "lost"
    """Unknown: another part of the program reaped the process."""


class WaitingFor(StrEnum):
    """
    The input that a process waits for right now, as the kernel shows it.

    The first three differ by the mode of the terminal. A prompt that edits its line itself, as
    in bash or Python, reads single keys: `KEY`.
    """

    LINE = "line"
    """A line, which is shown while it is typed."""
    PASSWORD = "password"  # noqa: S105 - the name of a state
    """A line that is not shown: canonical mode, echo off."""
    KEY = "key"
    """A key, without a line's end: the terminal is in raw mode."""
    NONE = "none"
    """No input: it computes, sleeps, waits for something else, or has exited."""
    UNKNOWN = "unknown"
    """It has no terminal, or the system or the server does not tell."""


class DenialKind(StrEnum):
    """The symptom by which a failure was attributed to the sandbox."""

    OPERATION_NOT_PERMITTED = "operationNotPermitted"
    PERMISSION_DENIED = "permissionDenied"
    READ_ONLY_FILE_SYSTEM = "readOnlyFileSystem"
    POLICY_DENIED = "policyDenied"
    """It spoke of the sandbox itself."""
    FAILED_TO_WRITE_FILE = "failedToWriteFile"
    SYSTEM_CALL = "systemCall"
    """The kernel killed it for a system call."""
    UNKNOWN = "unknown"
    """A server reported a denial without its kind."""


# A path with `.git` in it, in a line of output.
_IN_GIT = re.compile(r"(?:^|[\s/'\"`])\.git(?:[\s/'\"`:]|$)")

_WRITES = (DenialKind.READ_ONLY_FILE_SYSTEM, DenialKind.FAILED_TO_WRITE_FILE)


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """
    A denial that was probably caused by the sandbox.

    It is guessed from the output [sandbox.denied]. As a rule only the
    process itself knows which of its system calls failed.
    """

    kind: DenialKind
    snippet: str = ""
    """The line of output it was found in, shortened."""
    path: str | None = None
    """The file named in that line, if any."""
    network: bool = False
    """True if the line is about the network rather than a file."""
    reason: str | None = None
    """The reason of the sandbox, where it has more to say than that no entry allows it."""

    @property
    def hint(self) -> str | None:
        """Advice for people and models, if there is any for this denial."""
        if self.kind not in _WRITES or not _IN_GIT.search(self.path or self.snippet):
            return None
        return (
            "the sandbox protects .git; --sandbox-write lets commits be made,"
            " see the guide `Let an agent commit`"
        )

    def __str__(self) -> str:
        if self.kind is DenialKind.UNKNOWN:
            return "it does not say what"
        about = "the network" if self.network else self.path
        text = f"{self.kind.value}: {about}" if about else self.kind.value
        return f"{text} ({self.reason})" if self.reason else text


UNKNOWN_DENIAL = Denial(kind=DenialKind.UNKNOWN)
"""The denial as the wire has it: one occurred, without details."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one process: cause, exit code, signal."""

    reason: Reason
    exit_code: int | None = None
    """As on the wire: the status, or 128 plus the signal (1 on a terminal)."""
    signal: int | None = None
    """The signal that killed it, whoever sent it."""
    detail: str | None = None
    """A text for a person, where there is more to say."""
    limit: LimitKind | None = None
    """The limit that ended it; set exactly when the reason is `LIMIT`."""
    denial: Denial | None = None
    """Set if it failed and its sandbox seems to be the cause."""
    network_attempts: tuple[NetworkAttempt, ...] = ()
    """
    Network calls that its sandbox refused, as reported by the kernel.

    The calls are certain. They need not be the cause of a failure, which the process may have
    handled or reported as something else, such as an unknown host.
    """

    @property
    def ok(self) -> bool:
        """True if it ended by itself with status 0."""
        return self.reason is Reason.EXITED and self.exit_code == 0

    def __str__(self) -> str:
        match self.reason:
            case Reason.EXITED if self.denial is not None:
                return f"exited with code {self.exit_code}, denied by its sandbox ({self.denial})"
            case Reason.EXITED if self.exit_code and self.network_attempts:
                tried = self.network_attempts[0]
                return f"exited with code {self.exit_code}, without network ({tried})"
            case Reason.EXITED:
                return f"exited with code {self.exit_code}"
            case Reason.SIGNALED:
                # Set whenever the reason is `SIGNALED`.
                assert self.signal is not None
                return f"killed by {_signal_name(self.signal)}"
            case Reason.TERMINATED:
                return "terminated on request"
            case Reason.TIMED_OUT:
                return self.detail or "took too long and was terminated"
            case Reason.SESSION_EXPIRED:
                return "terminated because its session expired"
            case Reason.SERVER_STOPPING:
                return "terminated because the server stopped"
            case _:
                return self.detail or self.reason.value


class Exited(msgspec.Struct, frozen=True):
    """The process has exited; descendants may still write to its output."""

    seq: int
    verdict: Verdict


class Closed(msgspec.Struct, frozen=True):
    """All streams have ended: the last event of a process."""

    seq: int


class Gap(msgspec.Struct, frozen=True):
    """
    Numbers whose events are no longer retained.

    Only a stream with `gaps=True` has it; any other one raises `OutputLost` there.
    """

    first_seq: int
    last_seq: int

    @property
    def seq(self) -> int:
        """The last number it stands for; the next event has the one after it."""
        return self.last_seq


class StreamEnded(msgspec.Struct, frozen=True):
    """
    One stream of a process has reached its end, while others may go on.

    It has no number of its own, and only a Holdfast server sends it. Only a stream that
    was asked for with `stream_ends=True` has it. With `Closed`, every stream has ended.
    """

    stream: OutputStream
    seq: int
    """The number of the last event before it."""


LogEntry = OutputChunk | Exited | Closed
"""One numbered entry of the log of a process; `seq` counts all kinds together, from 1."""

ProcessEvent = LogEntry | Gap | StreamEnded
"""One item of an event stream."""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # A real-time signal without a name of its own.
        return f"signal {number}"
