"""
Transfer of directory trees to and from an environment, with progress.

Permission bits are kept, less the umask of the receiving side. A server without Holdfast's
extensions gives a new file the default bits of its machine. `FileSystem` creates no links: a link
is sent as its target, or left out.
"""

import asyncio
import inspect
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, NamedTuple

from holdfast.backends import FileSystem
from holdfast.base.errors import ConnectionLost, OperationFailed, Refused, RemoteError
from holdfast.engine.files.transfer import (
    FILES_AT_ONCE,
    local_folders,
    open_in_thread,
    permissions_of,
    run_together,
    send_file,
    walk_tree,
)
from holdfast.wire.protocol.fs import CanonicalizeParams, CreateDirectoryParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = [
    "OnProgress",
    "TransferCount",
    "TransferProgress",
    "Transferred",
    "download_tree",
    "open_regular",
    "upload_tree",
]


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """State of an upload or download."""

    path: str
    """The file that just advanced, relative to the transferred directory."""
    files: int
    """Number of complete files."""
    files_total: int
    size: int
    """Bytes of all files that have arrived."""
    size_total: int | None
    """Bytes of all files; None if unknown, when downloading a directory."""


OnProgress = Callable[[TransferProgress], object]
"""Called when a block has arrived and when a file is complete; not a coroutine function."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """Result of an upload or download."""

    files: int
    size: int
    """Bytes of all files."""
    skipped: tuple[str, ...] = ()
    """
    Paths left out of an upload, relative to its directory: links that lead out of it, links to
    directories, and special files. Empty for a download: a server does not list those.
    """


class TransferCount:
    """Counts transferred bytes and files, and reports them to a callback."""

    def __init__(self, on_progress: OnProgress | None, files: int, size: int | None) -> None:
        """
        Raises:
            TypeError: The callback is a coroutine function.
        """
        # Its coroutine would never be awaited.
        if inspect.iscoroutinefunction(on_progress):
            raise TypeError(f"on_progress must not be a coroutine function: {on_progress!r}")
        self._on_progress = on_progress
        self._files_total = files
        self._size_total = size
        self.files = 0
        self.size = 0

    def advance(self, path: str, size: int) -> None:
        """Report that `size` more bytes of a file have arrived."""
        self.size += size
        self._report(path)

    def complete(self, path: str) -> None:
        """Report that a file is complete under its final name."""
        self.files += 1
        self._report(path)

    def _report(self, path: str) -> None:
        if self._on_progress is not None:
            self._on_progress(
                TransferProgress(path, self.files, self._files_total, self.size, self._size_total)
            )


# -- upload


class _LocalFile(NamedTuple):
    parts: tuple[str, ...]
    # Its local path, resolved: the last component is not a link.
    path: str
    size: int


class _TransferPlan(NamedTuple):
    folders: list[tuple[str, ...]]
    files: list[_LocalFile]
    skipped: list[str]


async def upload_tree(
    filesystem: FileSystem,
    source: str,
    target: PathUri,
    *,
    in_blocks: bool,
    sandbox: SandboxContext | None,
    on_progress: OnProgress | None,
) -> Transferred:
    """
    Send the contents of a local directory to a directory of an environment.

    Raises:
        OSError: A local file cannot be read.
        OperationFailed: A file cannot be written; the message begins with its path.
        ConnectionLost: Likewise.
    """
    plan = await asyncio.to_thread(_plan, source)
    progress = TransferCount(on_progress, len(plan.files), sum(file.size for file in plan.files))
    folders: dict[tuple[str, ...], PathUri] = {(): target}
    with _naming(source):
        await filesystem.create_directory(
            CreateDirectoryParams(target, recursive=True, sandbox=sandbox)
        )
    for depth in range(1, 1 + max(map(len, plan.folders))):
        # Directories at the same depth are independent of each other.
        parts_here = [parts for parts in plan.folders if len(parts) == depth]

        async def make(parts: tuple[str, ...]) -> None:
            folders[parts] = folders[parts[:-1]].child(parts[-1])
            with _naming(os.path.join(source, *parts)):
                await filesystem.create_directory(
                    CreateDirectoryParams(folders[parts], recursive=True, sandbox=sandbox)
                )

        await run_together(make(parts) for parts in parts_here)

    async def send(file: _LocalFile) -> None:
        name = "/".join(file.parts)
        path = os.path.join(source, *file.parts)
        with _naming(path), await open_in_thread(partial(open_regular, file.path)) as opened:
            await send_file(
                filesystem,
                opened,
                folders[file.parts[:-1]].child(file.parts[-1]),
                in_blocks=in_blocks,
                permissions=permissions_of(opened),
                sandbox=sandbox,
                sent=lambda size: progress.advance(name, size),
            )
        progress.complete(name)

    # Without blocks the whole file is in memory, so send one at a time.
    await run_together(
        (send(file) for file in plan.files), at_once=FILES_AT_ONCE if in_blocks else 1
    )
    return Transferred(progress.files, progress.size, tuple(plan.skipped))


def _plan(source: str) -> _TransferPlan:
    plan = _TransferPlan([], [], [])
    root = os.path.realpath(source)
    for folder in local_folders(source):
        plan.folders.append(folder.parts)
        here = os.path.join(root, *folder.parts)
        paths = [(name, os.path.join(here, name)) for name in folder.files]
        paths += [(name, os.path.realpath(os.path.join(here, name))) for name in folder.links]
        for name, path in paths:
            parts = (*folder.parts, name)
            # A link may lead out of the directory, to files that must not be sent.
            found = _regular(path) if os.path.commonpath((root, path)) == root else None
            if found is None:
                plan.skipped.append("/".join(parts))
            else:
                plan.files.append(_LocalFile(parts, path, found.st_size))
        plan.skipped.extend("/".join((*folder.parts, name)) for name in folder.others)
    return plan


def _regular(path: str) -> os.stat_result | None:
    """Return the status of a regular file, or None."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def open_regular(path: str) -> BinaryIO:
    """
    Open a regular file without following a link or blocking on a FIFO.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = open(os.open(path, flags), "rb")  # noqa: SIM115 - the caller's from here on
    # After the open: the file may have been replaced since the plan was made.
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is no longer a regular file")
    return file


# -- download


async def download_tree(
    filesystem: FileSystem,
    source: PathUri,
    target: str,
    *,
    fetch: Callable[[PathUri, str, Callable[[int], None]], Awaitable[None]],
    at_once: int,
    sandbox: SandboxContext | None,
    on_progress: OnProgress | None,
) -> Transferred:
    """
    Copy the contents of a directory of an environment to a local directory.

    Args:
        filesystem: File system of the environment.
        source: Directory of the environment.
        target: Local directory; created if missing.
        fetch: Copies one file to a path, and reports each block.
        at_once: Number of files copied at once.
        sandbox: As for `FileSystem.walk`.
        on_progress: Called with the progress.

    Raises:
        OSError: A local file cannot be written.
        OperationFailed: A file cannot be read; the message begins with its path.
        ConnectionLost: Likewise.
    """
    # `walk` does not follow links, not even for its root.
    root = await filesystem.canonicalize(CanonicalizeParams(source, sandbox=sandbox))
    tree = await walk_tree(filesystem, root, sandbox=sandbox)
    for path, message in tree.errors:
        # An incomplete listing would silently omit files.
        raise OperationFailed(f"{path.native}: {message}")
    progress = TransferCount(on_progress, len(tree.files), None)
    folders = [target, *(os.path.join(target, *parts) for _, parts in tree.folders)]
    await asyncio.to_thread(_make_folders, folders)

    async def take(path: PathUri, parts: tuple[str, ...]) -> None:
        name = "/".join(parts)
        with _naming(path.native):
            into = os.path.join(target, *parts)
            await fetch(path, into, lambda size: progress.advance(name, size))
        progress.complete(name)

    await run_together((take(path, parts) for path, parts in tree.files), at_once=at_once)
    return Transferred(progress.files, progress.size)


def _make_folders(paths: list[str]) -> None:
    for path in paths:
        os.makedirs(path, exist_ok=True)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Prefix each error with the path."""
    try:
        yield
    except ConnectionLost as error:
        raise ConnectionLost(f"{path}: {error}") from error
    except (Refused, RemoteError) as error:
        about = error.path or path
        raise OperationFailed(f"{path}: {error}", errno=error.errno, path=about) from error
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = path
        raise
