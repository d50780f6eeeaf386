"""
Transfers files and directory trees between this machine and an environment.

Files are moved through open handles, with several blocks in flight: sending them one by one would
cost a round trip each. The functions work with any `FileHandle`, local or remote. No symbolic link
is followed. A walk of a `FileSystem` lists no links; for directories of this machine they are
listed separately, so that the caller can decide.
"""

import asyncio
import errno
import os
import stat
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import BinaryIO, NamedTuple

from msgspec import UNSET, UnsetType

from holdfast.backends import FileHandle, FileSystem
from holdfast.base.errors import HoldfastError, OperationFailed, Unsupported
from holdfast.base.tasks import made_in_thread
from holdfast.engine.linux.proc import umask
from holdfast.wire.protocol.fs import (
    CopyParams,
    FileContent,
    OpenParams,
    RemoveParams,
    RenameParams,
    WalkOptions,
    WalkParams,
    WriteFileParams,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = [
    "BLOCK",
    "EVERYTHING",
    "FILES_AT_ONCE",
    "WINDOW",
    "ListedTree",
    "LocalFolder",
    "local_folders",
    "masked",
    "move",
    "open_in_thread",
    "permissions_of",
    "read_blocks",
    "run_together",
    "send_file",
    "walk_tree",
    "write_blocks",
]

BLOCK = 1 << 20
"""Bytes of a block: the limit of one request [fs.read-block]."""

WINDOW = 4
"""Blocks in flight."""

FILES_AT_ONCE = 4
"""Files in flight; each has a few blocks of 1 MiB in memory."""

EVERYTHING = WalkOptions(
    max_depth=64, max_directories=10_000, max_entries=50_000, follow_directory_symlinks=False
)
"""Options of a walk with the largest limits that a server accepts."""


# -- blocks of one file


async def read_blocks(
    handle: FileHandle, take: Callable[[bytes], Awaitable[None]], *, start: int = 0
) -> None:
    """
    Read a file to its end.

    Args:
        handle: Handle that is open for reading.
        take: Called with the blocks in order; none is empty.
        start: Offset of the first block.

    Raises:
        HoldfastError: The error of `read_block`.
    """
    offset = start
    # Most files fit into one block, so further ones are requested after the first.
    window = 1
    reads: deque[asyncio.Task[tuple[bytes, bool] | HoldfastError]] = deque()
    try:
        async with asyncio.TaskGroup() as tasks:
            while True:
                while len(reads) < window:
                    reads.append(tasks.create_task(_read(handle, offset)))
                    offset += BLOCK
                block = await reads.popleft()
                if isinstance(block, HoldfastError):
                    raise block
                chunk, eof = block
                if chunk:
                    await take(chunk)
                if eof:
                    break
                if len(chunk) < BLOCK:
                    # [fs.read-block]: such a file would never end.
                    raise OperationFailed("fs/readBlock returned an empty non-terminal block")
                window = WINDOW
            # Reads beyond the end of the file, which were started before the end was known.
            for read in reads:
                read.cancel()
    except ExceptionGroup as group:
        raise _first(group) from None


async def _read(handle: FileHandle, offset: int) -> tuple[bytes, bool] | HoldfastError:
    """Return a block, or its error, which is raised after the blocks before it are taken."""
    try:
        return await handle.read_block(offset, BLOCK)
    except HoldfastError as error:
        return error


async def write_blocks(
    handle: FileHandle, give: Callable[[], bytes], *, gave: Callable[[int], None] | None = None
) -> None:
    """
    Write a file from its start.

    Args:
        handle: Handle that is open for replacing.
        give: Returns the next piece of at most `BLOCK` bytes; an empty one ends the file. It
            is called in a thread, since it may block.
        gave: Called with the size of each piece that has been written.

    Raises:
        HoldfastError: The error of `write_block`.
        OSError: The error of `give`.
    """
    offset = 0
    writes: deque[tuple[asyncio.Task[None], int]] = deque()
    try:
        async with asyncio.TaskGroup() as tasks:
            ended = False
            while writes or not ended:
                while not ended and len(writes) < WINDOW:
                    chunk = await asyncio.to_thread(give)
                    if not chunk:
                        ended = True
                        break
                    write = tasks.create_task(handle.write_block(offset, chunk))
                    writes.append((write, len(chunk)))
                    offset += len(chunk)
                # In order, so that the first failed block is the one that is reported.
                if writes:
                    write, size = writes.popleft()
                    await write
                    if gave is not None:
                        gave(size)
    except ExceptionGroup as group:
        raise _first(group) from None


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first exception of a group; the others have the same cause."""
    found: Exception = group.exceptions[0]
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found


# -- trees


class LocalFolder(NamedTuple):
    """Directory of a tree of this machine."""

    parts: tuple[str, ...]
    """Components of its path below the root of the tree."""
    files: list[str]
    """Names of its regular files."""
    links: list[str]
    """Names of its symbolic links, whatever their targets."""
    others: list[str]
    """Names of sockets, pipes and devices."""


def local_folders(root: str) -> Iterator[LocalFolder]:
    """
    Yield a directory and all directories below it.

    Raises:
        OSError: A directory cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    for folder, below, names in os.walk(root, onerror=fail):
        relative = os.path.relpath(folder, root)
        parts = () if relative == "." else tuple(relative.split(os.sep))
        # In place: `os.walk` visits the directories in the order of this list.
        below.sort()
        found = LocalFolder(parts, [], [], [])
        for name in sorted((*names, *below)):
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if stat.S_ISREG(mode):
                found.files.append(name)
            elif stat.S_ISLNK(mode):
                found.links.append(name)
            elif not stat.S_ISDIR(mode):
                found.others.append(name)
        yield found


class ListedTree(NamedTuple):
    """Directories and files below a root, each with the components of its relative path."""

    folders: list[tuple[PathUri, tuple[str, ...]]]
    files: list[tuple[PathUri, tuple[str, ...]]]
    errors: list[tuple[PathUri, str]]
    """Paths that could not be read, each with the reason."""


async def walk_tree(
    filesystem: FileSystem, root: PathUri, *, sandbox: SandboxContext | None = None
) -> ListedTree:
    """
    Return the files and directories below a root, parents first; links are left out.

    Raises:
        OperationFailed: The tree exceeds the limits of one walk, or a path is not below the
            root.
        ForeignPathUri: The server has another kind of paths than this machine.
    """
    found = await filesystem.walk(WalkParams(root, options=EVERYTHING, sandbox=sandbox))
    tree = ListedTree([], [], [(error.path, error.message) for error in found.errors])
    # A partial copy that looks complete would be worse than an error.
    if found.truncated:
        raise OperationFailed(f"`{root.native}` has more entries than can be fetched")
    prefix = root.native.rstrip("/") + "/"
    for entry in found.entries:
        path = entry.path.native
        parts = tuple(path.removeprefix(prefix).split("/"))
        # Otherwise a server could choose where on this machine a file is written.
        if not path.startswith(prefix) or not {"", ".", ".."}.isdisjoint(parts):
            raise OperationFailed(f"`{path}` was listed, which is not below `{root.native}`")
        if entry.kind == "file":
            tree.files.append((entry.path, parts))
        elif len(parts) > EVERYTHING.max_depth:
            raise OperationFailed(f"`{path}` is too deep below `{root.native}` to be fetched")
        else:
            tree.folders.append((entry.path, parts))
    return tree


async def send_file(
    filesystem: FileSystem,
    file: BinaryIO,
    target: PathUri,
    *,
    in_blocks: bool,
    permissions: int | UnsetType = UNSET,
    sandbox: SandboxContext | None = None,
    sent: Callable[[int], None] | None = None,
) -> None:
    """
    Send an open file; the target has all of its content, or is unchanged.

    Args:
        filesystem: File system of the target.
        file: File to read, from its position to its end.
        target: Path to write.
        in_blocks: False if the server accepts whole files only.
        permissions: See `FileSystem.open`; ignored unless `in_blocks`.
        sandbox: See `FileSystem.open`.
        sent: Called with the size of each piece that has been written.
    """
    if not in_blocks:
        data = await asyncio.to_thread(file.read)
        await filesystem.write_file(
            WriteFileParams(target, data_base64=FileContent(data), sandbox=sandbox)
        )
        if sent is not None:
            sent(len(data))
        return
    handle = await filesystem.open(
        OpenParams(
            handle_id="", path=target, mode="replace", permissions=permissions, sandbox=sandbox
        )
    )
    try:
        await write_blocks(handle, lambda: file.read(BLOCK), gave=sent)
    except BaseException:
        handle.discard()
        raise
    await handle.aclose()


async def move(
    filesystem: FileSystem,
    source: PathUri,
    destination: PathUri,
    *,
    sandbox: SandboxContext | None = None,
) -> None:
    """
    Rename a file or a directory, or copy and remove it where it cannot be renamed.

    The copy is needed in a sandbox, for a server without rename, and between file systems.
    """
    # `rename` has no sandbox parameter, so it would ignore the restrictions.
    if sandbox is None:
        try:
            await filesystem.rename(RenameParams(source_path=source, destination_path=destination))
        except Unsupported:
            pass
        except OperationFailed as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return
    await filesystem.copy(
        CopyParams(
            source_path=source, destination_path=destination, recursive=True, sandbox=sandbox
        )
    )
    await filesystem.remove(RemoveParams(source, recursive=True, force=False, sandbox=sandbox))


async def open_in_thread(opener: Callable[[], BinaryIO]) -> BinaryIO:
    """Open a file of this machine in a thread: it may be on a slow or dead mount."""
    return await made_in_thread(opener, lambda file: file.close())


def permissions_of(file: BinaryIO) -> int | UnsetType:
    """Return the permission bits of an open file, if it is a regular one."""
    mode = os.fstat(file.fileno()).st_mode
    return mode & 0o777 if stat.S_ISREG(mode) else UNSET


def masked(permissions: int) -> int:
    """Return permission bits without those of the umask."""
    mask = umask()
    return permissions & ~(0o022 if mask is None else mask)


async def run_together(
    works: Iterable[Coroutine[object, object, None]], *, at_once: int = FILES_AT_ONCE
) -> None:
    """Run coroutines, a few at a time; the first error cancels the others and is raised."""
    waiting = iter(works)

    async def work() -> None:
        for one in waiting:
            await one

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(work())
    # The others were cancelled because of the first one.
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
