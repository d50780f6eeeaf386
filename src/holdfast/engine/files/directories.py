"""Makes, lists and removes directories; symbolic links are followed."""

import os
import stat
from collections.abc import Callable, Iterable
from typing import NamedTuple

from holdfast.base.dialect import limits, texts
from holdfast.base.errors import OperationFailed
from holdfast.wire.protocol.fs import DirectoryEntry

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

MAX_ENTRIES = limits.FILE_LISTED
"""Entries of one response [fs.list]."""


def lossy(name: str) -> str:
    """Return a file name with U+FFFD in place of bytes that are not UTF-8."""
    # Bytes that are not UTF-8 are surrogates in the string, which cannot be encoded.
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name).decode("utf-8", "replace")
    return name


def create_directory(path: str, *, recursive: bool) -> None:
    """
    Make a directory; with `recursive` also its parents, and an existing one is fine.

    Raises:
        OSError: The error of the system call.
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
            # /proc reports ENOENT although the parent exists. And if another process keeps
            # removing the parent, an error is better than an endless loop.
            if missing[-1] in has_parent or parent == missing[-1]:
                raise
            has_parent.add(missing[-1])
            missing.append(parent)
            continue
        except OSError:
            # EEXIST: another process made it, which is fine. A read-only file system reports
            # EROFS even for a directory that exists.
            if not os.path.isdir(missing[-1]):
                raise
        missing.pop()


def read_directory(path: str) -> list[DirectoryEntry]:
    """
    Return the entries of a directory; links have the kind of their target.

    Dangling links are left out.

    Raises:
        OperationFailed: The directory has more than `MAX_ENTRIES` entries.
        OSError: The error of the system call.
    """
    with os.scandir(path) as entries:
        return listed((entry.name, kind_of(entry)) for entry in entries)


def listed(entries: Iterable[tuple[str, str | None]]) -> list[DirectoryEntry]:
    """
    Return the entries of a response from names and kinds; those of kind None are left out.

    Raises:
        OperationFailed: There are more than `MAX_ENTRIES` entries.
    """
    found = [
        DirectoryEntry(
            file_name=lossy(name), is_directory=kind == "directory", is_file=kind == "file"
        )
        for name, kind in entries
        if kind is not None
    ]
    if len(found) > MAX_ENTRIES:
        raise OperationFailed(texts.too_many_entries(len(found), MAX_ENTRIES))
    return found


def kind_of(entry: "os.DirEntry[str]") -> str | None:
    """Return the kind of an entry or its target; None for a dangling link."""
    try:
        if entry.is_dir():
            return "directory"
        if entry.is_file():
            return "file"
        # Both tests are also False for a dangling link, for which `stat` raises.
        if entry.is_symlink():
            entry.stat()
    except OSError:
        return None
    return "other"


def remove(path: str, *, recursive: bool, force: bool) -> None:
    """
    Remove a file, a link (not its target), or a directory.

    Args:
        path: Absolute path.
        recursive: Remove the content of a directory, too; after an error, the rest stays.
        force: Ignore a missing path.

    Raises:
        OSError: The error of the system call.
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
    Remove a directory with its content, without following links that appear meanwhile.

    Each directory is opened relative to its parent and stays open until it is empty.

    Args:
        name: Name of the directory in `around`; its path if `around` is None.
        around: Descriptor of the parent directory.
        path: Path of the directory for `check`.
        check: Called with the path of each entry before its removal, and True for a directory or a
            link. It raises if the entry must stay.

    Raises:
        OSError: The error of the system call.
    """
    # A list instead of recursion: a tree may be deeper than Python's stack.
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
            # Closed before the removal, so that the kernel can free it at once.
            open_folders.pop()
            os.close(folder.descriptor)
            os.rmdir(folder.name, dir_fd=open_folders[-1].descriptor if open_folders else around)
    finally:
        for folder in open_folders:
            os.close(folder.descriptor)


class _OpenFolder(NamedTuple):
    """Open directory without files; the directories in it are still to be removed."""

    descriptor: int
    name: str
    path: str
    inner: list[str]


def _clear_folder(
    name: str, around: int | None, path: str, check: Callable[[str, bool], None] | None
) -> _OpenFolder:
    """Open a directory and remove all entries that are not directories."""
    descriptor = os.open(name, _FOLDER, dir_fd=around)
    inner: list[str] = []
    try:
        with os.scandir(descriptor) as entries:
            names = [
                (entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                for entry in entries
            ]
        # All checks before the first removal: an entry that must stay leaves all others.
        if check is not None:
            for entry_name, is_folder, is_link in names:
                check(f"{path}/{entry_name}", is_folder or is_link)
        for entry_name, is_folder, _ in names:
            if is_folder:
                inner.append(entry_name)
            else:
                os.unlink(entry_name, dir_fd=descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return _OpenFolder(descriptor, name, path, inner)
