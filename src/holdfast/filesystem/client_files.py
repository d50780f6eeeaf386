"""
Optional fast paths of a `FileSystem` that a server uses.

A server gets one of these per client. `LocalFileSystem` has them all. For any other
`FileSystem` they are made of the required methods, by `server.backend_files`.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from holdfast.backends import FileSystem
from holdfast.filesystem.threads import Threads
from holdfast.protocol.fs import FileMetadata, OpenMode
from holdfast.protocol.paths import PathUri
from holdfast.protocol.sandbox import SandboxContext

__all__ = ["ClientFileHandle", "ClientFiles", "ServesClients"]


# Futures and not coroutines: an operation is in the queue when the call returns,
# whether or not anybody awaits it.
class ClientFileHandle(Protocol):
    """
    An open file whose operations are queued when they are called, not when they are awaited.

    So requests keep their order, though a task answers each.
    """

    @property
    def opened(self) -> asyncio.Future[None]:
        """Done when the file is open, or has the error."""

    def start_reading(self, offset: int, size: int) -> asyncio.Future[tuple[bytes, bool]]:
        """
        Queue a `FileHandle.read_block`; return its future.

        An error of the system closes the file. `NotFound` means that it was closed before.
        """

    def start_writing(self, offset: int, data: bytes) -> asyncio.Future[None]:
        """Queue a `FileHandle.write_block`; return its future."""

    def start_closing(self) -> asyncio.Future[None]:
        """Queue a `FileHandle.aclose`; return its future."""

    def discard(self) -> None:
        """Close the file in the background, and drop what was written."""


class ClientFiles(FileSystem, Protocol):
    """Files for one client of a server, with answers that need no wait where they can be had."""

    def check_path(self, path: PathUri) -> None:
        """
        Refuse a path that can never name a file here, before anything else is checked.

        Raises:
            InvalidRequest: It is a path of another operating system.
        """

    def read_file_nowait(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> bytes | None:
        """Return the content of a file if it can be had without a wait, or None."""

    def get_metadata_nowait(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> FileMetadata | None:
        """Return the metadata of a path if it can be had without a wait, or None."""

    def start_opening(
        self,
        path: PathUri,
        mode: OpenMode,
        *,
        permissions: int | None = None,
        sandbox: SandboxContext | None = None,
    ) -> ClientFileHandle:
        """Return a handle at once, which opens in the background."""

    async def write_pieces(
        self,
        path: PathUri,
        pieces: Iterable[bytes],
        *,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        """Write a file from pieces, which are produced in a thread; see `write_file`."""


# Checked once per connection, so the cost of a runtime check does not matter.
@runtime_checkable
class ServesClients(Protocol):
    """A `FileSystem` with fast paths for the clients of a server."""

    def for_client(self, threads: Threads) -> ClientFiles:
        """Return the same files for one of several clients, by the threads of that client."""
