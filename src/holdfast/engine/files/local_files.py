"""
Implements the `FileSystem` seam for the files of this machine.

System calls run in threads, so that none blocks the event loop, and one that never returns delays
no other client. Only look-ups that the kernel answers from memory run in the event loop (`nowait`),
a fast path: `scripts/bench --without cached-content` and `scripts/bench --without cached-metadata`
show its gain.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from msgspec import UNSET

from holdfast.base.errors import InvalidRequest
from holdfast.base.late_import import late_module
from holdfast.engine.files.errno_mapping import about, native_path
from holdfast.engine.files.handle import LocalFileHandle, OpenFile
from holdfast.engine.files.inotify import Inotify
from holdfast.engine.files.nowait import (
    LARGEST_CACHED,
    cached_content,
    cached_content_of_command,
    cached_metadata,
)
from holdfast.engine.files.operations import DIRECT, Operations
from holdfast.engine.files.threads import FileThreads, Threads
from holdfast.engine.files.walk import check_limits
from holdfast.engine.files.watch import LocalMissingWatch, watch_missing
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
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext
from holdfast.wire.rpc.base64 import content_pieces

if TYPE_CHECKING:
    from holdfast.engine.files.sandboxed import sandbox_operations
else:
    # Most clients of a server send no sandbox, and the modules for a policy take a mebibyte of
    # memory.
    sandbox_operations = late_module("holdfast.engine.files.sandboxed.sandbox_operations")

__all__ = ["LocalFileSystem"]

T = TypeVar("T")


class LocalFileSystem:
    """
    Files of this machine, for the event loop in which the object is created.

    An async context manager that ends its threads at the end.
    """

    def __init__(self) -> None:
        self._pool = FileThreads()
        # Those of one client, after `for_client`.
        self._threads: Threads = self._pool
        self._inotify = Inotify()

    def for_client(self, threads: Threads) -> "LocalFileSystem":
        """
        Return the same files for one of several clients, with threads of that client.

        A client whose system calls hang waits for them, and delays no other client.
        """
        # A shallow copy: the inotify instance is shared.
        other = copy(self)
        other._threads = threads  # noqa: SLF001 - the same class
        return other

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the threads, after a bounded wait for their current calls."""
        # First: its events would be delivered to a loop that is about to end.
        self._inotify.close()
        await self._pool.aclose()

    def cached_content(self, params: ReadFileParams) -> bytes | None:
        """Return the content of a small file if the kernel has it in memory, or None."""
        native = native_path(params.path)
        # Without following links, the error for a link depends on its position in the path, which
        # only the general path knows. So does the error for a file beyond the limit.
        if params.follow_symlinks is False or (
            params.max_bytes is not UNSET and params.max_bytes < LARGEST_CACHED
        ):
            return None
        sandbox = params.sandbox
        if sandbox is None:
            return cached_content(native)
        # A sandbox may show another file at the path. A link may lead to a hidden path, so only
        # paths without links count.
        if not _shows_as_is(sandbox, native):
            return None
        return cached_content_of_command(native, sandbox_operations.as_a_command(sandbox))

    def cached_metadata(self, params: GetMetadataParams) -> FileMetadata | None:
        """Return the metadata of a path if the kernel has it in memory, or None."""
        native = native_path(params.path)
        # See `cached_content` for the reason.
        if params.follow_symlinks is False:
            return None
        sandbox = params.sandbox
        if sandbox is None:
            return cached_metadata(native)
        if not _shows_as_is(sandbox, native):
            return None
        with sandbox_operations.as_a_command(sandbox):
            return cached_metadata(native, links=False)

    async def read_file(self, params: ReadFileParams) -> bytes:
        """Return the content of a regular file, up to 512 MiB or `max_bytes`."""
        found = self.cached_content(params)
        if found is not None:
            return found
        return await self._reading(params, lambda files: files.read_file(params))

    async def get_metadata(self, params: GetMetadataParams) -> FileMetadata:
        """Return kind, size and times of a file."""
        found = self.cached_metadata(params)
        if found is not None:
            return found
        return await self._reading(params, lambda files: files.get_metadata(params))

    async def open(self, params: OpenParams) -> LocalFileHandle:
        """Open a regular file to read it, or to replace its content."""
        native = native_path(params.path)
        sandbox = params.sandbox
        find = _reading_operations if params.mode == "read" else _operations

        def opener() -> OpenFile:
            files = find(sandbox)
            with about(native), _as_a_command(sandbox):
                file = files.open(params)
            return file if sandbox is None else _FileOfSandbox(file, sandbox)

        handle = LocalFileHandle(self._threads, opener, native)
        try:
            await handle.opened
        except asyncio.CancelledError:
            # The open continues in its thread; the descriptor is closed afterwards.
            handle.discard()
            raise
        return handle

    async def write_file(self, params: WriteFileParams) -> None:
        """
        Create a file or replace its content; its directory must exist.

        A regular file is replaced in one step where that is possible, and
        written into elsewhere. A FIFO without a reader is refused at once.
        """
        # Before all else: the protocol reports bad base64 before a bad path.
        pieces = content_pieces(params.data_base64)
        await self._changing(params, lambda files: files.write_file(params, pieces))

    async def create_directory(self, params: CreateDirectoryParams) -> None:
        """Make a directory, with `recursive` also its parents."""
        await self._changing(params, lambda files: files.create_directory(params))

    async def canonicalize(self, params: CanonicalizeParams) -> PathUri:
        """Return the real path of an existing file."""
        found = await self._reading(params, lambda files: files.canonicalize(params))
        return PathUri.from_path(found)

    async def read_directory(self, params: ReadDirectoryParams) -> list[DirectoryEntry]:
        """Return the entries of a directory, in no order."""
        return await self._reading(params, lambda files: files.read_directory(params))

    async def walk(self, params: WalkParams) -> WalkResponse:
        """Return the files and directories below a directory, breadth first, within limits."""
        # Before the path: the protocol reports bad limits first.
        check_limits(params.options)
        return await self._reading(params, lambda files: files.walk(params))

    async def remove(self, params: RemoveParams) -> None:
        """Remove a file or a directory; with `force`, a missing path is ignored."""
        await self._changing(params, lambda files: files.remove(params))

    async def copy(self, params: CopyParams) -> None:
        """Copy a file, a link or, with `recursive`, a directory."""
        for path in (params.source_path, params.destination_path):
            native_path(path)
        # No path for errors: the operation knows whether source or destination is at fault.
        await self._operate(_operations, params.sandbox, None, lambda files: files.copy(params))

    async def rename(self, params: RenameParams) -> None:
        """Rename a file, a link or a directory."""
        origin, target = native_path(params.source_path), native_path(params.destination_path)

        def rename() -> None:
            # `rename` does not report which path is missing, so the source is checked first.
            with about(origin):
                os.lstat(origin)
            with about(target):
                os.rename(origin, target)

        await self._threads.run(rename)

    async def watch_missing(self, params: WatchMissingParams) -> LocalMissingWatch | None:
        """Return a watch for missing files to appear; None if they cannot be watched."""
        try:
            paths = [native_path(path) for path in params.missing]
            present = None if params.present is None else native_path(params.present)
            # Opened in the event loop, which reads its events.
            self._inotify.open()
        # The caller gets None, and has to look for the files itself.
        except (InvalidRequest, OSError):
            return None
        return await self._threads.run(
            partial(watch_missing, self._inotify, paths, present), undo=_cancel_watch
        )

    # -- internals

    def _reading(self, params: "_OnePath", work: Callable[[Operations], T]) -> asyncio.Future[T]:
        """Run an operation that only reads, in a thread."""
        native = native_path(params.path)
        return self._operate(_reading_operations, params.sandbox, native, work)

    def _changing(self, params: "_OnePath", work: Callable[[Operations], T]) -> asyncio.Future[T]:
        """Run an operation that changes something, in a thread."""
        return self._operate(_operations, params.sandbox, native_path(params.path), work)

    def _operate(
        self,
        find: Callable[[SandboxContext | None], Operations],
        sandbox: SandboxContext | None,
        path: str | None,
        work: Callable[[Operations], T],
    ) -> asyncio.Future[T]:
        """
        Run an operation in a thread, and add the path to its errors.

        Args:
            find: Returns the operations for a sandbox. Its errors are about the profile, so
                they do not get the path.
            sandbox: Sandbox context of the request, or None.
            path: Path for errors.
            work: Operation.
        """

        def job() -> T:
            # With all capabilities, as when the sandbox of a command is planned.
            files = find(sandbox)
            with about(path), _as_a_command(sandbox):
                return work(files)

        return self._threads.run(job)


class _OnePath(Protocol):
    """The params of an operation on one path."""

    @property
    def path(self) -> PathUri: ...

    @property
    def sandbox(self) -> SandboxContext | None: ...


class _FileOfSandbox:
    """Open file whose operations have the capabilities of a command in its sandbox."""

    def __init__(self, file: OpenFile, sandbox: SandboxContext) -> None:
        self._file = file
        self._sandbox = sandbox

    def read(self, offset: int, size: int) -> tuple[bytes, bool]:
        with _as_a_command(self._sandbox):
            return self._file.read(offset, size)

    def write(self, offset: int, data: bytes) -> None:
        with _as_a_command(self._sandbox):
            self._file.write(offset, data)

    def close(self) -> None:
        with _as_a_command(self._sandbox):
            self._file.close()

    def discard(self) -> None:
        with _as_a_command(self._sandbox):
            self._file.discard()


def _as_a_command(sandbox: SandboxContext | None) -> AbstractContextManager[None]:
    """Return a block with the capabilities that a command in this sandbox has."""
    return nullcontext() if sandbox is None else sandbox_operations.as_a_command(sandbox)


def _cancel_watch(watch: LocalMissingWatch | None) -> None:
    if watch is not None:
        watch.cancel()


# True once `sandbox_operations` is loaded.
_has_policies = False


def _operations(sandbox: SandboxContext | None) -> Operations:
    """Return the operations that a sandbox allows; called in a thread."""
    if sandbox is None:
        return DIRECT
    found = sandbox_operations.operations(sandbox)
    _note_policies()
    return found


def _reading_operations(sandbox: SandboxContext | None) -> Operations:
    """Return operations for reading only, which need less of a policy; called in a thread."""
    if sandbox is None:
        return DIRECT
    found = sandbox_operations.reading_operations(sandbox)
    _note_policies()
    return found


def _note_policies() -> None:
    global _has_policies
    if not _has_policies:
        # Replace the stand-in, which costs each cached read 4 µs, by the module.
        name = "sandbox_operations"
        globals()[name] = sys.modules[f"holdfast.engine.files.sandboxed.{name}"]
        _has_policies = True


def _shows_as_is(sandbox: SandboxContext, path: str) -> bool:
    """Return True if a sandbox certainly shows what the kernel has at a path without links."""
    # False before the module is loaded: a thread will do that, not the event loop.
    return _has_policies and sandbox_operations.shows_as_is(sandbox, path)
