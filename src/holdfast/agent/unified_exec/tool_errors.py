"""
Errors of a call, with the texts for the model.

`write_stdin` shows the text of an error, `exec_command` its form in Rust's `{:?}`.
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
    """A call of a tool failed; the text is the one that `write_stdin` shows."""

    @property
    def debug(self) -> str:
        """The form that `exec_command` shows."""
        return type(self).__name__


class CallRefused(HoldfastError):
    """A call is refused before a command is started; the model reads the text unchanged."""


class CallInterrupted(HoldfastError):
    """
    The approver cancelled a call: nothing runs, and the turn should end.

    The model reads the text if it continues anyway.
    """


class _WithMessage(UnifiedExecError):
    """An error with the message of another error."""

    _PREFIX = ""

    def __init__(self, message: str) -> None:
        super().__init__(f"{self._PREFIX}{message}")
        self.message = message

    @property
    def debug(self) -> str:
        return f"{type(self).__name__} {{ message: {debug_text(self.message)} }}"


class CreateProcess(_WithMessage):
    """The process could not be started, or was not permitted to."""

    _PREFIX = texts.PROCESS_NOT_CREATED

    def __init__(self, message: str, *, declined: bool = False) -> None:
        super().__init__(message)
        self.declined = declined
        """True if the approver declined the command."""


class ProcessFailed(_WithMessage):
    """The process was lost because its server is gone, or its network access was denied."""

    _PREFIX = texts.PROCESS_FAILED


class UnknownProcessId(UnifiedExecError):
    """There is no session with this number."""

    def __init__(self, process_id: int) -> None:
        super().__init__(texts.unknown_process(process_id))
        self.process_id = process_id

    @property
    def debug(self) -> str:
        return f"UnknownProcessId {{ process_id: {self.process_id} }}"


class WriteToStdin(UnifiedExecError):
    """Input could not be written, although the process accepts input."""

    def __init__(self) -> None:
        super().__init__(texts.STDIN_FAILED)


class SessionStdinClosed(UnifiedExecError):
    """The session has pipes instead of a terminal and does not accept input."""

    def __init__(self) -> None:
        super().__init__(texts.STDIN_CLOSED)

    @property
    def debug(self) -> str:
        return "StdinClosed"


def rejected_text(reason: str) -> str:
    """Return the message of a `CreateProcess` for a refused command."""
    return f"Rejected({debug_text(reason)})"


def exec_failure_text(error: UnifiedExecError) -> str:
    """Return the text for the model if `exec_command` failed."""
    return f"{texts.EXEC_FAILED}{error.debug}"


def write_failure_text(error: UnifiedExecError) -> str:
    """Return the text for the model if `write_stdin` failed."""
    return f"{texts.WRITE_FAILED}{error}"
