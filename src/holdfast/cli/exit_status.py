"""Exit statuses of `holdfast run`: the command's own, or one that says why there is none."""

import errno
import os

from holdfast.errors import HoldfastError, RemoteError
from holdfast.events import Reason, Verdict
from holdfast.system_text import without_number

__all__ = ["FAILED", "Ended", "of_signal", "of_verdict", "refused"]

FAILED = 125
"""Exit status if Holdfast failed and not the command, as with `env` and `timeout`."""

# The exit statuses of a shell.
_CANNOT_EXECUTE = 126
_NOT_FOUND = 127

# Faults of the named program; others, such as ENOMEM, are not its own.
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
    """Raised to end the run with this status, and perhaps a line that says why."""

    def __init__(self, status: int, text: str | None = None) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = None if text is None else " ".join(text.split())


def of_verdict(verdict: Verdict) -> int:
    """Return the status of a command that ended; 128 plus the signal, if one killed it."""
    if verdict.reason in (Reason.SERVER_STOPPING, Reason.SESSION_EXPIRED):
        # It did not end by itself, and the user did not ask for its end.
        return FAILED
    if verdict.signal is not None:
        return of_signal(verdict.signal)
    # The kernel keeps only the lowest eight bits of a status.
    return FAILED if verdict.exit_code is None else verdict.exit_code & 0xFF


def of_signal(number: int) -> int:
    """Return the status that a shell shows for a process killed by a signal."""
    return 128 + number


def refused(program: str, error: HoldfastError, *, cwd: str | None = None) -> Ended:
    """
    Return the end of a run whose command could not be started.

    Args:
        program: The command's name.
        error: The exception of `start`.
        cwd: A directory on a server. It may be the missing file, if the server does not say.
    """
    text = error.message if isinstance(error, RemoteError) else str(error)
    # Without a program, the errno is about something else, such as a sandbox that could not be
    # built.
    number = error.errno if error.program is not None else None
    reason = "" if number is None else os.strerror(number)
    # With a path, the fault is that directory and not the program.
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
    """Return True if the error would name a missing directory, which Codex's does not."""
    cause = error.__cause__
    return not isinstance(cause, RemoteError) or cause.data is not None
