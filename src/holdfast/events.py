"""
What happens to a process, in the words of the seams: output, one exit, one close.

The reason of an end is recorded at the place where it is known. The wire has room
for an exit code only (exec-server spec 8.3); the verdict tells apart what that
number cannot.
"""

import signal
from enum import StrEnum

import msgspec

from holdfast.protocol.process import OutputChunk

__all__ = ["Closed", "Exited", "ProcessEvent", "Reason", "Verdict"]


class Reason(StrEnum):
    """One word for the cause of an end."""

    EXITED = "exited"
    """It ended by itself."""
    SIGNALED = "signaled"
    """A signal killed it that nobody here asked for."""
    TERMINATED = "terminated"
    """`terminate` was called."""
    TIMED_OUT = "timedOut"
    """It took longer than it was given, and was terminated."""
    SESSION_EXPIRED = "sessionExpired"
    """Its session lost its connection and nobody came back in time."""
    SERVER_STOPPING = "serverStopping"
    """The server, or whoever owned the engine, ended."""
    SPAWN_FAILED = "spawnFailed"
    """It never ran."""
    LOST = "lost"
    """Nobody knows: its status was taken by somebody else."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How one process ended."""

    reason: Reason
    exit_code: int | None = None
    """As on the wire: the status, or 128 plus the signal (1 on a terminal)."""
    signal: int | None = None
    """The signal that killed it, whoever sent it."""
    detail: str | None = None
    """A text for a person, where there is more to say."""

    @property
    def ok(self) -> bool:
        """It ended by itself with status 0."""
        return self.reason is Reason.EXITED and self.exit_code == 0

    def __str__(self) -> str:
        match self.reason:
            case Reason.EXITED:
                return f"exited with code {self.exit_code}"
            case Reason.SIGNALED:
                assert self.signal is not None  # what the reason says
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
    """The process itself is gone; what it left in the background may still write."""

    seq: int
    verdict: Verdict


class Closed(msgspec.Struct, frozen=True):
    """Nothing more will come."""

    seq: int


ProcessEvent = OutputChunk | Exited | Closed
"""One entry of the log of a process; `seq` numbers all kinds together, from 1."""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal between the two that have names
        return f"signal {number}"
