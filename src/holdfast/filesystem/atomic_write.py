"""
New content for a file that nobody ever sees half written.

The content goes to a file without a name in the same folder, or with a hidden one
where the file system cannot do that, and takes the place of the old file in one
step. A file without a name is gone with its descriptor, so even a killed server
leaves no trace. The real server truncates the file and writes into it.

Only a file that another can stand in for is replaced. One with several names,
with attributes beyond owner and mode, in a folder that takes no new file, or that
is a device or a FIFO, is written in place.
"""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import NamedTuple, Protocol

from holdfast.errors import InvalidRequest
from holdfast.filesystem.nofollow import open_parent

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
# Without the last flag, a FIFO that nobody reads would hold up its thread for ever.
OLD = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""How the file that is there is opened."""

_MAX_LINKS = 40
"""Links the kernel follows in one path."""

_GIVES_UP = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE})
"""Errors that writing in place would meet as well, after the old content is gone."""


class WriteTarget(NamedTuple):
    """Where content is to go. Its descriptors belong to whoever has it."""

    folder: int
    """Open for nothing but to name entries in it; -1 if it is of no use."""
    name: str
    old: int
    """The file that is there, open to be written; -1 if there is none."""

    def close(self) -> None:
        for descriptor in (self.folder, self.old):
            if descriptor >= 0:
                os.close(descriptor)


class Writer(Protocol):
    """Takes content. Ends with `commit` or with `discard`, whichever comes first."""

    descriptor: int
    in_place: bool
    """Whether the old content ends where the new one begins."""

    def begin(self) -> None:
        """Let go of old content that is in the way; the first `write` does so too."""

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of it there; a gap becomes zeros."""

    def commit(self, mode: int | None = None) -> None:
        """Let it be seen, with other permission bits if they are given."""

    def discard(self) -> None:
        """Forget it."""


def find_target(path: str) -> WriteTarget:
    """
    Find what a path leads to, also through a link to nowhere.

    Raises:
        OSError: It cannot be written, or its folder is not there.
    """
    try:
        old = os.open(path, OLD)
    except FileNotFoundError:
        return _missing_target(path)
    if not stat.S_ISREG(os.fstat(old).st_mode):
        return WriteTarget(-1, "", old)
    # Where it really is, links resolved, without a second look at the path.
    parent, _, name = os.readlink(f"/proc/self/fd/{old}").rpartition("/")
    try:
        return WriteTarget(os.open(parent or "/", _FOLDER), name, old)
    except OSError:
        return WriteTarget(-1, "", old)


def _missing_target(path: str) -> WriteTarget:
    """Follow links that lead nowhere to the folder in which a file would appear."""
    parent, _, name = path.rpartition("/")
    folder = os.open(parent or "/", _FOLDER)
    for _ in range(_MAX_LINKS):
        try:
            path = os.readlink(name, dir_fd=folder)
        except OSError:
            # No link. It may have appeared as something else since, which is found
            # out where the new file takes its name.
            return WriteTarget(folder, name, -1)
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
    Find a regular file, or where one would be, with no link on the way.

    Raises:
        InvalidRequest: It is not a regular file.
        OSError: `ELOOP` if it is a link, `ENOTDIR` for one on the way.
    """
    with ExitStack() as undo:
        folder, name = undo.enter_context(open_parent(path))
        try:
            old = os.open(name, OLD | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            return WriteTarget(os.dup(folder), name, -1)
        undo.callback(os.close, old)
        if not stat.S_ISREG(os.fstat(old).st_mode):
            raise InvalidRequest("path is not a regular file")
        return WriteTarget(os.dup(folder), name, os.dup(old))


def start_writing(target: WriteTarget) -> Writer:
    """
    Make ready to write. From here on the writer has the descriptors of the target.

    Raises:
        OSError: There is no room, or the folder takes no new file.
    """
    with ExitStack() as undo:
        undo.callback(target.close)
        writer = _start(target)
        undo.pop_all()
    return writer


def write_pieces(target: WriteTarget, pieces: Iterable[bytes]) -> None:
    """
    Write all content at once. The descriptors of the target are closed with it.

    Raises:
        OSError: As for `start_writing`, or there is no more room.
    """
    writer = start_writing(target)
    try:
        if writer.in_place:
            pieces = list(pieces)  # an error has to come while the old content is there
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
    try:
        return _Replacement(target, old)
    except OSError as error:
        if error.errno in _GIVES_UP:
            raise
        return _InPlace(target)


def _can_be_replaced(target: WriteTarget, old: os.stat_result) -> bool:
    """Whether another file could stand in for it, and nobody would notice."""
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
    # The label of SELinux comes from the policy, for a new file as for the old one.
    return bool(found - {"security.selinux"})


class _InPlace:
    """Writes into the file itself."""

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
            # It is open, so somebody reads; and has to be waited for.
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
    """Writes into another file, which then takes the place of the old one."""

    in_place = False

    def __init__(self, target: WriteTarget, old: os.stat_result | None) -> None:
        self._target = target
        # The name it has, if it needs one.
        self._named: str | None = None
        folder = target.folder
        # O_TMPFILE wants a folder it can write to, which O_PATH does not give.
        try:
            self.descriptor = os.open(
                f"/proc/self/fd/{folder}", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666
            )
        except OSError as error:
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
        now = os.fstat(self.descriptor)
        if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
            os.fchown(self.descriptor, old.st_uid, old.st_gid)
        os.fchmod(self.descriptor, stat.S_IMODE(old.st_mode))

    def begin(self) -> None:
        """Nothing is in the way."""

    def write(self, data: bytes | memoryview, offset: int) -> None:
        _write_all(self.descriptor, data, offset)

    def commit(self, mode: int | None = None) -> None:
        try:
            if mode is not None:
                os.fchmod(self.descriptor, mode)
            self._take_place()
        except OSError as error:
            if self._target.old < 0 or error.errno in _GIVES_UP:
                raise
            # A sticky folder, a mount point: the file may be written, not replaced.
            self._copy_in_place(mode)
        finally:
            self.discard()

    def discard(self) -> None:
        self._drop()
        self._target.close()

    def _take_place(self) -> None:
        folder, name = self._target.folder, self._target.name
        if self._named is None and self._target.old < 0:
            with suppress(FileExistsError):
                self._link(name)
                return
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
        old = self._target.old
        size = os.fstat(self.descriptor).st_size
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
    return f".holdfast-{os.urandom(8).hex()}.tmp"


def _write_all(descriptor: int, data: bytes | memoryview, offset: int | None) -> None:
    """Write until the end of the data; without an offset, to what has no positions."""
    view = memoryview(data)
    while view:
        if offset is None:
            done = os.write(descriptor, view)
        else:
            done = os.pwrite(descriptor, view, offset)
            offset += done
        view = view[done:]
