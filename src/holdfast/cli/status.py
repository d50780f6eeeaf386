"""What `holdfast run` exits with: the command's own status, or one that says why there is none."""

import errno
import os

from holdfast.errors import HoldfastError, RemoteError
from holdfast.events import Reason, Verdict
from holdfast.system_text import without_number

__all__ = ["FAILED", "Ended", "of_signal", "of_verdict", "refused"]

FAILED = 125
"""We failed, not the command; the number `env`, `timeout` and others use for it."""

_CANNOT_EXECUTE = 126
_NOT_FOUND = 127

# Faults of the program that was named; others, such as no memory, are not its own.
_EXECUTION_ERRORS = frozenset(
    {
        errno.E2BIG,
        errno.EACCES,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOEXEC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.ETXTBSY,
    }
)


class Ended(Exception):
    """The run is over, with this status and perhaps a line to say why."""

    def __init__(self, status: int, text: str | None = None) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = None if text is None else " ".join(text.split())


def of_verdict(verdict: Verdict) -> int:
    """The status of a command that ended; 128 and the number of the signal, where that is known."""
    if verdict.reason in (Reason.SERVER_STOPPING, Reason.SESSION_EXPIRED):
        return FAILED  # it did not end by itself, and nobody asked for its end
    if verdict.signal is not None:
        return of_signal(verdict.signal)
    return FAILED if verdict.exit_code is None else verdict.exit_code & 0xFF


def of_signal(number: int) -> int:
    """What a shell shows for a process that a signal ended."""
    return 128 + number


def refused(program: str, error: HoldfastError, *, cwd: str | None = None) -> Ended:
    """
    Return how a run ends whose command could not be started.

    Args:
        program: The command's name.
        error: What `start` raised.
        cwd: A folder of a server that was asked for. It may be what is missing, if the
            server does not say.
    """
    text = error.message if isinstance(error, RemoteError) else str(error)
    # The number of an error that names no program is about something else, such as a
    # sandbox that could not be built.
    number = error.errno if error.program is not None else None
    reason = "" if number is None else os.strerror(number)
    if number is not None and error.path is not None:
        return Ended(FAILED, f"cannot run in {error.path}: {reason}")
    if number == errno.ENOENT:
        if cwd is not None and not _tells_folder(error):
            return Ended(_NOT_FOUND, f"{program}: command not found, or no folder {cwd}")
        if "/" not in program:
            return Ended(_NOT_FOUND, f"{program}: command not found")
        return Ended(_NOT_FOUND, f"{program}: {reason}")
    if number in _EXECUTION_ERRORS:
        return Ended(_CANNOT_EXECUTE, f"{program}: {reason}")
    return Ended(FAILED, f"cannot start {program}: {without_number(text, error.errno)}")


def _tells_folder(error: HoldfastError) -> bool:
    """Return True if the error would name the folder, were that missing: not from Codex."""
    cause = error.__cause__
    return not isinstance(cause, RemoteError) or cause.data is not None
