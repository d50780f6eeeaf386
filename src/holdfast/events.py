"""
Events of a process: output, one exit and one close, and its verdict.

The wire only has an exit code [output.exit-code]; the verdict also has the reason of the end, which
is recorded where it is known.
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
    """Reason for the end of a process."""

    EXITED = "exited"
    """It exited by itself."""
    SIGNALED = "signaled"
    """It was killed by a signal that Holdfast did not send."""
    TERMINATED = "terminated"
    """`terminate` was called."""
    TIMED_OUT = "timedOut"
    """It exceeded its timeout and was terminated."""
    SESSION_EXPIRED = "sessionExpired"
    """Its session had no connection for too long."""
    SERVER_STOPPING = "serverStopping"
    """The server, or the owner of the backend, stopped."""
    LIMIT = "limit"
    """It exceeded one of its resource limits."""
    SPAWN_FAILED = "spawnFailed"
    """It could not be started."""
    LOST = "lost"
    """Unknown, because other code in this program reaped the process."""


class WaitingFor(StrEnum):
    """
    The input that a process waits for, as shown by the kernel.

    The first three differ by the mode of the terminal. A prompt with its own line editing, as in
    bash or Python, reads single keys: `KEY`.
    """

    LINE = "line"
    """A line, echoed while it is typed."""
    PASSWORD = "password"  # noqa: S105 - the name of a state
    """A line that is not echoed: canonical mode, echo off."""
    KEY = "key"
    """A single key: the terminal is in raw mode."""
    NONE = "none"
    """None: it is computing, sleeping, waiting for something else, or has exited."""
    UNKNOWN = "unknown"
    """It has no terminal, or the kernel or the server does not report it."""


class DenialKind(StrEnum):
    """Evidence for attributing a failure to the sandbox."""

    OPERATION_NOT_PERMITTED = "operationNotPermitted"
    PERMISSION_DENIED = "permissionDenied"
    READ_ONLY_FILE_SYSTEM = "readOnlyFileSystem"
    POLICY_DENIED = "policyDenied"
    """Its output mentions the sandbox."""
    FAILED_TO_WRITE_FILE = "failedToWriteFile"
    SYSTEM_CALL = "systemCall"
    """The kernel killed it for a system call."""
    UNKNOWN = "unknown"
    """A server reported a denial without its kind."""


# A path that contains `.git`, in a line of output.
_IN_GIT = re.compile(r"(?:^|[\s/'\"`])\.git(?:[\s/'\"`:]|$)")

_WRITES = (DenialKind.READ_ONLY_FILE_SYSTEM, DenialKind.FAILED_TO_WRITE_FILE)


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """
    A failure that was probably caused by the sandbox.

    It is guessed from the output [sandbox.denied]. As a rule only the
    process itself knows which of its system calls failed.
    """

    kind: DenialKind
    snippet: str = ""
    """The line of output that mentions it, shortened."""
    path: str | None = None
    """The file that the line names, if any."""
    network: bool = False
    """True if the line is about the network, not a file."""
    reason: str | None = None
    """The sandbox's reason, if it is other than that no entry allows access."""

    @property
    def hint(self) -> str | None:
        """Advice for the user or model on this denial, if any."""
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
"""A denial as reported on the wire, without details."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a process: reason, exit code and signal."""

    reason: Reason
    exit_code: int | None = None
    """As on the wire: the exit status, or 128 plus the signal (1 on a terminal)."""
    signal: int | None = None
    """The signal that killed it, from any sender."""
    detail: str | None = None
    """More details for the user, if any."""
    limit: LimitKind | None = None
    """The limit that ended it; set exactly when the reason is `LIMIT`."""
    denial: Denial | None = None
    """Set if it failed and its sandbox was probably the cause."""
    network_attempts: tuple[NetworkAttempt, ...] = ()
    """
    Network calls that its sandbox refused, as reported by the kernel.

    The calls are certain, but not necessarily why the process failed: it may have handled the
    error or reported it as another, such as an unknown host.
    """

    @property
    def ok(self) -> bool:
        """True if it exited by itself with status 0."""
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
    """The process has exited; its descendants may still write output."""

    seq: int
    verdict: Verdict


class Closed(msgspec.Struct, frozen=True):
    """All streams have ended; the last event of a process."""

    seq: int


class Gap(msgspec.Struct, frozen=True):
    """
    A range of events that are no longer retained.

    Only a stream with `gaps=True` returns it; any other raises `OutputLost`.
    """

    first_seq: int
    last_seq: int

    @property
    def seq(self) -> int:
        """Number of the last missing event; the next event follows it."""
        return self.last_seq


class StreamEnded(msgspec.Struct, frozen=True):
    """
    A stream of a process has ended, while others may continue.

    It has no number, and only a Holdfast server sends it. Only a stream with `stream_ends=True`
    returns it. With `Closed`, every stream has ended.
    """

    stream: OutputStream
    seq: int
    """Number of the last event before it."""


LogEntry = OutputChunk | Exited | Closed
"""A numbered entry of the log of a process; `seq` counts all kinds together, from 1."""

ProcessEvent = LogEntry | Gap | StreamEnded
"""An item of an event stream."""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # A real-time signal without a name.
        return f"signal {number}"
