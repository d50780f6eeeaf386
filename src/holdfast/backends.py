"""
The protocols that separate callers from implementations: processes, files and HTTP calls.

Local and remote implementations pass the same contract tests, so a caller need not know which
one it has. Times are in seconds and types are native; units of the wire stay below.

An implementation may write any `async def` method as a plain one with `at_once`. It then answers
at once if it can, and a server takes that answer without a task.
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
    An answer that needs no wait: `value` has it, and so has whoever awaits it.

    It is a coroutine in all respects, so that a task can be made of it.
    """

    __slots__ = ("error", "value")

    def __init__(self, value: T_co, error: Exception | None = None) -> None:
        self.value = value
        """The answer, unless there is an error."""
        self.error = error
        """The error of a call that failed; whoever awaits the answer gets it."""

    @classmethod
    def failed(cls, error: Exception) -> "Ready[Any]":
        """Return the answer of a call that failed."""
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
        """Do nothing: the call has been made."""


class Later(Coroutine[Any, Any, T_co]):
    """An answer that a future will have; cancelled at once, although nothing awaits it yet."""

    __slots__ = ("_future", "_steps", "cancel")

    def __init__(self, future: Any) -> None:
        """`future` is one of asyncio, which this module does not import."""
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
    Make a method of a seam from one that returns its answer, or a coroutine if it has to wait.

    The call acts at once. Its error is raised where the answer is awaited.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        try:
            found: Any = method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
            return Ready.failed(error)
        # Not `isinstance`: with an abstract class it takes three times as long.
        return found if hasattr(found, "__await__") else Ready(found)

    return call


# Protocols and not base classes: an implementation need not import this module.
class EventStream(Protocol):
    """
    The events of one process in order, up to its close.

    Only one task may wait for the next event at a time. A wait that is cancelled loses
    nothing. At least every 64 KiB or 64 events it lets the event loop run.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> ProcessEvent:
        """
        Return the next event.

        Raises:
            OutputLost: Events are gone, and the stream was asked for without gaps.
            ConnectionLost: The process cannot be reached any more, nor will be.
        """

    def take_output(self, most: int) -> OutputChunk | None:
        """
        Return the next event without a wait, if it is output of at most `most` bytes.

        For a reader that joins pieces which are here already. Nobody may be waiting.
        """

    def close(self) -> None:
        """
        Stop reading, so that the process no longer waits for this reader; harmless when called
        again.

        A pending wait for the next event ends, as at the end of the stream.
        """

    @property
    def ready(self) -> bool:
        """True if the next event is here already."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...


class ExecProcess(Protocol):
    """One process that was started."""

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
        The enforced sandbox layers; None without a sandbox, or if the server does not send
        them.
        """

    @property
    def sandbox_type(self) -> str:
        """The kind of sandbox it was started in, as on the wire: `none`, `linuxSeccomp`, …"""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict as known here by now, however far readers are; None while it runs."""

    async def exited(self) -> Verdict:
        """
        Wait for the exit, not for the end of output; reads no events.

        On a server without our extensions a lossless stream that is far behind holds the
        connection, and with it the news of the exit.

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
        Return everything that happens to it after a number, in order, up to the close.

        A reader that falls behind by 1 MiB or 4,096 events makes the process wait. A server
        without our extensions can hold only a whole connection, so that waits; with `gaps`, and
        if it reads nothing for half a second, it loses its oldest events instead.

        Args:
            after_seq: The last number the caller has. One that is beyond the end is no error:
                the stream then has only what comes after it, and ends at the close.
            gaps: Go on with a `Gap` where output is kept nowhere any more. Without it the
                stream raises `OutputLost`, and a remote process whose output was lost while
                its line was down fails.
            stream_ends: Also report `StreamEnded`, where the server sends it.

        Raises:
            InvalidParams: `after_seq` is below zero.
        """

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        """
        Return the retained output after a number.

        A closed process is answered from the copy on this side, also after its server has
        forgotten it.

        Args:
            after_seq: The last number the caller has; one beyond the end is no error.
            max_bytes: Stop before exceeding it, but never before the first chunk.
            wait: Seconds to wait for news if there are none.

        Raises:
            InvalidParams: A number is below zero.
            ConnectionLost: The server is lost, and the process was not closed before.
        """

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        """
        Write to its input; waits while its queue is full, but not for a lost line.

        While the line is down the bytes are accepted here and go out when it is back.

        Args:
            data: May be empty.
            write_id: Bytes with an id that was accepted before are not written
                again. A fresh one is made if none is given: a number, so give a word.

        Returns:
            `STDIN_CLOSED` if it has no input, or was terminated.

        Raises:
            TypeError: `data` is no bytes.
            InvalidParams: `write_id` is empty.
            ConnectionLost: The server is lost for good.
        """

    async def close_stdin(self) -> None:
        """
        Let it read the end of its input.

        Raises:
            InvalidRequest: It has a terminal, whose input has no end.
            Unsupported: The server does not know how.
        """

    async def resize(self, rows: int, cols: int) -> None:
        """
        Change the size of its terminal.

        Raises:
            InvalidParams: There is no such size.
            InvalidRequest: It has no terminal.
            Unsupported: The server does not know how.
            ConnectionLost: The line broke meanwhile, or the server is lost for good.
        """

    async def waiting_for(self) -> WaitingFor:
        """
        Return what its terminal is read for at this moment, as the kernel shows it.

        It looks once, or twice within 100 ms, and does not wait for a change. Call it when
        the process has been quiet for a while, not in a loop. It looks at the foreground group
        of the terminal: at a job of a shell, too, and at what runs in a sandbox.

        Returns:
            `UNKNOWN` on pipes, on a server without our extensions, and where the system does not
            tell, as of a process of another user. `NONE` once the process has exited.

        Raises:
            ConnectionLost: As for `read`.
        """

    async def signal(self, name: str) -> None:
        """
        Signal its group; nothing happens once it has exited.

        Args:
            name: `interrupt`, or where the server takes them a name like `SIGTERM`.

        Raises:
            InvalidParams: There is no such signal.
            OperationFailed: The system refused; `errno` says why.
            Unsupported: The server knows `interrupt` only.
            ConnectionLost: The line broke meanwhile, so that nobody knows whether it arrived,
                or the server is lost for good.
        """

    async def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        """
        Kill its group at once; does not wait for a lost line.

        While the line is down the process is marked here, and the call goes out later. What is
        in its pipes when it dies is read first, up to 2 MiB of each stream.

        Args:
            tree: Also what left the group and is still below it: a child with a
                session of its own, a job of a shell. The base protocol knows groups only.
            left: Also what an exited process left in its group. The base protocol leaves it.
            streams: `close` ends the output then, whoever still has it open; `keep` reads on
                until its end, or until a reader closes it. The base protocol always closes.

        Returns:
            True if there was something to kill. While the line is down: True if the process
            is not known to have exited.

        Raises:
            InvalidParams: `streams` is another word.
            OperationFailed: The system refused; `errno` says why.
            ConnectionLost: The server is lost for good.
        """


class ExecBackend(Protocol):
    """A machine on which processes can be started."""

    async def start(self, params: StartParams) -> ExecProcess:
        """
        Start a process.

        A connection that breaks meanwhile is recovered; the process is started once, not twice.

        Raises:
            InvalidParams: The arguments are wrong in themselves.
            DuplicateProcess: The id is taken.
            SpawnFailed: The system refused; `errno` is set if it gave one.
            Unsupported: The server lacks an extension that was asked for.
            ConnectionLost: The server, or the session on it, is lost.
        """


@runtime_checkable
class ReportsCapabilities(Protocol):
    """Optional part of an `ExecBackend`: a server announces no more than this to its clients."""

    @property
    def capabilities(self) -> Capabilities:
        """The features of the processes that it starts."""


class FileHandle(Protocol):
    """An open file, read or written in blocks of at most 1 MiB."""

    async def read_block(self, offset: int, size: int) -> tuple[bytes, bool]:
        """
        Return up to `size` bytes from `offset`, and True if the file ended before `size` bytes.
        """

    async def write_block(self, offset: int, data: bytes) -> None:
        """Write at `offset`; a gap becomes zeros."""

    async def aclose(self) -> None:
        """
        Close the file; harmless when called again. In mode `replace` this puts the new content
        in place.

        Raises:
            OperationFailed: The new content could not be put in place.
        """

    def discard(self) -> None:
        """Close the file and drop what was written, if it is not in place yet."""


class FileSystem(Protocol):
    """
    Files, wherever they are. Every path is a URI, and may be foreign to this machine.

    Operations take the params of the wire (docs/protocol.md#fs). `sandbox` limits what an
    operation may touch. An implementation that cannot enforce it refuses the operation.

    Raises (all methods):
        NotFound: There is no such file.
        InvalidRequest: The operation cannot be done on it, or is not permitted.
        OperationFailed: Any other error of the system.
    """

    async def read_file(self, params: ReadFileParams) -> bytes:
        """Return the content of a regular file, up to 512 MiB or `max_bytes`."""

    async def open(self, params: OpenParams) -> FileHandle:
        """
        Open a regular file to read it, or to replace its content.

        With `permissions` a file that is replaced gets these permission bits; a server
        without our extensions cannot set them, and leaves them as they are.
        """

    async def write_file(self, params: WriteFileParams) -> None:
        """Create a file or replace its content; its directory must exist."""

    async def create_directory(self, params: CreateDirectoryParams) -> None:
        """Create a directory, with `recursive` also its parents."""

    async def get_metadata(self, params: GetMetadataParams) -> FileMetadata:
        """Return the kind of a file, its size and its times."""

    async def canonicalize(self, params: CanonicalizeParams) -> PathUri:
        """Return the path with all links resolved; it must exist."""

    async def read_directory(self, params: ReadDirectoryParams) -> list[DirectoryEntry]:
        """Return the entries of a directory, unordered."""

    async def walk(self, params: WalkParams) -> WalkResponse:
        """Return the entries below a directory, breadth first, within the limits of `options`."""

    async def remove(self, params: RemoveParams) -> None:
        """Remove a file or a directory; with `force` a missing one is no error."""

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
        """Watch for files to appear; None if that cannot be done."""


class MissingWatch(Protocol):
    """A watch that fires once."""

    async def changed(self) -> None:
        """Wait until one of the missing files may have appeared."""

    def cancel(self) -> None:
        """Stop watching."""


class HttpBody(Protocol):
    """The body of a streamed response, piece by piece."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """
        Iterate over the pieces as they arrive.

        Raises:
            OperationFailed: The rest could not be read.
        """

    async def aclose(self) -> None:
        """Stop reading."""


class HttpClient(Protocol):
    """HTTP calls made by the machine on which the processes run."""

    async def request(self, params: HttpRequestParams) -> HttpResponse:
        """
        Make a call and read its whole body; `stream_response` is ignored.

        Raises:
            InvalidParams: The request cannot be made as asked for.
            OperationFailed: No answer came.
        """

    async def stream(self, params: HttpRequestParams) -> tuple[HttpResponse, HttpBody]:
        """Make a call and return after the headers; the caller reads the body."""


class RunInThread(Protocol):
    """Runs a function in a thread and returns its result."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@runtime_checkable
class ResolvesNames(Protocol):
    """Optional part of an `HttpClient`: it resolves names in threads of its caller."""

    def resolving_by(self, run: RunInThread) -> HttpClient:
        """Return the same client, for calls that resolve names with this."""
