"""
The protocols that separate callers from implementations: processes, files and HTTP calls.

Local and remote implementations pass the same contract tests, so a caller need not know which
it has. Times are in seconds and types are native Python; the units of the wire are hidden.

An implementation may write any `async def` method as a plain one with `at_once`. It then returns
at once if it can, and the server needs no task to await the result.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from functools import wraps
from typing import Any, ParamSpec, Protocol, Self, TypeVar, runtime_checkable

from holdfast.events import ProcessEvent, Verdict, WaitingFor
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CopyParams,
    CreateDirectoryParams,
    DirectoryEntry,
    FileMetadata,
    GetMetadataParams,
    OpenParams,
    ReadDirectoryParams,
    ReadFileParams,
    RemoveParams,
    RenameParams,
    WalkParams,
    WalkResponse,
    WatchMissingParams,
    WriteFileParams,
)
from holdfast.wire.protocol.handshake import Capabilities
from holdfast.wire.protocol.http import HttpRequestParams, HttpResponse
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import (
    Enforcement,
    OutputChunk,
    ReadResponse,
    StartParams,
    StreamsAtEnd,
    WriteStatus,
)

__all__ = [
    "EventStream",
    "ExecBackend",
    "ExecProcess",
    "FileHandle",
    "FileSystem",
    "HttpBody",
    "HttpClient",
    "Later",
    "MissingWatch",
    "Ready",
    "ReportsCapabilities",
    "ResolvesNames",
    "RunInThread",
    "at_once",
]

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Ready(Coroutine[Any, Any, T_co]):
    """
    A result that is already known: `value` has it, and awaiting returns it without waiting.

    A full coroutine, so that a task can be created from it.
    """

    __slots__ = ("error", "value")

    def __init__(self, value: T_co, error: Exception | None = None) -> None:
        self.value = value
        """The result, unless there is an error."""
        self.error = error
        """The error of a failed call; raised when the result is awaited."""

    @classmethod
    def failed(cls, error: Exception) -> "Ready[Any]":
        """Return the result of a failed call."""
        return Ready[Any](None, error)

    def __await__(self) -> Generator[Any, Any, T_co]:
        yield from ()
        if self.error is not None:
            raise self.error
        return self.value

    def send(self, value: object) -> Any:
        if self.error is not None:
            raise self.error
        raise StopIteration(self.value)

    def throw(self, error: Any, value: object = None, traceback: object = None) -> Any:
        raise error

    def close(self) -> None:
        """Do nothing: the call has already run."""


class Later(Coroutine[Any, Any, T_co]):
    """The result of a future, which is cancelled at once even if not awaited yet."""

    __slots__ = ("_future", "_steps", "cancel")

    def __init__(self, future: Any) -> None:
        """`future` is an `asyncio.Future`; this module does not import asyncio."""
        self._future = future
        self._steps = future.__await__()
        self.cancel: Callable[[], bool] = future.cancel

    def __await__(self) -> Generator[Any, Any, T_co]:
        waiting: Generator[Any, Any, T_co] = self._future.__await__()
        return waiting

    def send(self, value: object) -> Any:
        return self._steps.send(value)

    def throw(self, error: Any, value: object = None, traceback: object = None) -> Any:
        self.cancel()
        return self._steps.throw(error)

    def close(self) -> None:
        self.cancel()


def at_once(
    method: Callable[P, T | Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """
    Turn a method that returns its result, or a coroutine if it has to wait, into one of a seam.

    The call takes effect at once. Its error is raised when the result is awaited.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        try:
            found: Any = method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
            return Ready.failed(error)
        # `isinstance` with an abstract class would take three times as long.
        return found if hasattr(found, "__await__") else Ready(found)

    return call


# Protocols, not base classes: an implementation need not import this module.
class EventStream(Protocol):
    """
    The events of one process in order, up to its close.

    Only one task may wait for the next event at a time. Cancelling a wait loses nothing. The
    event loop runs at least once every 64 KiB or 64 events.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> ProcessEvent:
        """
        Return the next event.

        Raises:
            OutputLost: Events were evicted, and the stream was requested without gaps.
            ConnectionLost: The connection to the process was lost for good.
        """

    def take_output(self, most: int) -> OutputChunk | None:
        """
        Return the next event without waiting, if it is output of at most `most` bytes.

        For readers that join available chunks. No task may be waiting for an event.
        """

    def close(self) -> None:
        """
        Stop reading, so that the process no longer waits for this reader; idempotent.

        A pending wait for the next event ends as at the end of the stream.
        """

    @property
    def ready(self) -> bool:
        """True if the next event is available without waiting."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...


class ExecProcess(Protocol):
    """A process that was started."""

    @property
    def process_id(self) -> str:
        """The handle it was started with."""

    @property
    def pid(self) -> int | None:
        """Its pid on the machine where it runs; None if the server does not send it."""

    @property
    def remote(self) -> bool:
        """True for a process behind a connection, whose events may arrive late."""

    @property
    def enforcement(self) -> Enforcement | None:
        """
        The enforced sandbox layers; None without a sandbox, or if the server does not report
        them.
        """

    @property
    def sandbox_type(self) -> str:
        """The kind of sandbox it was started in, as on the wire: `none`, `linuxSeccomp`, …"""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict as soon as it is known, however far readers are; None while it runs."""

    async def exited(self) -> Verdict:
        """
        Wait for the exit, but not for the end of output; does not read events.

        On a server without Holdfast's extensions, a lossless stream that is far behind holds the
        connection, and thereby delays the exit.

        Raises:
            ConnectionLost: As for `events`.
        """

    async def wait(self) -> Verdict:
        """
        Wait for the close and return how it ended.

        Raises:
            ConnectionLost: As for `events`.
        """

    def events(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> EventStream:
        """
        Return all events after a number, in order, up to the close.

        A reader that falls behind by 1 MiB or 4,096 events makes the process wait. A server without
        Holdfast's extensions can only hold a whole connection, which waits instead; with `gaps`, a
        reader that reads nothing for half a second loses its oldest events.

        Args:
            after_seq: Last number the caller has. It may lie beyond the end: the stream then has
                only later events, and ends at the close.
            gaps: Continue with a `Gap` where output is no longer retained. Otherwise the stream
                raises `OutputLost`, and a remote process whose output was lost while its
                connection was down fails.
            stream_ends: Also report `StreamEnded`, if the server sends it.

        Raises:
            InvalidParams: `after_seq` is negative.
        """

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        """
        Return the retained output after a number.

        For a closed process the local copy is used, even after its server has forgotten it.

        Args:
            after_seq: Last number the caller has; may lie beyond the end.
            max_bytes: Stop before exceeding it, but not before the first chunk.
            wait: Seconds to wait for an event if there is none.

        Raises:
            InvalidParams: A number is negative.
            ConnectionLost: The server was lost before the process was closed.
        """

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        """
        Write to its stdin; waits while the queue is full, but not for a lost connection.

        While the connection is down, bytes are queued here and sent when it is back.

        Args:
            data: May be empty.
            write_id: Bytes with an id that was accepted before are not written again. By
                default a new id is used; those are numbers, so choose a word.

        Returns:
            `STDIN_CLOSED` if its stdin is not open, or it was terminated.

        Raises:
            TypeError: `data` is not bytes.
            InvalidParams: `write_id` is empty.
            ConnectionLost: The server is lost for good.
        """

    async def close_stdin(self) -> None:
        """
        Close its stdin.

        Raises:
            InvalidRequest: It has a terminal, whose input cannot be closed.
            Unsupported: The server lacks the method.
        """

    async def resize(self, rows: int, cols: int) -> None:
        """
        Change the size of its terminal.

        Raises:
            InvalidParams: A terminal cannot have that size.
            InvalidRequest: It has no terminal.
            Unsupported: The server lacks the method.
            ConnectionLost: The connection broke meanwhile, or the server is lost for good.
        """

    async def waiting_for(self) -> WaitingFor:
        """
        Return which input it is reading from its terminal, as shown by the kernel.

        Checks once, or twice within 100 ms, and does not wait for a change. Call it when the
        process has been quiet for a while, not in a loop. Checks the foreground process group of
        the terminal, including jobs of a shell and commands in a sandbox.

        Returns:
            `UNKNOWN` on pipes, on a server without Holdfast's extensions, and if the kernel
            hides it, as for a process of another user. `NONE` once the process has exited.

        Raises:
            ConnectionLost: As for `read`.
        """

    async def signal(self, name: str) -> None:
        """
        Signal its process group; does nothing once it has exited.

        Args:
            name: `interrupt` or, if the server accepts it, a name like `SIGTERM`.

        Raises:
            InvalidParams: There is no such signal.
            OperationFailed: The system refused; `errno` says why.
            Unsupported: The server only supports `interrupt`.
            ConnectionLost: The connection broke meanwhile, so the signal may or may not have
                arrived, or the server is lost for good.
        """

    async def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        """
        Kill its process group at once; does not wait for a lost connection.

        While the connection is down, the call is queued here and sent later. Output that is in
        the pipes when the process dies is read first, up to 2 MiB of each stream.

        Args:
            tree: Also kill descendants that have left the group: a child with its own session, a
                job of a shell. The base protocol only knows groups.
            left: Also kill the group of a process that has exited. The base protocol does not.
            streams: `close` ends the output, even if other processes hold it open; `keep` reads
                until its end, or until a reader closes it. The base protocol always closes.

        Returns:
            True if a process was killed. While the connection is down: True unless the process
            is known to have exited.

        Raises:
            InvalidParams: `streams` has another value.
            OperationFailed: The system refused; `errno` says why.
            ConnectionLost: The server is lost for good.
        """


class ExecBackend(Protocol):
    """A machine on which processes can be started."""

    async def start(self, params: StartParams) -> ExecProcess:
        """
        Start a process.

        A connection that breaks meanwhile is recovered, without starting the process twice.

        Raises:
            InvalidParams: The arguments are invalid.
            DuplicateProcess: The id is in use.
            SpawnFailed: The system refused; `errno` is set if it gave one.
            Unsupported: The server lacks a requested extension.
            ConnectionLost: The server, or the session on it, is lost.
        """


@runtime_checkable
class ReportsCapabilities(Protocol):
    """Optional for an `ExecBackend`: the features that a server may announce to its clients."""

    @property
    def capabilities(self) -> Capabilities:
        """Features of the processes that it starts."""


class FileHandle(Protocol):
    """An open file, read or written in blocks of at most 1 MiB."""

    async def read_block(self, offset: int, size: int) -> tuple[bytes, bool]:
        """
        Return up to `size` bytes from `offset`, and True if the file ended before `size` bytes.
        """

    async def write_block(self, offset: int, data: bytes) -> None:
        """Write at `offset`; a gap is filled with zeros."""

    async def aclose(self) -> None:
        """
        Close the file; idempotent. In mode `replace` this puts the new content in place.

        Raises:
            OperationFailed: The new content could not be put in place.
        """

    def discard(self) -> None:
        """Close the file and drop new content that is not in place yet."""


class FileSystem(Protocol):
    """
    Files of a machine. Every path is a URI, possibly of another operating system.

    Operations take the params of the wire (docs/protocol.md#fs). `sandbox` limits which files an
    operation may use. An implementation that cannot enforce it refuses the operation.

    Raises (all methods):
        NotFound: There is no such file.
        InvalidRequest: The operation is impossible for it, or not permitted.
        OperationFailed: Any other error of the system.
    """

    async def read_file(self, params: ReadFileParams) -> bytes:
        """Return the content of a regular file, up to 512 MiB or `max_bytes`."""

    async def open(self, params: OpenParams) -> FileHandle:
        """
        Open a regular file for reading, or to replace its content.

        With `permissions`, the replaced file gets these permission bits; a server without
        Holdfast's extensions cannot set them, and leaves them unchanged.
        """

    async def write_file(self, params: WriteFileParams) -> None:
        """Create a file or replace its content; its directory must exist."""

    async def create_directory(self, params: CreateDirectoryParams) -> None:
        """Create a directory; with `recursive`, also its parents."""

    async def get_metadata(self, params: GetMetadataParams) -> FileMetadata:
        """Return the type, size and times of a file."""

    async def canonicalize(self, params: CanonicalizeParams) -> PathUri:
        """Return the path with all links resolved; it must exist."""

    async def read_directory(self, params: ReadDirectoryParams) -> list[DirectoryEntry]:
        """Return the entries of a directory, unordered."""

    async def walk(self, params: WalkParams) -> WalkResponse:
        """Return the entries below a directory, breadth first, within the limits of `options`."""

    async def remove(self, params: RemoveParams) -> None:
        """Remove a file or a directory; with `force`, ignore a missing one."""

    async def copy(self, params: CopyParams) -> None:
        """Copy a file, a link or, with `recursive`, a directory."""

    async def rename(self, params: RenameParams) -> None:
        """
        Rename a file, a link or a directory atomically; an existing file is replaced.

        Raises:
            Unsupported: The server lacks the method.
            OperationFailed: Also if source and destination are on different file systems
                (`EXDEV`).
        """

    async def watch_missing(self, params: WatchMissingParams) -> "MissingWatch | None":
        """Watch for files to appear; None if that is not supported."""


class MissingWatch(Protocol):
    """A watch that triggers once."""

    async def changed(self) -> None:
        """Wait until one of the missing files may have appeared."""

    def cancel(self) -> None:
        """Stop watching."""


class HttpBody(Protocol):
    """Body of a streamed response, in pieces."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """
        Iterate over the pieces as they arrive.

        Raises:
            OperationFailed: The rest could not be read.
        """

    async def aclose(self) -> None:
        """Stop reading."""


class HttpClient(Protocol):
    """HTTP calls from the machine on which the processes run."""

    async def request(self, params: HttpRequestParams) -> HttpResponse:
        """
        Make a call and read its whole body; `stream_response` is ignored.

        Raises:
            InvalidParams: The request is invalid.
            OperationFailed: There was no response.
        """

    async def stream(self, params: HttpRequestParams) -> tuple[HttpResponse, HttpBody]:
        """Make a call and return after the headers; the caller reads the body."""


class RunInThread(Protocol):
    """Runs a function in a thread and returns its result."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@runtime_checkable
class ResolvesNames(Protocol):
    """Optional for an `HttpClient`: resolves names in threads of its caller."""

    def resolving_by(self, run: RunInThread) -> HttpClient:
        """Return the same client, resolving names by `run`."""
