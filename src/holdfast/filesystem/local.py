"""
The files of this machine, behind the seam.

System calls run in threads of their own, so that none of them holds up the event
loop, and one that never ends holds up nothing else. The exception is what the kernel
has in memory (see `cached`).
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from typing import Self, TypeVar

from holdfast.errors import InvalidRequest
from holdfast.filesystem.errno_mapping import about, native_path
from holdfast.filesystem.handle import LocalFileHandle, OpenFile
from holdfast.filesystem.inotify import Inotify
from holdfast.filesystem.nowait import cached_content, cached_metadata
from holdfast.filesystem.operations import Operations
from holdfast.filesystem.sandboxed.sandbox_operations import (
    operations,
    reading_operations,
    reads_everything,
    shows_secrets,
)
from holdfast.filesystem.threads import FileThreads, Threads, ThreadShare
from holdfast.filesystem.walk import Walked, check_limits
from holdfast.filesystem.watch import LocalMissingWatch, watch_missing
from holdfast.protocol.fs import (
    DirectoryEntry,
    FileMetadata,
    OpenMode,
    WalkOptions,
    WalkResponse,
)
from holdfast.protocol.paths import PathUri
from holdfast.protocol.sandbox import SandboxContext

__all__ = ["LocalFileSystem"]

T = TypeVar("T")


class LocalFileSystem:
    """
    Files of this machine. Belongs to the event loop in which it is made.

    It is a context manager; at its end its threads end.
    """

    def __init__(self) -> None:
        self._pool = FileThreads()
        self._threads: Threads = self._pool
        self._inotify = Inotify()

    def for_client(self) -> "LocalFileSystem":
        """
        Return the same files for one of several clients.

        A client whose calls do not come back waits for them, and no other does. The threads
        are still ended by `aclose` of this object, and of no other.
        """
        other = copy(self)
        other._threads = self._pool.share()  # noqa: SLF001 - one of the same class
        return other

    def leave(self) -> None:
        """End the use by one client (`for_client`): nobody waits for what it asked for."""
        if isinstance(self._threads, ThreadShare):
            self._threads.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let the threads end, after a bounded wait for what they do."""
        self._inotify.close()
        await self._pool.aclose()

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do something in a thread, such as to encode what was read."""
        return self._threads.run(work)

    def read_file_nowait(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> bytes | None:
        """As `read_file`, if the file is small and at hand; otherwise `None`."""
        native = native_path(path)
        if not follow_symlinks or not _is_plain(native, sandbox):
            return None
        return cached_content(native, links=sandbox is None)

    async def read_file(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> bytes:
        """All of a regular file, up to 512 MiB."""
        found = self.read_file_nowait(path, follow_symlinks=follow_symlinks, sandbox=sandbox)
        if found is not None:
            return found
        native = native_path(path)
        return await self._operate(
            reading_operations,
            sandbox,
            native,
            lambda files: files.read_file(native, follow_symlinks=follow_symlinks),
        )

    async def open(
        self,
        path: PathUri,
        mode: OpenMode = "read",
        *,
        permissions: int | None = None,
        sandbox: SandboxContext | None = None,
    ) -> LocalFileHandle:
        """Open a regular file to read it, or to replace its content."""
        handle = self.start_opening(path, mode, permissions=permissions, sandbox=sandbox)
        try:
            await handle.opened
        except asyncio.CancelledError:
            handle.discard()
            raise
        return handle

    def start_opening(
        self,
        path: PathUri,
        mode: OpenMode,
        *,
        permissions: int | None = None,
        sandbox: SandboxContext | None = None,
    ) -> LocalFileHandle:
        """As `open`, but returns a handle that is yet to open; see its `opened`."""
        native = native_path(path)
        find = reading_operations if mode == "read" else operations

        def opener() -> OpenFile:
            files = find(sandbox)
            with about(native):
                return files.open_file(native, mode, permissions)

        return LocalFileHandle(self._threads, opener, native)

    async def write_file(
        self,
        path: PathUri,
        data: bytes,
        *,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        """
        Create a file or replace its content; its folder must exist.

        A regular file is replaced in one step where that is possible, while the
        real server writes into it. A FIFO that nobody reads is refused at once.
        """
        await self.write_pieces(path, (data,), follow_symlinks=follow_symlinks, sandbox=sandbox)

    async def write_pieces(
        self,
        path: PathUri,
        pieces: Iterable[bytes],
        *,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        """As `write_file`; the pieces are made in the thread, and an error in one is raised."""
        native = native_path(path)
        await self._operate(
            operations,
            sandbox,
            native,
            lambda files: files.write_file(native, pieces, follow_symlinks=follow_symlinks),
        )

    async def create_directory(
        self,
        path: PathUri,
        *,
        recursive: bool = True,
        follow_symlinks: bool = True,
        sandbox: SandboxContext | None = None,
    ) -> None:
        """Make a folder, with `recursive` also those above it."""
        native = native_path(path)
        await self._operate(
            operations,
            sandbox,
            native,
            lambda files: files.create_directory(
                native, recursive=recursive, follow_symlinks=follow_symlinks
            ),
        )

    def get_metadata_nowait(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> FileMetadata | None:
        """As `get_metadata`, if the answer is at hand; otherwise `None`."""
        native = native_path(path)
        if not follow_symlinks or not _is_plain(native, sandbox):
            return None
        return cached_metadata(native, links=sandbox is None)

    async def get_metadata(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: SandboxContext | None = None
    ) -> FileMetadata:
        """What kind of file it is, its size and its times."""
        found = self.get_metadata_nowait(path, follow_symlinks=follow_symlinks, sandbox=sandbox)
        if found is not None:
            return found
        native = native_path(path)
        return await self._operate(
            reading_operations,
            sandbox,
            native,
            lambda files: files.get_metadata(native, follow_symlinks=follow_symlinks),
        )

    async def canonicalize(
        self, path: PathUri, *, sandbox: SandboxContext | None = None
    ) -> PathUri:
        """The path with all links resolved; it must exist."""
        native = native_path(path)
        found = await self._operate(
            reading_operations, sandbox, native, lambda files: files.canonicalize(native)
        )
        return PathUri.from_path(found)

    async def read_directory(
        self, path: PathUri, *, sandbox: SandboxContext | None = None
    ) -> list[DirectoryEntry]:
        """What is in a folder, in no order."""
        native = native_path(path)
        return await self._operate(
            reading_operations, sandbox, native, lambda files: files.read_directory(native)
        )

    async def walk(
        self, path: PathUri, options: WalkOptions, *, sandbox: SandboxContext | None = None
    ) -> WalkResponse:
        """What is in a folder and below it, breadth first, within limits."""
        return await self.walk_into(Walked.response, path, options, sandbox=sandbox)

    async def walk_into(
        self,
        finish: Callable[[Walked], T],
        path: PathUri,
        options: WalkOptions,
        *,
        sandbox: SandboxContext | None = None,
    ) -> T:
        """As `walk`; what is found is turned into something else in the same thread."""
        check_limits(options)
        native = native_path(path)
        return await self._operate(
            reading_operations,
            sandbox,
            native,
            lambda files: finish(files.walk(native, path, options)),
        )

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
        native = native_path(path)
        await self._operate(
            operations,
            sandbox,
            native,
            lambda files: files.remove(
                native, recursive=recursive, force=force, follow_symlinks=follow_symlinks
            ),
        )

    async def copy(
        self,
        source: PathUri,
        destination: PathUri,
        *,
        recursive: bool,
        sandbox: SandboxContext | None = None,
    ) -> None:
        """Copy a file, a link or, with `recursive`, a folder."""
        origin, target = native_path(source), native_path(destination)
        # Which of the two is at fault, the system call tells, where it can.
        await self._operate(
            operations,
            sandbox,
            None,
            lambda files: files.copy(origin, target, recursive=recursive),
        )

    async def rename(self, source: PathUri, destination: PathUri) -> None:
        """Give a file, a link or a folder another name."""
        origin, target = native_path(source), native_path(destination)

        def rename() -> None:
            with about(origin):
                os.lstat(origin)  # after this it is the other name that is at fault
            with about(target):
                os.rename(origin, target)

        await self.run(rename)

    async def watch_missing(
        self, missing: Sequence[PathUri], present: PathUri | None = None
    ) -> LocalMissingWatch | None:
        """Watch for files to appear; `None` if they cannot be watched."""
        try:
            paths = [native_path(path) for path in missing]
            present_path = None if present is None else native_path(present)
            self._inotify.open()
        except (InvalidRequest, OSError):
            return None
        return await self._threads.run(
            partial(watch_missing, self._inotify, paths, present_path), undo=_cancel_watch
        )

    # -- inside

    def _operate(
        self,
        find: Callable[[SandboxContext | None], Operations],
        sandbox: SandboxContext | None,
        path: str | None,
        work: Callable[[Operations], T],
    ) -> asyncio.Future[T]:
        """
        Run an operation in a thread; its errors name the path.

        Args:
            find: Finds the operations that the sandbox leaves. What it refuses is a fault
                of the profile, so that error does not get the path.
            sandbox: The profile, if there is one.
            path: What the operation is about.
            work: Does it.
        """

        def job() -> T:
            files = find(sandbox)
            with about(path):
                return work(files)

        return self.run(job)


def _cancel_watch(watch: LocalMissingWatch | None) -> None:
    if watch is not None:
        watch.cancel()


def _is_plain(path: str, sandbox: SandboxContext | None) -> bool:
    """Whether a sandbox, if there is one, shows what is at a path without links as it is."""
    return sandbox is None or (
        reads_everything(sandbox)
        and not path.startswith(("/dev", "/proc", "/sys"))
        and not shows_secrets(path)
    )
