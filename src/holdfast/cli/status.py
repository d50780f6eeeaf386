"""What `holdfast run` exits with: the command's own status, or one that says why there is none."""

import errno
import os
import re

from holdfast.errors import HoldfastError, RemoteError
from holdfast.events import Verdict

__all__ = ["FAILED", "Ended", "of_signal", "of_verdict", "refused"]

FAILED = 125
"""We failed, not the command; the number `env`, `timeout` and others use for it."""

_CANNOT_EXECUTE = 126
_NOT_FOUND = 127

_SYSTEM_ERROR = re.compile(r"(.*) \(os error (\d+)\)", re.DOTALL)

_NOT_IN_PATH = ("No viable candidates found in PATH", "Unable to resolve the PATH")
_NOT_EXECUTABLE = ("exists but is not executable", "exists but is a directory")

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
"""Faults of the program that was named; others, such as no memory, are not its own."""


class Ended(Exception):
    """The run is over, with this status and perhaps a line to say why."""

    def __init__(self, status: int, text: str | None = None) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = None if text is None else " ".join(text.split())


def of_verdict(verdict: Verdict) -> int:
    """The status of a command that ended; 128 and the number of the signal, where that is known."""
    if verdict.signal is not None:
        return of_signal(verdict.signal)
    return FAILED if verdict.exit_code is None else verdict.exit_code & 0xFF


def of_signal(number: int) -> int:
    """What a shell shows for a process that a signal ended."""
    return 128 + number


def refused(program: str, error: HoldfastError, *, cwd: str | None = None) -> Ended:
    """
    The end of a command that could not be started.

    A server tells no more than a text, so that is what is looked at, for a local
    start too: the texts are the same (exec-server spec 7.4).

    Args:
        program: The command's name.
        error: What `start` raised.
        cwd: A folder of a server that was asked for, which may be what is missing.
    """
    text = error.message if isinstance(error, RemoteError) else str(error)
    number, reason = _fault(text)
    if number == errno.ENOENT:
        if cwd is not None:
            return Ended(_NOT_FOUND, f"{program}: command not found, or no folder {cwd}")
        if "/" not in program:
            return Ended(_NOT_FOUND, f"{program}: command not found")
        return Ended(_NOT_FOUND, f"{program}: {reason}")
    if number in _EXECUTION_ERRORS:
        return Ended(_CANNOT_EXECUTE, f"{program}: {reason}")
    return Ended(FAILED, f"cannot start {program}: {reason}")


def _fault(text: str) -> tuple[int | None, str]:
    """The number of the system's error, if the text tells, and the reason in words."""
    found = _SYSTEM_ERROR.fullmatch(text)
    if found is not None:
        return int(found[2]), found[1]
    if any(part in text for part in _NOT_EXECUTABLE):
        return errno.EACCES, os.strerror(errno.EACCES)
    if any(part in text for part in _NOT_IN_PATH):
        return errno.ENOENT, os.strerror(errno.ENOENT)
    return None, text
