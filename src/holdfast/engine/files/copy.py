"""
Copies files, links and directory trees [fs.copy.*].

`copy_file_range` copies in the kernel, which shares blocks where the file system can. A file that
is copied onto itself stays as it is.
"""

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from holdfast.base.errors import InvalidRequest
from holdfast.engine.files.atomic_write import WriteTarget, find_target, start_writing
from holdfast.engine.files.directories import create_directory
from holdfast.engine.files.errno_mapping import about

__all__ = ["INTO_ITSELF", "NEEDS_RECURSIVE", "OTHER_KIND", "copy", "copy_content"]

NEEDS_RECURSIVE = "fs/copy requires recursive: true when sourcePath is a directory"
INTO_ITSELF = "fs/copy cannot copy a directory to itself or one of its descendants"
OTHER_KIND = "fs/copy only supports regular files, directories, and symlinks"

# Bytes for one `copy_file_range`, which may copy fewer.
_PIECE = 1 << 30

# Bytes for one `read`, where the kernel cannot copy itself.
_BLOCK = 1 << 20


def copy(source: str, destination: str, *, recursive: bool) -> None:
    """
    Copy a file, a link or a directory.

    Raises:
        InvalidRequest: The source is none of these, or is a directory without `recursive`, or the
            destination is inside it.
        OSError: The error of the system call.
    """
    mode = os.lstat(source).st_mode
    if stat.S_ISDIR(mode):
        if not recursive:
            raise InvalidRequest(NEEDS_RECURSIVE, path=source)
        if _is_within(destination, source):
            raise InvalidRequest(INTO_ITSELF, path=destination)
        _copy_tree(source, destination)
    elif stat.S_ISLNK(mode):
        _copy_link(source, destination)
    elif stat.S_ISREG(mode):
        _copy_file(source, destination)
    else:
        raise InvalidRequest(OTHER_KIND, path=source)


def _is_within(path: str, folder: str) -> bool:
    folder = os.path.realpath(folder)
    return os.path.commonpath([os.path.realpath(path), folder]) == folder


def _copy_tree(source: str, destination: str) -> None:
    """Merge a directory into another one; sockets, FIFOs and devices are left out."""
    # A list instead of recursion: a tree may be deeper than Python's stack.
    pending = [(source, destination)]
    while pending:
        source, destination = pending.pop()
        with about(destination):
            create_directory(destination, recursive=True)
        with os.scandir(source) as entries:
            for entry in entries:
                target = f"{destination.rstrip('/')}/{entry.name}"
                if entry.is_symlink():
                    _copy_link(entry.path, target)
                elif entry.is_dir():
                    pending.append((entry.path, target))
                elif entry.is_file():
                    _copy_file(entry.path, target)


def _copy_file(source: str, destination: str) -> None:
    descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    # The source is open, so an error from here on is nearly always that of the destination.
    with about(destination):
        copy_content(descriptor, lambda: find_target(destination))


def _copy_link(source: str, destination: str) -> None:
    text = os.readlink(source)
    # The error of `symlink` itself would name the target of the link.
    with about(destination):
        os.symlink(text, destination)


def copy_content(descriptor: int, find: Callable[[], WriteTarget]) -> None:
    """
    Copy an open file, its permission bits included, and close it.

    Args:
        descriptor: Descriptor of the source, open for reading.
        find: Returns the file to write; called after the source has been looked at.

    Raises:
        OSError: The error of the system call.
    """
    try:
        facts = os.fstat(descriptor)
        target = find()
        # Writing in place would truncate the source before it is read.
        if target.old >= 0 and os.path.samestat(os.fstat(target.old), facts):
            target.close()
            return
        writer = start_writing(target)
        try:
            writer.begin()
            if not _move(descriptor, writer.descriptor):
                offset = os.lseek(descriptor, 0, os.SEEK_CUR)
                while data := os.read(descriptor, _BLOCK):
                    writer.write(data, offset)
                    offset += len(data)
        except BaseException:
            writer.discard()
            raise
        writer.commit(stat.S_IMODE(facts.st_mode))
    finally:
        os.close(descriptor)


def _move(source: int, destination: int) -> bool:
    """Copy in the kernel; return False if the rest has to be read and written."""
    moved = 0
    with suppress(OSError):
        while done := os.copy_file_range(source, destination, _PIECE):
            moved += done
        # Files of /proc have size 0 until they are read.
        return moved > 0
    return False
