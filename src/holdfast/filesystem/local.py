"""
The files of this machine, behind the seam.

System calls run in threads of their own, so that none of them holds up the event
loop, and one that never ends holds up nothing else. The exception is a question
that the kernel answers from memory (see `cached`).
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Self, TypeVar

from holdfast.errors import InvalidRequest
from holdfast.filesystem import folders, nofollow
from holdfast.filesystem.cached import cached_metadata, metadata
from holdfast.filesystem.copy import copy
from holdfast.filesystem.failure import native_path
from holdfast.filesystem.handle import LocalFileHandle, read_file
from holdfast.filesystem.refuse import refuse_restricted
from holdfast.filesystem.replace import find_target, find_target_nofollow, start_writing
from holdfast.filesystem.threads import FileThreads
from holdfast.filesystem.walk import Walked, check_limits, walk
from holdfast.filesystem.watch import LocalMissingWatch, watch_missing
from holdfast.protocol.fs import (
    DirectoryEntry,
    FileMetadata,
    FileSandbox,
    OpenMode,
    WalkOptions,
    WalkResponse,
)
from holdfast.protocol.paths import PathUri

__all__ = ["LocalFileSystem"]

T = TypeVar("T")


class LocalFileSystem:
    """
    Files of this machine. Belongs to the event loop in which it is made.

    It is a context manager; at its end its threads end.
    """

    def __init__(self) -> None:
        self._threads = FileThreads()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let the threads end, after a bounded wait for what they do."""
        await self._threads.aclose()

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do something in a thread, such as to encode what was read."""
        return self._threads.run(work)

    async def read_file(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: FileSandbox | None = None
    ) -> bytes:
        """All of a regular file, up to 512 MiB."""
        refuse_restricted(sandbox)
        return await self.run(
            partial(read_file, native_path(path), follow_symlinks=follow_symlinks)
        )

    async def open(
        self, path: PathUri, mode: OpenMode = "read", *, sandbox: FileSandbox | None = None
    ) -> LocalFileHandle:
        """Open a regular file to read it, or to replace its content."""
        handle = self.start_opening(path, mode, sandbox=sandbox)
        try:
            await handle.opened
        except asyncio.CancelledError:
            handle.discard()
            raise
        return handle

    def start_opening(
        self, path: PathUri, mode: OpenMode, *, sandbox: FileSandbox | None = None
    ) -> LocalFileHandle:
        """As `open`, but returns a handle that is yet to open; see its `opened`."""
        refuse_restricted(sandbox)
        return LocalFileHandle(self._threads, native_path(path), mode)

    async def write_file(
        self,
        path: PathUri,
        data: bytes,
        *,
        follow_symlinks: bool = True,
        sandbox: FileSandbox | None = None,
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
        sandbox: FileSandbox | None = None,
    ) -> None:
        """As `write_file`; the pieces are made in the thread, and an error in one is raised."""
        refuse_restricted(sandbox)
        await self.run(
            partial(_write_file, native_path(path), pieces, follow_symlinks=follow_symlinks)
        )

    async def create_directory(
        self,
        path: PathUri,
        *,
        recursive: bool = True,
        follow_symlinks: bool = True,
        sandbox: FileSandbox | None = None,
    ) -> None:
        """Make a folder, with `recursive` also those above it."""
        refuse_restricted(sandbox)
        create = folders.create_directory if follow_symlinks else nofollow.create_directory
        await self.run(partial(create, native_path(path), recursive=recursive))

    def recall_metadata(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: FileSandbox | None = None
    ) -> FileMetadata | None:
        """As `get_metadata`, if the answer is at hand; otherwise `None`."""
        refuse_restricted(sandbox)
        return cached_metadata(native_path(path)) if follow_symlinks else None

    async def get_metadata(
        self, path: PathUri, *, follow_symlinks: bool = True, sandbox: FileSandbox | None = None
    ) -> FileMetadata:
        """What kind of file it is, its size and its times."""
        found = self.recall_metadata(path, follow_symlinks=follow_symlinks, sandbox=sandbox)
        if found is not None:
            return found
        look = metadata if follow_symlinks else nofollow.get_metadata
        return await self.run(partial(look, native_path(path)))

    async def canonicalize(self, path: PathUri, *, sandbox: FileSandbox | None = None) -> PathUri:
        """The path with all links resolved; it must exist."""
        refuse_restricted(sandbox)
        resolve = partial(os.path.realpath, native_path(path), strict=True)
        return PathUri.from_path(await self.run(resolve))

    async def read_directory(
        self, path: PathUri, *, sandbox: FileSandbox | None = None
    ) -> list[DirectoryEntry]:
        """What is in a folder, in no order."""
        refuse_restricted(sandbox)
        return await self.run(partial(folders.read_directory, native_path(path)))

    async def walk(
        self, path: PathUri, options: WalkOptions, *, sandbox: FileSandbox | None = None
    ) -> WalkResponse:
        """What is in a folder and below it, breadth first, within limits."""
        return await self.walk_into(Walked.response, path, options, sandbox=sandbox)

    async def walk_into(
        self,
        finish: Callable[[Walked], T],
        path: PathUri,
        options: WalkOptions,
        *,
        sandbox: FileSandbox | None = None,
    ) -> T:
        """As `walk`; what is found is turned into something else in the same thread."""
        refuse_restricted(sandbox)
        check_limits(options)
        native = native_path(path)
        return await self.run(lambda: finish(walk(native, path, options)))

    async def remove(
        self,
        path: PathUri,
        *,
        recursive: bool = True,
        force: bool = True,
        follow_symlinks: bool = True,
        sandbox: FileSandbox | None = None,
    ) -> None:
        """Remove a file or a folder; with `force` one that is not there is fine."""
        refuse_restricted(sandbox)
        remove = folders.remove if follow_symlinks else nofollow.remove
        await self.run(partial(remove, native_path(path), recursive=recursive, force=force))

    async def copy(
        self,
        source: PathUri,
        destination: PathUri,
        *,
        recursive: bool,
        sandbox: FileSandbox | None = None,
    ) -> None:
        """Copy a file, a link or, with `recursive`, a folder."""
        refuse_restricted(sandbox)
        await self.run(
            partial(copy, native_path(source), native_path(destination), recursive=recursive)
        )

    async def watch_missing(
        self, missing: Sequence[PathUri], present: PathUri | None = None
    ) -> LocalMissingWatch | None:
        """Watch for files to appear; `None` if they cannot be watched."""
        try:
            paths = [native_path(path) for path in missing]
            present_path = None if present is None else native_path(present)
        except InvalidRequest:
            return None
        return await self._threads.run(
            partial(watch_missing, paths, present_path), undo=_cancel_watch
        )


def _write_file(path: str, pieces: Iterable[bytes], *, follow_symlinks: bool) -> None:
    find = find_target if follow_symlinks else find_target_nofollow
    writer = start_writing(find(path))
    try:
        if writer.in_place:
            pieces = list(pieces)  # an error has to come while the old content is there
        offset = 0
        for piece in pieces:
            writer.write(piece, offset)
            offset += len(piece)
    except BaseException:
        writer.discard()
        raise
    writer.commit()


def _cancel_watch(watch: LocalMissingWatch | None) -> None:
    if watch is not None:
        watch.cancel()
