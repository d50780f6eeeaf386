"""
Operations that meet no symbolic link on their way [fs.no-follow.*].

Each folder is opened relative to the one before it, and a link is refused by the
call that would follow it. Nothing is checked first and used later, so nobody can
put a link in between.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.errors import InvalidRequest, OperationFailed
from holdfast.filesystem.nowait import metadata_of
from holdfast.protocol.fs import FileMetadata

__all__ = [
    "create_directory",
    "get_metadata",
    "open_folder",
    "open_parent",
    "open_to_read",
    "remove",
]

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINK = "path contains a symbolic link"
_NO_ENTRY = "path must name an entry"


def open_folder(path: str, *, create: bool = False) -> int:
    """
    Open a folder by its absolute path, step by step from the root.

    Args:
        path: Without `.`, `..` and surplus slashes.
        create: Make the folders that are missing.

    Raises:
        OSError: `ENOTDIR` for a link anywhere on the way.
    """
    folder = os.open("/", _FOLDER)
    for name in filter(None, path.split("/")):
        try:
            inner = _enter(folder, name, create)
        finally:
            os.close(folder)
        folder = inner
    return folder


def _enter(folder: int, name: str, create: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):  # somebody was faster; the next call says what it is
        os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)


@contextmanager
def open_parent(path: str) -> Iterator[tuple[int, str]]:
    """
    The folder of an entry, open, and the name of the entry in it.

    Raises:
        InvalidRequest: The path is the root, which is no entry of anything.
        OSError: As for `open_folder`.
    """
    parent, _, name = path.rpartition("/")
    if not name:
        raise InvalidRequest(_NO_ENTRY)
    folder = open_folder(parent)
    try:
        yield folder, name
    finally:
        os.close(folder)


def open_to_read(path: str) -> int:
    """
    Open a regular file.

    Raises:
        InvalidRequest: It is something else.
        OSError: `ELOOP` if it is a link, `ENOTDIR` for one on the way.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    with open_parent(path) as (folder, name):
        descriptor = os.open(name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidRequest("path is not a regular file")
    return descriptor


def create_directory(path: str, *, recursive: bool) -> None:
    """
    Make a folder.

    Raises:
        OperationFailed: It is the root, which is there.
        OSError: As the kernel says.
    """
    if recursive:
        os.close(open_folder(path, create=True))
        return
    if path == "/":
        raise OperationFailed("directory already exists")
    with open_parent(path) as (folder, name):
        os.mkdir(name, dir_fd=folder)


def get_metadata(path: str) -> FileMetadata:
    """
    The facts about an entry that is no link.

    Raises:
        InvalidRequest: It is one.
        OSError: As the kernel says.
    """
    if path == "/":
        folder = open_folder(path)
        try:
            return metadata_of(folder, "")
        finally:
            os.close(folder)
    with open_parent(path) as (folder, name):
        found = metadata_of(folder, name)
    if found.is_symlink:
        raise InvalidRequest(_LINK)
    return found


def remove(path: str, *, recursive: bool, force: bool) -> None:
    """
    Remove an entry that is no link, or an empty folder.

    Raises:
        OperationFailed: `recursive` was asked for, which the protocol does not have here.
        InvalidRequest: It is a link.
        OSError: As the kernel says.
    """
    if recursive:
        raise OperationFailed("recursive no-follow removal is unsupported")
    try:
        with open_parent(path) as (folder, name):
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                raise InvalidRequest(_LINK)
            # Should it become a link now, it is the link that goes.
            if stat.S_ISDIR(mode):
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
    except OSError as error:
        if not (force and error.errno == errno.ENOENT):
            raise
