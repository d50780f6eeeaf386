"""
Replaces the content of a file in one step, so that no reader sees half of it.

The content goes to an unnamed file (O_TMPFILE) in the same directory, or to a hidden file where the
file system does not support that. A rename then replaces the old file. An unnamed file vanishes
with its descriptor, so even a killed server leaves nothing behind.

A file is written in place if a new one could not replace it: a file with several names or with
extended attributes, one in a directory that accepts no new file, a device, a FIFO.
"""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import NamedTuple, Protocol

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidRequest
from holdfast.engine.files.nofollow import open_parent
from holdfast.engine.linux.shared_directories import creates_over

__all__ = [
    "OLD",
    "WriteTarget",
    "Writer",
    "find_target",
    "find_target_nofollow",
    "start_writing",
    "write_pieces",
]

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO without a reader would block its thread for ever.
OLD = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Flags for opening the existing file."""

# The kernel's own limit (MAXSYMLINKS) for one path.
_MAX_LINKS = 40

# Errors that writing in place would also hit, but only after truncating the file.
_GIVES_UP = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE})


class WriteTarget(NamedTuple):
    """File to write: its directory, its name, and the existing file. The owner closes it."""

    folder: int
    """O_PATH descriptor of the directory; -1 if the file can only be written in place."""
    name: str
    """Name in the directory."""
    old: int
    """Descriptor of the existing file, open for writing; -1 if it does not exist."""

    def close(self) -> None:
        for descriptor in (self.folder, self.old):
            if descriptor >= 0:
                os.close(descriptor)


class Writer(Protocol):
    """Writer of new content. It ends with the first `commit` or `discard`."""

    descriptor: int
    """Descriptor to write to."""
    in_place: bool
    """True if the old content is lost as soon as writing begins."""

    def begin(self) -> None:
        """Truncate the file if it is written in place; the first `write` does so, too."""

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all data at an offset; a gap becomes zeros."""

    def commit(self, mode: int | None = None) -> None:
        """Make the content visible, with these permission bits if given."""

    def discard(self) -> None:
        """Drop the content, and close all descriptors."""


def find_target(path: str) -> WriteTarget:
    """
    Return the file that a path leads to, even through a dangling link.

    Raises:
        OSError: The file cannot be written, or its directory is missing.
    """
    try:
        old = os.open(path, OLD)
    except FileNotFoundError:
        return _missing_target(path)
    # A device or a FIFO can only be written in place.
    if not stat.S_ISREG(os.fstat(old).st_mode):
        return WriteTarget(-1, "", old)
    # The real path of the open file; resolving `path` again could lead elsewhere.
    parent, _, name = os.readlink(f"/proc/self/fd/{old}").rpartition("/")
    try:
        target = WriteTarget(os.open(parent or "/", _FOLDER), name, old)
    except OSError:
        return WriteTarget(-1, "", old)
    _refuse_files_of_others(target)
    return target


def _refuse_files_of_others(target: WriteTarget) -> None:
    """
    Refuse an existing file that the kernel would not open with `O_CREAT`.

    Raises:
        PermissionError: It belongs to another user, in a directory like `/tmp`.
    """
    if not creates_over(os.fstat(target.old), os.fstat(target.folder)):
        target.close()
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _missing_target(path: str) -> WriteTarget:
    """Follow dangling links to the directory in which the file would be created."""
    parent, _, name = path.rpartition("/")
    folder = os.open(parent or "/", _FOLDER)
    for _ in range(_MAX_LINKS):
        try:
            path = os.readlink(name, dir_fd=folder)
        except OSError:
            # Not a link. If another file has appeared here since, the rename replaces it.
            return WriteTarget(folder, name, -1)
        # The kernel refuses to create a file through a link whose target ends with a slash.
        if path.endswith("/"):
            os.close(folder)
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        parent, slash, name = path.rpartition("/")
        outer = folder
        try:
            folder = os.open(parent or slash or ".", _FOLDER, dir_fd=outer)
        finally:
            os.close(outer)
    os.close(folder)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def find_target_nofollow(path: str) -> WriteTarget:
    """
    Return the file at a path that has no symbolic link in it.

    Raises:
        InvalidRequest: The file is not a regular one.
        OSError: `ELOOP` if the path is a link, `ENOTDIR` if a parent directory is one.
    """
    with ExitStack() as undo:
        folder, name = undo.enter_context(open_parent(path))
        try:
            old = os.open(name, OLD | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            return WriteTarget(os.dup(folder), name, -1)
        undo.callback(os.close, old)
        # After the open, so that the checked file is the one that is written.
        if not stat.S_ISREG(os.fstat(old).st_mode):
            raise InvalidRequest(texts.NOT_REGULAR)
        return WriteTarget(os.dup(folder), name, os.dup(old))


def start_writing(target: WriteTarget) -> Writer:
    """
    Return a writer for a file. It takes over the descriptors of the target.

    Raises:
        OSError: The disk is full, or the directory accepts no new file.
    """
    with ExitStack() as undo:
        undo.callback(target.close)
        writer = _start(target)
        undo.pop_all()
    return writer


def write_pieces(target: WriteTarget, pieces: Iterable[bytes]) -> None:
    """
    Write all content and commit it; the descriptors of the target are closed.

    Raises:
        OSError: The error of `start_writing`, or the disk is full.
    """
    writer = start_writing(target)
    try:
        if writer.in_place:
            # Making a piece may fail (bad base64), which must not destroy the old content.
            pieces = list(pieces)
        offset = 0
        for piece in pieces:
            writer.write(piece, offset)
            offset += len(piece)
    except BaseException:
        writer.discard()
        raise
    writer.commit()


def _start(target: WriteTarget) -> Writer:
    if target.old < 0:
        return _Replacement(target, None)
    old = os.fstat(target.old)
    if not (target.folder >= 0 and _can_be_replaced(target, old)):
        return _InPlace(target)
    # The directory may accept no new file, or copying the owner may be forbidden.
    try:
        return _Replacement(target, old)
    except OSError as error:
        if error.errno in _GIVES_UP:
            raise
        return _InPlace(target)


def _can_be_replaced(target: WriteTarget, old: os.stat_result) -> bool:
    """Return True if replacing the file would change nothing but its inode number."""
    # A rename would separate a hard link from its other names.
    if not stat.S_ISREG(old.st_mode) or old.st_nlink != 1:
        return False
    try:
        named = os.stat(target.name, dir_fd=target.folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(named, old) and not _has_attributes(target.old)


def _has_attributes(descriptor: int) -> bool:
    try:
        found = set(os.listxattr(descriptor))
    except OSError as error:
        return error.errno != errno.ENOTSUP
    # SELinux's policy gives a new file the same label.
    return bool(found - {"security.selinux"})


class _InPlace:
    """Writer that truncates the existing file and writes into it."""

    in_place = True

    def __init__(self, target: WriteTarget) -> None:
        self.descriptor = target.old
        self._target = target
        self._is_regular = stat.S_ISREG(os.fstat(target.old).st_mode)
        self._begun = False

    def begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        if self._is_regular:
            os.ftruncate(self.descriptor, 0)
        else:
            # The open succeeded, so a FIFO has a reader; writes wait for it.
            os.set_blocking(self.descriptor, True)

    def write(self, data: bytes | memoryview, offset: int) -> None:
        self.begin()
        _write_all(self.descriptor, data, offset if self._is_regular else None)

    def commit(self, mode: int | None = None) -> None:
        try:
            self.begin()
            if mode is not None and self._is_regular:
                os.fchmod(self.descriptor, mode)
        finally:
            self._target.close()

    def discard(self) -> None:
        self._target.close()


class _Replacement:
    """Writer into a new file, which is then renamed over the old one."""

    in_place = False

    def __init__(self, target: WriteTarget, old: os.stat_result | None) -> None:
        self._target = target
        # Temporary name of the new file; None while it is unnamed.
        self._named: str | None = None
        folder = target.folder
        # By `/proc`, since O_TMPFILE needs the directory itself and not an O_PATH descriptor.
        try:
            self.descriptor = os.open(
                f"/proc/self/fd/{folder}", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666
            )
        except OSError as error:
            # The file system has no O_TMPFILE, or `/proc` is not mounted.
            if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}:
                raise
            self._named = _free_name()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.descriptor = os.open(self._named, flags, 0o666, dir_fd=folder)
        if old is not None:
            try:
                self._copy_ownership(old)
            except OSError:
                self._drop()
                raise

    def _copy_ownership(self, old: os.stat_result) -> None:
        """Give the new file the owner, the group and the permission bits of the old one."""
        now = os.fstat(self.descriptor)
        if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
            os.fchown(self.descriptor, old.st_uid, old.st_gid)
        # After `fchown`, which clears the set-uid and set-gid bits.
        os.fchmod(self.descriptor, stat.S_IMODE(old.st_mode))

    def begin(self) -> None:
        """Do nothing: the new file is empty."""

    def write(self, data: bytes | memoryview, offset: int) -> None:
        _write_all(self.descriptor, data, offset)

    def commit(self, mode: int | None = None) -> None:
        try:
            if mode is not None:
                os.fchmod(self.descriptor, mode)
            self._give_final_name()
        except OSError as error:
            if self._target.old < 0 or error.errno in _GIVES_UP:
                raise
            # In a sticky directory, or for a mount point, the file may be written but not
            # replaced.
            self._copy_in_place(mode)
        finally:
            self.discard()

    def discard(self) -> None:
        self._drop()
        self._target.close()

    def _give_final_name(self) -> None:
        """Give the new file its final name."""
        folder, name = self._target.folder, self._target.name
        if self._named is None and self._target.old < 0:
            with suppress(FileExistsError):
                self._link(name)
                return
        # `link` cannot replace a file, so the new one gets a temporary name for `rename`.
        if self._named is None:
            free = _free_name()
            self._link(free)
            self._named = free
        os.rename(self._named, name, src_dir_fd=folder, dst_dir_fd=folder)
        self._named = None

    def _link(self, name: str) -> None:
        os.link(
            f"/proc/self/fd/{self.descriptor}",
            name,
            dst_dir_fd=self._target.folder,
            follow_symlinks=True,
        )

    def _copy_in_place(self, mode: int | None) -> None:
        """Copy the new content into the old file."""
        old = self._target.old
        size = os.fstat(self.descriptor).st_size
        # Opened again, since the descriptor is for writing only.
        source = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(old, 0)
            done = 0
            while done < size:
                done += os.sendfile(old, source, done, size - done)
        finally:
            os.close(source)
        if mode is not None:
            os.fchmod(old, mode)

    def _drop(self) -> None:
        if self._named is not None:
            with suppress(OSError):
                os.unlink(self._named, dir_fd=self._target.folder)
        os.close(self.descriptor)


def _free_name() -> str:
    # Random, so that it neither collides with another writer nor can be guessed.
    return f".holdfast-{os.urandom(8).hex()}.tmp"


def _write_all(descriptor: int, data: bytes | memoryview, offset: int | None) -> None:
    """Write all data; without an offset to a file that cannot seek, such as a FIFO."""
    view = memoryview(data)
    while view:
        if offset is None:
            done = os.write(descriptor, view)
        else:
            done = os.pwrite(descriptor, view, offset)
            offset += done
        view = view[done:]
