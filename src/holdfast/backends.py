"""
The seams: what the layers above know of processes, wherever those live.

A local and a remote implementation pass the same contract tests, so a caller does
not know which one it has. Seconds and native types here; the wire's units end below.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from holdfast.events import ProcessEvent, Verdict
from holdfast.protocol.fs import (
    DirectoryEntry,
    FileMetadata,
    OpenMode,
    WalkOptions,
    WalkResponse,
)
from holdfast.protocol.http import HttpRequestParams, HttpResponse
from holdfast.protocol.paths import PathUri
from holdfast.protocol.process import Enforcement, ReadResponse, StartParams, WriteStatus
from holdfast.protocol.sandbox import SandboxContext

__all__ = [
    "ExecBackend",
    "ExecProcess",
    "FileHandle",
    "FileSystem",
    "HttpBody",
    "HttpClient",
    "MissingWatch",
]


class ExecProcess(Protocol):
    """One process that was started."""

    @property
    def process_id(self) -> str:
        """The handle it was started with."""

    @property
    def enforcement(self) -> Enforcement | None:
        """What its sandbox enforces; `None` without one, or if a server does not tell."""

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        """
        The retained output after a number.

        Args:
            after_seq: The last number the caller has.
            max_bytes: Stop before exceeding it, but never before the first chunk.
            wait: Seconds to wait for news if there are none.
        """

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        """
        Write to its input; waits while its queue is full.

        Args:
            data: May be empty.
            write_id: Bytes with an id that was accepted before are not written
                again; a fresh one is made if none is given.

        Raises:
            StdinClosed: It was terminated.
        """

    async def close_stdin(self) -> None:
        """
        Let it read the end of its input.

        Raises:
            Unsupported: The server does not know how.
        """

    async def resize(self, rows: int, cols: int) -> None:
        """
        Change the size of its terminal.

        Raises:
            Unsupported: The server does not know how.
        """

    async def signal(self, name: str) -> None:
        """
        Signal its group; nothing happens once it has exited.

        Args:
            name: `interrupt`, or where the server takes them a name like `SIGTERM`.
        """

    async def terminate(self, *, tree: bool = False) -> bool:
        """
        Kill its group at once; whether it was running.

        Args:
            tree: Also what left the group and is still below it: a child with a
                session of its own, a job of a shell. A Codex server knows groups only.
        """

    def events(self) -> AsyncIterator[ProcessEvent]:
        """
        Everything that happens to it, in order and without loss, up to the close.

        Begins with what is retained. A caller that falls behind makes the process
        wait rather than lose anything.

        Raises:
            ConnectionLost: The process cannot be reached any more, nor will be.
        """

    async def wait(self) -> Verdict:
        """
        Wait for its close and tell how it ended.

        Raises:
            ConnectionLost: As for `events`.
        """


class ExecBackend(Protocol):
    """A place where processes can be started."""

    async def start(self, params: StartParams) -> ExecProcess:
        """
        Start one.

        Raises:
            Refused: The arguments are wrong, or the system said no.
            RemoteError: The same, said by a server.
            ConnectionLost: There is no connection to start it over.
        """


class FileHandle(Protocol):
    """An open file, read or written in blocks of at most 1 MiB."""

    async def read_block(self, offset: int, size: int) -> tuple[bytes, bool]:
        """Up to `size` bytes from there, and whether the file ended before `size` was reached."""

    async def write_block(self, offset: int, data: bytes) -> None:
        """Write there; a gap becomes zeros."""

    async def aclose(self) -> None:
        """
        Let go of it; harmless a second time. What was written is the file from here on.

        Raises:
            OperationFailed: It could not take the place of the file.
        """

    def discard(self) -> None:
        """Let go of it and forget what was written, where that can still be."""


class FileSystem(Protocol):
    """
    Files, wherever they are. Every path is a URI, and may be foreign to this machine.

    `sandbox` limits what an operation may touch. An implementation that cannot
    enforce it refuses the operation.

    Raises (all methods):
        NotFound: There is no such file.
        InvalidRequest: The operation cannot be done on it, or is not permitted.
        OperationFailed: Any other error of the system.
    """

    async def read_file(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> bytes:
        """All of a regular file, up to 512 MiB."""

    async def open(
        self, path: PathUri, mode: OpenMode = "read", *, sandbox: SandboxContext | None = None
    ) -> FileHandle:
        """Open a regular file to read it, or to replace its content."""

    async def write_file(
        self,
        path: PathUri,
        data: bytes,
        *,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        """Create a file or replace its content; its folder must exist."""

    async def create_directory(
        self,
        path: PathUri,
        *,
        recursive: bool = True,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        """Make a folder, with `recursive` also those above it."""

    async def get_metadata(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> FileMetadata:
        """What kind of file it is, its size and its times."""

    async def canonicalize(
        self, path: PathUri, *, sandbox: SandboxContext | None = None
    ) -> PathUri:
        """The path with all links resolved; it must exist."""

    async def read_directory(
        self, path: PathUri, *, sandbox: SandboxContext | None = None
    ) -> list[DirectoryEntry]:
        """What is in a folder, in no order."""

    async def walk(
        self, path: PathUri, options: WalkOptions, *, sandbox: SandboxContext | None = None
    ) -> WalkResponse:
        """What is in a folder and below it, breadth first, within limits."""

    async def remove(
        self,
        path: PathUri,
        *,
        recursive: bool = True,
        force: bool = True,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        """Remove a file or a folder; with `force` one that is not there is fine."""

    async def copy(
        self,
        source: PathUri,
        destination: PathUri,
        *,
        recursive: bool,
        sandbox: SandboxContext | None = None,
    ) -> None:
        """Copy a file, a link or, with `recursive`, a folder."""

    async def watch_missing(
        self, missing: Sequence[PathUri], present: PathUri | None = None
    ) -> "MissingWatch | None":
        """Watch for files to appear; `None` if they cannot be watched."""


class MissingWatch(Protocol):
    """A watch that fires once."""

    async def changed(self) -> None:
        """Wait until one of the missing files may have appeared."""

    def cancel(self) -> None:
        """Watch no more."""


class HttpBody(Protocol):
    """The body of a streamed response, piece by piece."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """
        The pieces, as they come.

        Raises:
            OperationFailed: The rest could not be read.
        """

    async def aclose(self) -> None:
        """Read no more of it."""


class HttpClient(Protocol):
    """HTTP calls from where the processes run."""

    async def request(self, params: HttpRequestParams) -> HttpResponse:
        """
        Make a call and read its whole body; `stream_response` is ignored.

        Raises:
            InvalidParams: The request cannot be made as asked for.
            OperationFailed: No answer came.
        """

    async def stream(self, params: HttpRequestParams) -> tuple[HttpResponse, HttpBody]:
        """As `request`, but returns with the headers; the body is read by the caller."""
