"""
What a sandbox needs on the disk: places made only to mount something over them.

A mount needs something to be mounted on, so a name that must not be created, such
as a `.git` that is not there, exists as an empty folder or file while a command
runs [sandbox.targets]. The server makes it before the first command that relies on
it and removes it after the last. Nothing that was there before, or that has become
anything else, is touched.

Each place has a mark, where the file system can keep one, and whoever uses it holds a
lock on it. So a place is recognised that another server uses, or that was left by one
that was killed: the last user removes it.
"""

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from holdfast.linux.kernel_cache import is_on_this_machine
from holdfast.sandbox.bubblewrap.deferred_close import close_in_background

__all__ = ["MountPoints"]

_MARK = "user.holdfast.mount-target"
"""An attribute of a file."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_TRIES = 20
"""How often a place may be removed by others while we make sure of it."""

_MAX_REMOVING = 64
"""Places on mounts of others that are removed at a time, those that do not answer included."""

_PAUSE = 0.0005
"""Seconds that somebody who is about to remove a place is given to do so."""


class _MountPoint:
    """One place, for as long as somebody here uses it."""

    __slots__ = ("_folder", "_name", "_ours", "fd", "is_local", "users")

    def __init__(self, path: str, kind: Literal["directory", "file"], folder: int) -> None:
        """
        Args:
            path: Where it is.
            kind: What it is.
            folder: A descriptor of what it is in, which stays the caller's.

        Raises:
            OSError: It can neither be made nor made sure of.
        """
        self.users = 0
        self.fd: int | None = None
        """Open, with a lock that all its users share; `None` if it may not be opened."""
        self._ours = False
        self._name = os.path.basename(path)
        # Where its folder is called otherwise by now, it is removed all the same, and
        # where a link has come to be, nothing is made behind it.
        self._folder = os.dup(folder)
        self.is_local = is_on_this_machine(folder)
        """False if a server elsewhere, which may be dead, has to be asked for anything there."""
        try:
            self._make_sure(kind)
        except OSError as error:
            self._close()
            raise OSError(error.errno, error.strerror, path) from error
        self._mark()

    def _make_sure(self, kind: Literal["directory", "file"]) -> None:
        """Have it, and a lock on it."""
        for last in [False] * (_TRIES - 1) + [True]:
            self._ours |= _make(self._folder, self._name, kind)
            try:
                self.fd = os.open(self._name, _OPEN, dir_fd=self._folder)
                fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.fstat(self.fd).st_nlink:
                    return
            except PermissionError:
                if not self._ours:
                    return  # it was there, and not for us to remove
                raise
            except (FileNotFoundError, BlockingIOError):
                if last:
                    raise
                time.sleep(_PAUSE)
            # Somebody removed it, or is about to.
            if self.fd is not None:
                os.close(self.fd)
                self.fd = None
        raise FileNotFoundError(errno.ENOENT, "it is removed again and again")

    def _mark(self) -> None:
        """Leave a mark on one that is ours, or find that of another server."""
        if self.fd is not None:
            with suppress(OSError):
                if self._ours:
                    os.setxattr(self.fd, _MARK, b"")
                else:
                    os.getxattr(self.fd, _MARK)
                    self._ours = True

    def let_go(self) -> int | None:
        """
        Remove it, if a sandbox made it, nobody else uses it and it is still empty.

        Returns:
            Its descriptor if it was removed, which the caller closes.
        """
        removed = None
        if self.fd is not None and self._ours:
            with suppress(OSError):  # in use, not empty, or gone
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _remove(self._folder, self._name, os.fstat(self.fd)):
                    removed, self.fd = self.fd, None
        self._close()
        return removed

    def _close(self) -> None:
        os.close(self._folder)
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class MountPoints:
    """
    The places that sandboxes of this process need.

    Between `reserve` and `release` a place is in use. A second command that is
    started meanwhile finds it, and is a user of it too: when the place goes, so
    does what is mounted there, in every sandbox.
    """

    def __init__(self) -> None:
        self._places: dict[str, _MountPoint] = {}
        # Sandboxes that are being planned, and places nobody uses that they may have seen.
        self._planning = 0
        self._unused: set[str] = set()

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Keep all places while it is looked at what is there; `reserve` before the end."""
        self._planning += 1
        try:
            yield
        finally:
            self._planning -= 1
            if not self._planning:
                unused, self._unused = self._unused, set()
                self._forget(unused)

    def reserve(self, targets: Iterable[tuple[str, Literal["directory", "file"]]]) -> None:
        """
        Make sure of the places that a sandbox needs; each is missing, or empty.

        Raises:
            OSError: One cannot be had, and none of them is in use now.
        """
        had: list[str] = []
        # Most are in the same folder, which takes several calls to open.
        folders: dict[str, int] = {}
        try:
            for path, kind in targets:
                place = self._places.get(path)
                if place is None:
                    name = os.path.dirname(path)
                    if name not in folders:
                        folders[name] = _open_folder(name)
                    place = self._places[path] = _MountPoint(path, kind, folders[name])
                place.users += 1
                had.append(path)
        except BaseException:
            self.release(had)
            raise
        finally:
            for fd in folders.values():
                os.close(fd)

    def release(self, paths: Collection[str]) -> None:
        """Remove the places that nobody relies on any more."""
        for path in paths:
            self._places[path].users -= 1
        if self._planning:
            self._unused.update(paths)
        else:
            self._forget(paths)

    def _forget(self, paths: Iterable[str]) -> None:
        removed: list[int] = []
        for path in sorted(paths, key=len, reverse=True):  # what is inside another goes first
            place = self._places[path]
            if place.users == 0:
                del self._places[path]
                if not place.is_local:
                    _let_go_elsewhere(place)
                    continue
                fd = place.let_go()
                if fd is not None:
                    removed.append(fd)
        if removed:
            close_in_background(removed)


_removing: set[_MountPoint] = set()


def _let_go_elsewhere(place: _MountPoint) -> None:
    """Remove a place where nobody has to wait for it; if too many wait already, leave it there."""
    if len(_removing) >= _MAX_REMOVING:
        return  # it is marked: the next server that uses it removes it

    def remove() -> None:
        try:
            fd = place.let_go()
            if fd is not None:
                os.close(fd)
        finally:
            _removing.discard(place)

    _removing.add(place)
    threading.Thread(target=remove, name="holdfast-mount-point", daemon=True).start()


def _open_folder(path: str) -> int:
    """A descriptor of a folder; a link on the way is not followed, but an error."""
    fd = os.open("/", _PASS)
    for part in path.split("/"):
        if part:
            try:
                below = os.open(part, _PASS, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
    return fd


def _make(folder: int, name: str, kind: Literal["directory", "file"]) -> bool:
    """Make a place; `False` if it is there."""

    def make() -> None:
        if kind == "directory":
            os.mkdir(name, 0o755, dir_fd=folder)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o644, dir_fd=folder))

    try:
        _as_owner(folder, make)
    except FileExistsError:
        return False
    return True


def _remove(folder: int, name: str, known: os.stat_result) -> bool:
    """Remove an empty folder or file, if it is the one that is known."""
    there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if (known.st_dev, known.st_ino) != (there.st_dev, there.st_ino):
        return False
    if stat.S_ISDIR(there.st_mode):
        # Which an empty one allows, and no other.
        _as_owner(folder, lambda: os.rmdir(name, dir_fd=folder))
    elif stat.S_ISREG(there.st_mode) and there.st_size == 0:
        _as_owner(folder, lambda: os.unlink(name, dir_fd=folder))
    else:
        return False
    return True


def _as_owner(folder: int, change: Callable[[], None]) -> None:
    """
    Change something in a folder, even in one that its owner has closed to himself.

    A command could open it again and make what must not be made.
    """
    try:
        change()
    except PermissionError:
        status = os.fstat(folder)
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid() or mode & stat.S_IRWXU == stat.S_IRWXU:
            raise
        path = f"/proc/self/fd/{folder}"
        os.chmod(path, mode | stat.S_IRWXU)
        try:
            change()
        finally:
            os.chmod(path, mode)
