"""This machine's side of `get` and `put`: plain files, without a seam in front."""

import glob
import os
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from holdfast.filesystem.trees import masked
from holdfast.protocol.fs import FileMetadata

__all__ = ["PartialFile", "Source", "is_folder", "landing", "make_folder", "source_of"]


class PartialFile:
    """
    A file on its way to a target: hidden, until it is complete.

    Its name has the size and the time of the original, so that whoever goes on with it
    knows that it is the same. Those of other originals are removed.
    """

    def __init__(self, target: str, original: FileMetadata, *, resume: bool) -> None:
        """
        Args:
            target: What it becomes.
            original: What is known of the original.
            resume: Go on with what an earlier attempt left, if there is any.

        Raises:
            OSError: It cannot be made.
        """
        folder, name = os.path.split(target)
        self._target = target
        self._path = os.path.join(folder, f".{name}.{original.size}-{original.modified_at_ms}.part")
        for left in glob.glob(os.path.join(glob.escape(folder), f".{glob.escape(name)}.*-*.part")):
            if left != self._path:
                os.unlink(left)
        # The name says whose it is; without `resume` it starts empty all the same.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if resume else os.O_TRUNC)
        self.file: BinaryIO = open(os.open(self._path, flags, 0o666), "r+b")  # noqa: SIM115 - `complete` and `give_up` close it
        self.start = min(self.file.seek(0, os.SEEK_END), original.size)
        """Bytes that are there already."""
        self.file.seek(self.start)
        self.file.truncate()

    def complete(self, permissions: int | None) -> None:
        """
        Let it be the target: it has all.

        Args:
            permissions: The permission bits of the original, if they are known.
        """
        if permissions is not None:
            os.fchmod(self.file.fileno(), masked(permissions))
        self.file.close()
        os.replace(self._path, self._target)

    def give_up(self) -> bool:
        """Leave it for another attempt, if that is of any use; tells whether it is."""
        with suppress(OSError):
            self.file.close()
        if os.path.getsize(self._path):
            return True
        os.unlink(self._path)
        return False


def landing(target: str, name: str) -> str:
    """A target, or what is to be in it if it is a folder."""
    return os.path.join(target, name) if os.path.isdir(target) else target


def is_folder(path: str) -> bool:
    """Return True for a folder, or a link to one."""
    return os.path.isdir(path)


def make_folder(path: str) -> None:
    """Make a folder unless it is there."""
    os.makedirs(path, exist_ok=True)


class Source(NamedTuple):
    """What is to be sent."""

    path: str
    name: str
    is_directory: bool
    size: int


def source_of(text: str) -> Source:
    """
    Look at what is to be sent.

    Raises:
        OSError: It is not there.
    """
    path = os.path.abspath(text)
    size = os.stat(path).st_size
    return Source(path, os.path.basename(path), os.path.isdir(path), size)
