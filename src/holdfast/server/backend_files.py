"""
Serves the files of any `FileSystem`: makes its optional fast paths of the required methods.

Nothing is answered without a wait here, and large contents pass through memory once more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from holdfast.backends import FileHandle, FileSystem, MissingWatch
from holdfast.errors import HoldfastError, NotFound
from holdfast.filesystem.handle import check_read_length, check_write_range
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

    def start_opening(
        self,
        path: PathUri,
        mode: OpenMode,
        *,
        permissions: int | None = None,
        sandbox: SandboxContext | None = None,
    ) -> "BackendFileHandle":
        # Nothing runs before the handle awaits it, in the order of its queue.
        opening = self._files.open(path, mode, permissions=permissions, sandbox=sandbox)
        return BackendFileHandle(opening)

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


class BackendFileHandle:
    """An open file of a backend; its operations run one after the other, as they were called."""

    def __init__(self, opening: Awaitable[FileHandle]) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle: FileHandle | None = None
        # The last operation in the queue; each waits for the one before it.
        self._last: asyncio.Future[Any] | None = None
        self.opened: asyncio.Future[None] = self._queue(lambda: self._open(opening))
        """Done when the file is open, or has the error."""

    def start_reading(self, offset: int, size: int) -> asyncio.Future[tuple[bytes, bool]]:
        check_read_length(size)
        return self._queue(lambda: self._read(offset, size))

    def start_writing(self, offset: int, data: bytes) -> asyncio.Future[None]:
        check_write_range(offset, len(data))
        return self._queue(lambda: self._write(offset, data))

    def start_closing(self) -> asyncio.Future[None]:
        return self._queue(self._close)

    def discard(self) -> None:
        self._queue(self._discard)

    # -- in the queue

    def _queue(self, work: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        before = self._last

        async def job() -> T:
            if before is not None and not before.done():
                # Its error is its own caller's.
                await asyncio.wait((before,))
            return await work()

        task = self._loop.create_task(job())
        # A strong reference: nobody awaits a discard, and the loop keeps weak ones only.
        self._last = task
        task.add_done_callback(_retrieve)
        return task

    async def _open(self, opening: Awaitable[FileHandle]) -> None:
        self._handle = await opening

    async def _read(self, offset: int, size: int) -> tuple[bytes, bool]:
        handle = self._opened()
        try:
            return await handle.read_block(offset, size)
        except HoldfastError:
            # As in the real server, a handle is closed after a failed read.
            await self._discard()
            raise

    async def _write(self, offset: int, data: bytes) -> None:
        await self._opened().write_block(offset, data)

    async def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            await handle.aclose()

    async def _discard(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.discard()

    def _opened(self) -> FileHandle:
        if self._handle is None:
            raise NotFound("the file handle is closed")
        return self._handle


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Mark the error of an operation as seen: a client that has gone does not await it."""
    if not task.cancelled():
        task.exception()
