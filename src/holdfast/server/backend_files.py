"""
Serves the files of any `FileSystem`: makes its optional fast paths of the required methods.

Nothing is answered without a wait here, and large contents pass through memory once more.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from holdfast.backends import FileHandle, FileSystem, MissingWatch
from holdfast.filesystem.threads import Threads
from holdfast.protocol.fs import (
    DirectoryEntry,
    FileMetadata,
    OpenMode,
    WalkOptions,
    WalkResponse,
)
from holdfast.protocol.paths import PathUri
from holdfast.protocol.sandbox import SandboxContext

__all__ = ["BackendFiles"]

T = TypeVar("T")


class BackendFiles:
    """The files of a backend, for one client."""

    def __init__(self, filesystem: FileSystem, threads: Threads) -> None:
        self._files = filesystem
        self._threads = threads

    # -- fast paths

    def check_path(self, path: PathUri) -> None:
        """Accept all: the backend may be another operating system, and knows its own paths."""

    def read_file_nowait(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> None:
        return None

    def get_metadata_nowait(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> None:
        return None

    async def write_pieces(
        self,
        path: PathUri,
        pieces: Iterable[bytes],
        *,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        # In a thread: the pieces are decoded as they are joined, which takes a while.
        data = await self._threads.run(lambda: b"".join(pieces))
        await self.write_file(path, data, follow_symlinks=follow_symlinks, sandbox=sandbox)

    # -- required methods

    async def read_file(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> bytes:
        return await self._files.read_file(path, follow_symlinks=follow_symlinks, sandbox=sandbox)

    async def open(
        self,
        path: PathUri,
        mode: OpenMode = "read",
        *,
        permissions: int | None = None,
        sandbox: SandboxContext | None = None,
    ) -> FileHandle:
        return await self._files.open(path, mode, permissions=permissions, sandbox=sandbox)

    async def write_file(
        self,
        path: PathUri,
        data: bytes,
        *,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        await self._files.write_file(path, data, follow_symlinks=follow_symlinks, sandbox=sandbox)

    async def create_directory(
        self,
        path: PathUri,
        *,
        recursive: bool = True,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        await self._files.create_directory(
            path, recursive=recursive, follow_symlinks=follow_symlinks, sandbox=sandbox
        )

    async def get_metadata(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> FileMetadata:
        return await self._files.get_metadata(
            path, follow_symlinks=follow_symlinks, sandbox=sandbox
        )

    async def canonicalize(
        self, path: PathUri, *, sandbox: SandboxContext | None = None
    ) -> PathUri:
        return await self._files.canonicalize(path, sandbox=sandbox)

    async def read_directory(
        self, path: PathUri, *, sandbox: SandboxContext | None = None
    ) -> list[DirectoryEntry]:
        return await self._files.read_directory(path, sandbox=sandbox)

    async def walk(
        self, path: PathUri, options: WalkOptions, *, sandbox: SandboxContext | None = None
    ) -> WalkResponse:
        return await self._files.walk(path, options, sandbox=sandbox)

    async def remove(
        self,
        path: PathUri,
        *,
        recursive: bool = True,
        force: bool = True,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        await self._files.remove(
            path,
            recursive=recursive,
            force=force,
            follow_symlinks=follow_symlinks,
            sandbox=sandbox,
        )

    async def copy(
        self,
        source: PathUri,
        destination: PathUri,
        *,
        recursive: bool,
        sandbox: SandboxContext | None = None,
    ) -> None:
        await self._files.copy(source, destination, recursive=recursive, sandbox=sandbox)

    async def rename(self, source: PathUri, destination: PathUri) -> None:
        await self._files.rename(source, destination)

    async def watch_missing(
        self, missing: Sequence[PathUri], present: PathUri | None = None
    ) -> MissingWatch | None:
        return await self._files.watch_missing(missing, present)
