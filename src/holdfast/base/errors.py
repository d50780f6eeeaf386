"""
Every exception that Holdfast raises, as one tree.

A caller can tell these apart:

- `ConnectionLost`: the connection broke.
- `RemoteError`: the other side refused.
- `ProtocolError`: one side broke the protocol.
- `Refused`: what was asked for is not available here.
- `InvalidConfig`: a configuration that a person wrote cannot be used.

The module imports nothing of Holdfast.
"""

import os

# Not `typing.TYPE_CHECKING`, which would load `typing`. Type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.environments.commands.completed import Completed

__all__ = [
    "CannotEnforce",
    "CommandFailed",
    "ConnectFailed",
    "ConnectRefused",
    "ConnectionLost",
    "DuplicateProcess",
    "EnvironmentClosed",
    "HoldfastError",
    "InvalidConfig",
    "InvalidParams",
    "InvalidPermissionPath",
    "InvalidRequest",
    "LocalProtocolError",
    "MalformedMessage",
    "MethodNotFound",
    "NotFound",
    "OperationFailed",
    "OutputLost",
    "Overloaded",
    "PatternNotFound",
    "PatternTimedOut",
    "ProtocolError",
    "Refused",
    "RemoteError",
    "RemoteProtocolError",
    "ServerGone",
    "SessionAttached",
    "SpawnFailed",
    "StdinClosed",
    "UnknownProcess",
    "Unsupported",
]


class HoldfastError(Exception):
    """
    Base class of all errors.

    Every error has these three attributes; each is None if unknown. Programs should examine them
    and the class, never the text.
    """

    errno: int | None
    """The errno of the operating system, such as `errno.ENOENT`."""
    path: str | None
    """The file or directory that the error is about, in the native spelling of its machine."""
    program: str | None
    """The program that should have been executed."""

    def __init__(
        self,
        message: str = "",
        *,
        errno: int | None = None,
        path: str | None = None,
        program: str | None = None,
    ) -> None:
        super().__init__(message)
        self.errno = errno
        self.path = path
        self.program = program


class ProtocolError(HoldfastError):
    """A rule of the protocol was broken."""


class LocalProtocolError(ProtocolError):
    """Our own breach of the protocol: a bug, never sent to the peer."""


class RemoteProtocolError(ProtocolError):
    """A breach of the protocol by the peer that ends the connection."""


class MalformedMessage(ProtocolError):
    """
    A message could not be decoded; the connection can go on.

    Its text is the detail a server puts behind its "failed to parse" prefix.
    """


class RemoteError(HoldfastError):
    """The peer answered a request with an error object."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(f"exec-server rejected request ({code}): {message}")
        self.code = code
        self.message = message
        self.data = data


class Unsupported(RemoteError):
    """The peer does not know the method: it lacks that extension of Holdfast."""


class CommandFailed(HoldfastError):
    """A command that should have succeeded failed; `completed` has its output and verdict."""

    def __init__(self, message: str, completed: "Completed") -> None:
        super().__init__(message)
        self.completed = completed


class OutputLost(HoldfastError):
    """
    Output that a lossless stream needs is no longer retained.

    `first_seq` and `last_seq` are the first and the last missing number. A stream with `gaps=True`
    continues instead.
    """

    def __init__(self, first_seq: int, last_seq: int) -> None:
        super().__init__(
            f"output from sequence {first_seq} through {last_seq} is no longer retained;"
            " ask for the events with gaps=True to continue without it"
        )
        self.first_seq = first_seq
        self.last_seq = last_seq


class PatternNotFound(HoldfastError):
    """The output of a process ended without what was expected; `seen` is its text."""

    _WHAT = "the output ended without"

    def __init__(self, pattern: object, seen: str) -> None:
        # The end is shown: what a program waits for is usually there.
        shown = seen if len(seen) <= 500 else f"[...] {seen[-500:]}"
        super().__init__(f"{self._WHAT} {pattern!r}, after {shown!r}")
        self.pattern = pattern
        self.seen = seen


class PatternTimedOut(PatternNotFound, TimeoutError):
    """The pattern did not appear in time; it may still appear, and no output was consumed."""

    _WHAT = "timed out waiting for"


class ConnectionLost(HoldfastError):
    """The transport ended with work still in flight."""


class ConnectFailed(ConnectionLost):
    """The connection could not be made in the first place."""


class ConnectRefused(ConnectFailed):
    """The host refuses the connection, or is not the one expected: a retry has the same result."""


class ServerGone(ConnectFailed):
    """The server that has the session no longer exists: no retry will find it."""


class InvalidConfig(HoldfastError):
    """A configuration that a person wrote cannot be used; `advice` says what to change."""

    def __init__(
        self,
        message: str,
        advice: str | None = None,
        *,
        errno: int | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message, errno=errno, path=path)
        self.advice = advice
        if advice is not None:
            # A note is shown below a traceback and leaves the text as it is.
            self.add_note(advice)


class Refused(HoldfastError):
    """
    A request that cannot be granted; the text gives the reason and is meant for the caller.

    The server maps each kind to one code of the protocol. A Holdfast client also gets the kind,
    `errno`, `path` and `program`, and raises the same error again.

    With an `errno` it is also the built-in exception for that number. `NotFound` with `ENOENT` is a
    `FileNotFoundError`; any error with `EACCES` or `EPERM` is a `PermissionError`. It then has
    `strerror` and `filename`, too.
    """

    def __new__(cls, *args: object, errno: int | None = None, **options: object) -> "Refused":
        """Choose the class by the number, as `OSError` itself does."""
        if errno is None:
            return super().__new__(cls, *args)
        kind = cls if issubclass(cls, OSError) else _also_builtin(cls, errno)
        return OSError.__new__(kind, *args)

    def __str__(self) -> str:
        # Not `OSError.__str__`, which would put the number and the file name first.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[object, ...]:
        kind = type(self)
        # Made at run time, so pickle would not find it by its name.
        if kind in _BUILTIN_TWINS.values():
            # The class that the twin was made from, which pickle can find.
            kind = kind.__mro__[1]
        state = dict(vars(self), errno=self.errno)
        return _restored, (kind, self.args, state)


# Built-in exceptions that a refusal may be; with any other number it is a plain `OSError`. A
# `TimeoutError` or a `BrokenPipeError` would mislead code that catches those.
_FILE_ERRORS = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
)

# The classes that are also a built-in exception, keyed by their two bases.
_BUILTIN_TWINS: dict[tuple[type, type], type] = {}


def _also_builtin(cls: type["Refused"], number: int) -> type["Refused"]:
    """Return the class that is both `cls` and the built-in exception of a number."""
    # `OSError` itself maps an errno to its subclass.
    builtin = type(OSError(number, ""))
    if builtin not in _FILE_ERRORS:
        builtin = OSError
    twin = _BUILTIN_TWINS.get((cls, builtin))
    if twin is None:
        names = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "filename": property(lambda error: error.path or error.program),
            "strerror": property(_strerror),
        }
        twin = _BUILTIN_TWINS[cls, builtin] = type(cls.__name__, (cls, builtin), names)
    return twin


def _strerror(error: "Refused") -> str:
    """Return the system's text for the errno; the text of the error itself may say more."""
    # Only errors with an errno have this property.
    assert error.errno is not None
    return os.strerror(error.errno)


def _restored(kind: type["Refused"], args: tuple[object, ...], state: dict[str, object]) -> object:
    """Return an error as it was before it was pickled."""
    number = state.pop("errno")
    error = kind.__new__(kind, *args, errno=number)  # type: ignore[arg-type]
    error.args = args
    vars(error).update(state)
    error.errno = number  # type: ignore[assignment]
    return error


class InvalidParams(Refused):
    """The arguments are invalid, whatever the state."""


class InvalidPermissionPath(InvalidParams):
    """A sandbox profile, or its base directory, names a path of another operating system."""


class CannotEnforce(InvalidParams):
    """A sandbox profile is valid, but this machine cannot enforce it."""


class InvalidRequest(Refused):
    """The arguments are valid, but the current state does not allow the request."""


class UnknownProcess(InvalidRequest):
    """No process has that id in this session."""

    def __init__(self, process_id: str, message: str | None = None) -> None:
        super().__init__(message or f"unknown process id {process_id}")
        self.process_id = process_id


class DuplicateProcess(InvalidRequest):
    """The id belongs to a process that runs, or ended less than 80 s ago."""

    def __init__(self, process_id: str, message: str | None = None) -> None:
        super().__init__(message or f"process {process_id} already exists")
        self.process_id = process_id


class EnvironmentClosed(InvalidRequest):
    """The environment was closed and can no longer be used."""

    def __init__(self, name: str) -> None:
        super().__init__(f"environment `{name}` is closed: open it again with `holdfast.connect`")
        self.name = name


class SessionAttached(Refused):
    """The session to resume has a connection that is still alive."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} is already attached to another connection")
        self.session_id = session_id


class Overloaded(Refused):
    """Too many requests at once; the same request may succeed a moment later."""


class MethodNotFound(Refused):
    """There is no such method."""


class NotFound(Refused):
    """There is no such file (`errno` is `ENOENT`), or no such file handle."""


class OperationFailed(Refused):
    """The operating system refused."""


class SpawnFailed(OperationFailed):
    """
    A program could not be started.

    `errno` is set if the kernel gave one; `program` is what was to be executed. `path` is set
    if the fault is another file or directory, most often the working directory.
    """


class StdinClosed(OperationFailed):
    """The stdin of the process is closed."""
