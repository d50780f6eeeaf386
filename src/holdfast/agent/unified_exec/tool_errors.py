"""
Errors of a call, with the texts that the model reads.

`write_stdin` shows an error's own text, `exec_command` the form that Rust's `{:?}` gives it.
"""

from holdfast.base.dialect import debug_text, texts
from holdfast.base.errors import HoldfastError

__all__ = [
    "CallInterrupted",
    "CallRefused",
    "CreateProcess",
    "ProcessFailed",
    "SessionStdinClosed",
    "UnifiedExecError",
    "UnknownProcessId",
    "WriteToStdin",
    "exec_failure_text",
    "rejected_text",
    "write_failure_text",
]


class UnifiedExecError(HoldfastError):
    """A call of one of the tools failed; the text is the one that `write_stdin` shows."""

    @property
    def debug(self) -> str:
        """The form that `exec_command` shows."""
        return type(self).__name__


class CallRefused(HoldfastError):
    """A call is refused before anything is started; the model reads the text as it is."""


class CallInterrupted(HoldfastError):
    """
    Somebody who was asked about a call cancelled it: nothing runs, the turn should end.

    The text is what the model reads if it goes on all the same.
    """


class _WithMessage(UnifiedExecError):
    """An error that is about a message of somebody else."""

    _PREFIX = ""

    def __init__(self, message: str) -> None:
        super().__init__(f"{self._PREFIX}{message}")
        self.message = message

    @property
    def debug(self) -> str:
        return f"{type(self).__name__} {{ message: {debug_text(self.message)} }}"


class CreateProcess(_WithMessage):
    """The process could not be started, or was not allowed to."""

    _PREFIX = texts.PROCESS_NOT_CREATED

    def __init__(self, message: str, *, declined: bool = False) -> None:
        super().__init__(message)
        self.declined = declined
        """True if somebody was asked about the command and said no."""


class ProcessFailed(_WithMessage):
    """The process was lost: its server is gone, or its network access was denied."""

    _PREFIX = texts.PROCESS_FAILED


class UnknownProcessId(UnifiedExecError):
    """No session has this number."""

    def __init__(self, process_id: int) -> None:
        super().__init__(texts.unknown_process(process_id))
        self.process_id = process_id

    @property
    def debug(self) -> str:
        return f"UnknownProcessId {{ process_id: {self.process_id} }}"


class WriteToStdin(UnifiedExecError):
    """Input could not be written, though the process takes some."""

    def __init__(self) -> None:
        super().__init__(texts.STDIN_FAILED)


class SessionStdinClosed(UnifiedExecError):
    """The session has pipes, no terminal, and takes no input."""

    def __init__(self) -> None:
        super().__init__(texts.STDIN_CLOSED)

    @property
    def debug(self) -> str:
        return "StdinClosed"


def rejected_text(reason: str) -> str:
    """Return the message of a `CreateProcess` that was refused before or at the start."""
    return f"Rejected({debug_text(reason)})"


def exec_failure_text(error: UnifiedExecError) -> str:
    """Return what the model reads if `exec_command` failed."""
    return f"{texts.EXEC_FAILED}{error.debug}"


def write_failure_text(error: UnifiedExecError) -> str:
    """Return what the model reads if `write_stdin` failed."""
    return f"{texts.WRITE_FAILED}{error}"
