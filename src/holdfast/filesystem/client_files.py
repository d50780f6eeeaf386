"""
Optional fast paths of a `FileSystem` that a server uses.

A server gets one of these per client. `LocalFileSystem` has them all. For any other
`FileSystem` they are made of the required methods, by `server.backend_files`.
"""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from holdfast.backends import FileSystem
from holdfast.filesystem.threads import Threads
from holdfast.protocol.fs import FileMetadata
from holdfast.protocol.paths import PathUri
from holdfast.protocol.sandbox import SandboxContext

__all__ = ["ClientFiles", "ServesClients"]


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
