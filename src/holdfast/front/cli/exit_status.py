"""Exit statuses of `holdfast run`: that of the command, or one for why it has none."""

import errno
import os
from signal import SIGKILL

from holdfast.base.errors import HoldfastError, RemoteError, SpawnFailed
from holdfast.base.system_text import without_number
from holdfast.events import Reason, Verdict

__all__ = ["FAILED", "Ended", "of_signal", "of_verdict", "refused", "text_with_advice"]

FAILED = 125
"""Exit status if Holdfast, not the command, failed, as with `env` and `timeout`."""

# As in a shell.
_CANNOT_EXECUTE = 126
_NOT_FOUND = 127

# Characters with a meaning only in a shell; names of programs rarely contain them.
_SHELL_SIGNS = frozenset(" \t\n|&;<>()$`\"'*?~")

# Errors due to the named program, unlike ENOMEM and others.
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
    """Raised to end the run with this status, and perhaps a line with the reason."""

    def __init__(self, status: int, text: str | None = None) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = None if text is None else " ".join(text.split())


def text_with_advice(error: HoldfastError) -> str:
    """Return the text of an error, with its advice, if any."""
    advice = getattr(error, "advice", None)
    return f"{error}; {advice}" if advice else str(error)


def _shell_hint(program: str) -> str:
    """Return a hint if a shell command was given as the name of a program."""
    return "; a shell command needs `sh -c` before it" if _SHELL_SIGNS & set(program) else ""


def of_verdict(verdict: Verdict) -> int:
    """Return the status of a command that ended: 128 plus the signal, if one killed it."""
    if verdict.reason in (Reason.SERVER_STOPPING, Reason.SESSION_EXPIRED):
        # It did not end by itself or at the user's request.
        return FAILED
    if verdict.signal is not None:
        return of_signal(verdict.signal)
    if verdict.reason is Reason.LIMIT and verdict.exit_code == 0:
        # It exited before it could be killed. Its output was cut, so this is not a success.
        return of_signal(SIGKILL)
    # The kernel only keeps the lowest eight bits of a status.
    return FAILED if verdict.exit_code is None else verdict.exit_code & 0xFF


def of_signal(number: int) -> int:
    """Return a shell's exit status for a process killed by a signal."""
    return 128 + number


def refused(program: str, error: HoldfastError) -> Ended:
    """
    Return the end of a run whose command could not be started.

    Args:
        program: The command's name.
        error: The exception of `Environment.launch`.
    """
    # The error of the environment has a complete sentence. Use only its path of a directory at
    # fault, and the system's error for the rest.
    cause = error.__cause__ if isinstance(error.__cause__, SpawnFailed) else error
    text = cause.message if isinstance(cause, RemoteError) else str(cause)
    # Without a program, the errno has another cause, such as a sandbox that could not be built.
    number = cause.errno if cause.program is not None else None
    reason = "" if number is None else os.strerror(number)
    # With a path, that directory is at fault, not the program.
    if number is not None and error.path is not None:
        return Ended(FAILED, f"cannot run in {error.path}: {reason}")
    if number == errno.ENOENT:
        if "/" not in program:
            reason = "command not found"
        return Ended(_NOT_FOUND, f"{program}: {reason}{_shell_hint(program)}")
    if number in _EXECUTION_ERRORS:
        return Ended(_CANNOT_EXECUTE, f"{program}: {reason}")
    return Ended(FAILED, f"cannot start {program}: {without_number(text, cause.errno)}")
