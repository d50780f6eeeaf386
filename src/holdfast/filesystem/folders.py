"""Folders: making, listing and removing them, links followed as the kernel does."""

import os
import stat

from holdfast.errors import OperationFailed
from holdfast.protocol.fs import DirectoryEntry

__all__ = ["MAX_ENTRIES", "create_directory", "lossy", "read_directory", "remove"]

MAX_ENTRIES = 50_000
"""Entries one answer may list (filesystem spec 3.10)."""


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
    while missing:
        try:
            os.mkdir(missing[-1])
        except FileNotFoundError:
            parent = os.path.dirname(missing[-1])
            if parent == missing[-1]:
                raise
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
    listed: list[DirectoryEntry] = []
    with os.scandir(path) as entries:
        for entry in entries:
            kind = kind_of(entry)
            if kind is not None:
                listed.append(
                    DirectoryEntry(
                        file_name=lossy(entry.name),
                        is_directory=kind == "directory",
                        is_file=kind == "file",
                    )
                )
    if len(listed) > MAX_ENTRIES:
        raise OperationFailed(
            f"fs/readDirectory returned {len(listed)} entries; limit is {MAX_ENTRIES}"
        )
    return listed


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
            _remove_tree(path)
        else:
            os.rmdir(path)
    except FileNotFoundError:
        if not force:
            raise


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _remove_tree(path: str) -> None:
    """
    Empty a folder and remove it, following no link that somebody puts there meanwhile.

    Folders are open while what is in them goes, each relative to the one around it.
    """
    open_folders: list[tuple[int, str, list[str]]] = []
    try:
        open_folders.append(_list_folder(path, None))
        while open_folders:
            folder, name, inner = open_folders[-1]
            if inner:
                open_folders.append(_list_folder(inner.pop(), folder))
                continue
            open_folders.pop()
            os.close(folder)
            os.rmdir(name, dir_fd=open_folders[-1][0] if open_folders else None)
    finally:
        for folder, _, _ in open_folders:
            os.close(folder)


def _list_folder(name: str, around: int | None) -> tuple[int, str, list[str]]:
    """Open a folder and remove all but the folders in it, which are returned."""
    folder = os.open(name, _FOLDER, dir_fd=around)
    inner: list[str] = []
    try:
        with os.scandir(folder) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for entry_name, is_folder in names:
            if is_folder:
                inner.append(entry_name)
            else:
                os.unlink(entry_name, dir_fd=folder)
    except BaseException:
        os.close(folder)
        raise
    return folder, name, inner
