"""
Whole folders between this machine and a place: what is in them, and a few files at once.

Nothing here follows a link. What a file system of the seam lists has no links in it; of
this machine's own folders they are listed apart, for the caller to decide.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import BinaryIO, NamedTuple

from holdfast.backends import FileSystem
from holdfast.errors import OperationFailed, Unsupported
from holdfast.filesystem.transfer import BLOCK, write_blocks
from holdfast.protocol.fs import WalkOptions
from holdfast.protocol.paths import PathUri
from holdfast.protocol.sandbox import SandboxContext

__all__ = [
    "EVERYTHING",
    "FILES_AT_ONCE",
    "ListedTree",
    "LocalFolder",
    "local_folders",
    "masked",
    "move",
    "permissions_of",
    "run_together",
    "send_file",
    "walk_tree",
]

FILES_AT_ONCE = 4
"""Files on their way at once; each has a few blocks of 1 MiB in memory."""

EVERYTHING = WalkOptions(
    max_depth=64, max_directories=10_000, max_entries=50_000, follow_directory_symlinks=False
)
"""As much as a server takes."""


class LocalFolder(NamedTuple):
    """One folder of a tree of this machine."""

    parts: tuple[str, ...]
    """Its path below the root of the tree."""
    files: list[str]
    """Names of its regular files."""
    links: list[str]
    """Names of its symbolic links, whatever they lead to."""
    others: list[str]
    """Names of sockets, pipes and devices."""


def local_folders(root: str) -> Iterator[LocalFolder]:
    """
    Yield the folders below one, itself first.

    Raises:
        OSError: One of them cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    for folder, below, names in os.walk(root, onerror=fail):
        relative = os.path.relpath(folder, root)
        parts = () if relative == "." else tuple(relative.split(os.sep))
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
    """Folders and files below a folder of a place, each with its parts below that."""

    folders: list[tuple[PathUri, tuple[str, ...]]]
    files: list[tuple[PathUri, tuple[str, ...]]]
    errors: list[tuple[PathUri, str]]
    """Paths that could not be read, each with the reason."""


async def walk_tree(
    filesystem: FileSystem, root: PathUri, *, sandbox: SandboxContext | None = None
) -> ListedTree:
    """
    List what is below a folder, folders before what is in them; links are left out.

    Raises:
        OperationFailed: There is more than one answer takes, or a path is not below the root.
        ForeignPathUri: Paths of that machine cannot be spelled on this one.
    """
    found = await filesystem.walk(root, EVERYTHING, sandbox=sandbox)
    tree = ListedTree([], [], [(error.path, error.message) for error in found.errors])
    if found.truncated:
        raise OperationFailed(f"there is more below `{root.native}` than can be fetched")
    prefix = root.native.rstrip("/") + "/"
    for entry in found.entries:
        path = entry.path.native
        parts = tuple(path.removeprefix(prefix).split("/"))
        # A server must not choose where on this machine a file is written.
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
    permissions: int | None = None,
    sandbox: SandboxContext | None = None,
    sent: Callable[[int], None] | None = None,
) -> None:
    """
    Write all of an open file to a place; it is there as a whole or not at all.

    Args:
        filesystem: Of the place.
        file: From where it stands to its end.
        target: Where it goes.
        in_blocks: False if the place takes files only as a whole.
        permissions: As for `FileSystem.open`; not set where files are taken as a whole only.
        sandbox: As for `FileSystem.open`.
        sent: Told the size of each piece that has been written.
    """
    if not in_blocks:
        data = await asyncio.to_thread(file.read)
        await filesystem.write_file(target, data, sandbox=sandbox)
        if sent is not None:
            sent(len(data))
        return
    handle = await filesystem.open(target, "replace", permissions=permissions, sandbox=sandbox)
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
    Give a file or a folder another name: in one step, or by a copy where that cannot be done.

    A sandbox, a server that cannot rename and another file system need the copy.
    """
    if sandbox is None:
        try:
            await filesystem.rename(source, destination)
        except Unsupported:
            pass
        except OperationFailed as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return
    await filesystem.copy(source, destination, recursive=True, sandbox=sandbox)
    await filesystem.remove(source, recursive=True, force=False, sandbox=sandbox)


def permissions_of(file: BinaryIO) -> int | None:
    """Return the permission bits of an open file, if it is a regular one."""
    mode = os.fstat(file.fileno()).st_mode
    return mode & 0o777 if stat.S_ISREG(mode) else None


def masked(permissions: int) -> int:
    """Return the permission bits without those that new files of this process do not get."""
    # Read without changing it: other threads make files, too.
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return permissions & ~int(line.split()[1], 8)
    return permissions & ~0o022


async def run_together(
    works: Iterable[Coroutine[object, object, None]], *, at_once: int = FILES_AT_ONCE
) -> None:
    """Run a few at a time; the first that fails ends the others, and is raised."""
    waiting = iter(works)

    async def work() -> None:
        for one in waiting:
            await one

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(work())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
