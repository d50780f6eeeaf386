"""
Copies of files, links and trees [fs.copy.*].

The bytes are moved inside the kernel, which shares them where the file system can.
A file that is copied onto itself stays as it is; the real server empties it.
"""

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from holdfast.errors import InvalidRequest
from holdfast.filesystem.atomic_write import WriteTarget, find_target, start_writing
from holdfast.filesystem.directories import create_directory
from holdfast.filesystem.errno_mapping import about

__all__ = ["INTO_ITSELF", "NEEDS_RECURSIVE", "OTHER_KIND", "copy", "copy_content"]

NEEDS_RECURSIVE = "fs/copy requires recursive: true when sourcePath is a directory"
INTO_ITSELF = "fs/copy cannot copy a directory to itself or one of its descendants"
OTHER_KIND = "fs/copy only supports regular files, directories, and symlinks"

_PIECE = 1 << 30
"""Bytes to ask the kernel for at once; it moves fewer if it likes."""

_BLOCK = 1 << 20


def copy(source: str, destination: str, *, recursive: bool) -> None:
    """
    Copy a file, a link or a folder.

    Raises:
        InvalidRequest: It is none of these, or the destination does not fit.
        OSError: As the kernel says.
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
    """Merge a folder into another one; what is neither file, link nor folder is left out."""
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
    with about(destination):  # the source is open: what fails now is as good as always this
        copy_content(descriptor, lambda: find_target(destination))


def _copy_link(source: str, destination: str) -> None:
    text = os.readlink(source)
    with about(destination):  # the error of the call would name the text of the link
        os.symlink(text, destination)


def copy_content(descriptor: int, find: Callable[[], WriteTarget]) -> None:
    """
    Copy an open file, its permission bits included, and close it.

    Args:
        descriptor: Of the file, open to be read.
        find: Finds where it is to go.

    Raises:
        OSError: As the kernel says.
    """
    try:
        facts = os.fstat(descriptor)
        target = find()
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
    """Let the kernel do it; `False` if some or all is left to be done by hand."""
    moved = 0
    with suppress(OSError):
        while done := os.copy_file_range(source, destination, _PIECE):
            moved += done
        # Files of /proc seem to be empty until they are read.
        return moved > 0
    return False
