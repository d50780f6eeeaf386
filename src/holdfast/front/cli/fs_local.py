"""The local side of `get` and `put`: plain files."""

import glob
import os
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from holdfast.engine.files.trees import masked
from holdfast.wire.protocol.fs import FileMetadata

__all__ = ["LocalSource", "PartialFile", "is_folder", "landing", "make_folder", "source_of"]


class PartialFile:
    """
    A download in progress: a hidden file beside the target.

    Its name has the size and the time of the original, so that a later attempt can tell whether
    it is the same. Partial files of other originals are removed.
    """

    def __init__(self, target: str, original: FileMetadata, *, resume: bool) -> None:
        """
        Args:
            target: Its final path.
            original: Metadata of the original.
            resume: Continue what an earlier attempt left, if there is any.

        Raises:
            OSError: It cannot be created.
        """
        folder, name = os.path.split(target)
        self._target = target
        self._path = os.path.join(folder, f".{name}.{original.size}-{original.modified_at_ms}.part")
        for left in glob.glob(os.path.join(glob.escape(folder), f".{glob.escape(name)}.*-*.part")):
            if left != self._path:
                os.unlink(left)
        # The name proves that the original is the same; without `resume` it is truncated anyway.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if resume else os.O_TRUNC)
        self.file: BinaryIO = open(os.open(self._path, flags, 0o666), "r+b")  # noqa: SIM115 - `complete` and `give_up` close it
        self.start = min(self.file.seek(0, os.SEEK_END), original.size)
        """Bytes that an earlier attempt has left."""
        self.file.seek(self.start)
        # An earlier attempt may have left more than the original has.
        self.file.truncate()

    def complete(self, permissions: int | None) -> None:
        """
        Move it to the target: it is complete.

        Args:
            permissions: The permission bits of the original, if known.
        """
        if permissions is not None:
            os.fchmod(self.file.fileno(), masked(permissions))
        self.file.close()
        os.replace(self._path, self._target)

    def give_up(self) -> bool:
        """Keep it for another attempt if it has any content; return True if so."""
        with suppress(OSError):
            self.file.close()
        # An empty file would only be clutter.
        if os.path.getsize(self._path):
            return True
        os.unlink(self._path)
        return False


def landing(target: str, name: str) -> str:
    """Return the target, or the path in it if it is a directory."""
    return os.path.join(target, name) if os.path.isdir(target) else target


def is_folder(path: str) -> bool:
    """Return True for a folder, or a link to one."""
    return os.path.isdir(path)


def make_folder(path: str) -> None:
    """Create a directory unless it exists."""
    os.makedirs(path, exist_ok=True)


class LocalSource(NamedTuple):
    """A local file or directory to send."""

    path: str
    name: str
    is_directory: bool
    size: int


def source_of(text: str) -> LocalSource:
    """
    Return the file or directory to send.

    Raises:
        OSError: It does not exist.
    """
    path = os.path.abspath(text)
    size = os.stat(path).st_size
    return LocalSource(path, os.path.basename(path), os.path.isdir(path), size)
