"""Folders: making, listing and removing them, links followed as the kernel does."""

import os
import stat
from collections.abc import Callable, Iterable
from typing import NamedTuple

from holdfast.errors import OperationFailed
from holdfast.protocol.fs import DirectoryEntry

__all__ = [
    "MAX_ENTRIES",
    "create_directory",
    "kind_of",
    "listed",
    "lossy",
    "read_directory",
    "remove",
    "remove_tree",
]

MAX_ENTRIES = 50_000
"""Entries one answer may list [fs.list]."""


def lossy(name: str) -> str:
    """A name as text, with a replacement character for what is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name).decode("utf-8", "replace")
    return name


def create_directory(path: str, *, recursive: bool) -> None:
    """
    Make a folder; with `recursive` also those above it, and one that is there is fine.

    Raises:
        OSError: As the kernel says.
    """
    if not recursive:
        os.mkdir(path)
        return
    missing = [path]
    has_parent: set[str] = set()
    while missing:
        try:
            os.mkdir(missing[-1])
        except FileNotFoundError:
            parent = os.path.dirname(missing[-1])
            # File systems such as /proc say so although the folder above is there. And where
            # others remove it again, whoever asked gets the error rather than a race.
            if missing[-1] in has_parent or parent == missing[-1]:
                raise
            has_parent.add(missing[-1])
            missing.append(parent)
            continue
        except OSError:
            # Whoever made it: what counts is that it is there. A read-only file
            # system says so even of a folder that exists.
            if not os.path.isdir(missing[-1]):
                raise
        missing.pop()


def read_directory(path: str) -> list[DirectoryEntry]:
    """
    What is in a folder; a link counts as what it leads to, and one that leads nowhere not at all.

    Raises:
        OperationFailed: There are more than `MAX_ENTRIES`.
        OSError: As the kernel says.
    """
    with os.scandir(path) as entries:
        return listed((entry.name, kind_of(entry)) for entry in entries)


def listed(entries: Iterable[tuple[str, str | None]]) -> list[DirectoryEntry]:
    """
    Names and kinds as an answer lists them; those that are nothing are left out.

    Raises:
        OperationFailed: There are more than `MAX_ENTRIES`.
    """
    found = [
        DirectoryEntry(
            file_name=lossy(name), is_directory=kind == "directory", is_file=kind == "file"
        )
        for name, kind in entries
        if kind is not None
    ]
    if len(found) > MAX_ENTRIES:
        raise OperationFailed(
            f"fs/readDirectory returned {len(found)} entries; limit is {MAX_ENTRIES}"
        )
    return found


def kind_of(entry: "os.DirEntry[str]") -> str | None:
    """What an entry is or leads to: `directory`, `file`, `other`, or `None` for nothing."""
    try:
        if entry.is_dir():
            return "directory"
        if entry.is_file():
            return "file"
        # The two say "no" of a link to nowhere as well.
        if entry.is_symlink():
            entry.stat()
    except OSError:
        return None
    return "other"


def remove(path: str, *, recursive: bool, force: bool) -> None:
    """
    Remove a file, a link itself, or a folder.

    Args:
        recursive: Also what is in the folder; if that fails half-way, the rest stays.
        force: One that is not there is fine.

    Raises:
        OSError: As the kernel says.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        elif recursive:
            remove_tree(path)
        else:
            os.rmdir(path)
    except FileNotFoundError:
        if not force:
            raise


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(
    name: str,
    around: int | None = None,
    *,
    path: str = "",
    check: Callable[[str, bool], None] | None = None,
) -> None:
    """
    Empty a folder and remove it, following no link that somebody puts there meanwhile.

    Folders are open while what is in them goes, each relative to the one around it.

    Args:
        name: Of the folder; a path if there is no folder around it.
        around: An open folder.
        path: What `check` knows the folder by.
        check: Called with the path of everything before it goes, and whether it is a
            folder, to raise if it must not go.

    Raises:
        OSError: As the kernel says.
    """
    open_folders: list[_OpenFolder] = []
    try:
        open_folders.append(_clear_folder(name, around, path, check))
        while open_folders:
            folder = open_folders[-1]
            if folder.inner:
                inner = folder.inner.pop()
                open_folders.append(
                    _clear_folder(inner, folder.descriptor, f"{folder.path}/{inner}", check)
                )
                continue
            open_folders.pop()
            os.close(folder.descriptor)
            os.rmdir(folder.name, dir_fd=open_folders[-1].descriptor if open_folders else around)
    finally:
        for folder in open_folders:
            os.close(folder.descriptor)


class _OpenFolder(NamedTuple):
    """A folder whose files are gone; the folders in it are yet to go."""

    descriptor: int
    name: str
    path: str
    inner: list[str]


def _clear_folder(
    name: str, around: int | None, path: str, check: Callable[[str, bool], None] | None
) -> _OpenFolder:
    """Open a folder and remove all but the folders in it."""
    descriptor = os.open(name, _FOLDER, dir_fd=around)
    inner: list[str] = []
    try:
        with os.scandir(descriptor) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        if check is not None:
            for entry_name, is_folder in names:
                check(f"{path}/{entry_name}", is_folder)
        for entry_name, is_folder in names:
            if is_folder:
                inner.append(entry_name)
            else:
                os.unlink(entry_name, dir_fd=descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return _OpenFolder(descriptor, name, path, inner)
