"""
File operations that refuse symbolic links in a path [fs.no-follow.*].

Each directory is opened relative to its parent with O_NOFOLLOW, so the very call that would follow
a link refuses it. There is no gap between check and use in which a link could be inserted.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidRequest, OperationFailed
from holdfast.engine.files.nowait import metadata_of
from holdfast.wire.protocol.fs import FileMetadata

__all__ = [
    "create_directory",
    "get_metadata",
    "open_folder",
    "open_parent",
    "open_to_read",
    "remove",
]

# O_PATH needs no permission to read the directory, only to traverse it.
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINK = "path contains a symbolic link"
_NO_ENTRY = "path must name an entry"


def open_folder(path: str, *, create: bool = False) -> int:
    """
    Return an O_PATH descriptor of a directory, opened component by component.

    Args:
        path: Absolute path without `.`, `..` and surplus slashes.
        create: Make missing directories.

    Raises:
        OSError: `ENOTDIR` for a link anywhere in the path.
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
    # Another process may create the directory meanwhile, or a link, which the open refuses.
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)


@contextmanager
def open_parent(path: str) -> Iterator[tuple[int, str]]:
    """
    Yield a descriptor of the parent directory, and the name of the entry in it.

    Raises:
        InvalidRequest: The path is `/`, which has no parent.
        OSError: The error of `open_folder`.
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
    Return a descriptor of a regular file, open for reading.

    Raises:
        InvalidRequest: The file is not a regular one.
        OSError: `ELOOP` if the path is a link, `ENOTDIR` if a parent directory is one.
    """
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    with open_parent(path) as (folder, name):
        descriptor = os.open(name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidRequest(texts.NOT_REGULAR)
    return descriptor


def create_directory(path: str, *, recursive: bool) -> None:
    """
    Make a directory; with `recursive` also its parents.

    Raises:
        OperationFailed: The path is `/`, which exists.
        OSError: The error of the system call.
    """
    if recursive:
        os.close(open_folder(path, create=True))
        return
    if path == "/":
        raise OperationFailed(texts.DIRECTORY_EXISTS)
    with open_parent(path) as (folder, name):
        os.mkdir(name, dir_fd=folder)


def get_metadata(path: str) -> FileMetadata:
    """
    Return the metadata of a file that is not a link.

    Raises:
        InvalidRequest: The path is a link.
        OSError: The error of the system call.
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
    Remove a file that is not a link, or an empty directory.

    Raises:
        OperationFailed: `recursive`, which the protocol does not support here.
        InvalidRequest: The path is a link.
        OSError: The error of the system call.
    """
    if recursive:
        raise OperationFailed(texts.NO_RECURSIVE_REMOVAL)
    try:
        with open_parent(path) as (folder, name):
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                raise InvalidRequest(_LINK)
            # If it becomes a link now, the link is removed and not its target.
            if stat.S_ISDIR(mode):
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
    except OSError as error:
        if not (force and error.errno == errno.ENOENT):
            raise
