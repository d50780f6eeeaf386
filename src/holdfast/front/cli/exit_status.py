"""Exit statuses of `holdfast run`: the command's own, or one that says why there is none."""

import errno
import os
from signal import SIGKILL

from holdfast.base.errors import HoldfastError, RemoteError, SpawnFailed
from holdfast.base.system_text import without_number
from holdfast.events import Reason, Verdict

__all__ = ["FAILED", "Ended", "of_signal", "of_verdict", "refused", "text_with_advice"]

FAILED = 125
"""Exit status if Holdfast failed and not the command, as with `env` and `timeout`."""

# The exit statuses of a shell.
_CANNOT_EXECUTE = 126
_NOT_FOUND = 127

# Characters that only a shell gives a meaning; names of programs rarely have them.
_SHELL_SIGNS = frozenset(" \t\n|&;<>()$`\"'*?~")

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


def text_with_advice(error: HoldfastError) -> str:
    """Return the text of an error, and what to do about it if the error says so."""
    advice = getattr(error, "advice", None)
    return f"{error}; {advice}" if advice else str(error)


def _shell_hint(program: str) -> str:
    """Return a hint if a whole shell command was given as the name of a program."""
    return "; a shell command needs `sh -c` before it" if _SHELL_SIGNS & set(program) else ""


def of_verdict(verdict: Verdict) -> int:
    """Return the status of a command that ended; 128 plus the signal, if one killed it."""
    if verdict.reason in (Reason.SERVER_STOPPING, Reason.SESSION_EXPIRED):
        # It did not end by itself, and the user did not ask for its end.
        return FAILED
    if verdict.signal is not None:
        return of_signal(verdict.signal)
    if verdict.reason is Reason.LIMIT and verdict.exit_code == 0:
        # It exited before it could be killed. Its output was cut, so it is no success.
        return of_signal(SIGKILL)
    # The kernel keeps only the lowest eight bits of a status.
    return FAILED if verdict.exit_code is None else verdict.exit_code & 0xFF


def of_signal(number: int) -> int:
    """Return the status that a shell shows for a process killed by a signal."""
    return 128 + number


def refused(program: str, error: HoldfastError) -> Ended:
    """
    Return the end of a run whose command could not be started.

    Args:
        program: The command's name.
        error: The exception of `Environment.launch`.
    """
    # An environment explains the failure in a sentence of its own. Here the path of a folder at
    # fault is taken from it, and the rest from what the system said.
    cause = error.__cause__ if isinstance(error.__cause__, SpawnFailed) else error
    text = cause.message if isinstance(cause, RemoteError) else str(cause)
    # Without a program, the errno is about something else, such as a sandbox that could not be
    # built.
    number = cause.errno if cause.program is not None else None
    reason = "" if number is None else os.strerror(number)
    # With a path, the fault is that directory and not the program.
    if number is not None and error.path is not None:
        return Ended(FAILED, f"cannot run in {error.path}: {reason}")
    if number == errno.ENOENT:
        if "/" not in program:
            reason = "command not found"
        return Ended(_NOT_FOUND, f"{program}: {reason}{_shell_hint(program)}")
    if number in _EXECUTION_ERRORS:
        return Ended(_CANNOT_EXECUTE, f"{program}: {reason}")
    return Ended(FAILED, f"cannot start {program}: {without_number(text, cause.errno)}")
