"""
What a sandbox needs on the disk: places made only to mount something over them.

A mount needs something to be mounted on, so a name that must not be created, such
as a `.git` that is not there, exists as an empty folder or file while a command
runs (sandbox spec 5.4). The server makes it before the first command that relies on
it and removes it after the last. Nothing that was there before, or that has become
anything else, is touched.

Each place has a mark, where the file system can keep one, and whoever uses it holds a
lock on it. So a place is recognised that another server uses, or that was left by one
that was killed: the last user removes it.
"""

import fcntl
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

__all__ = ["MountTargets"]

_MARK = "user.holdfast.mount-target"
"""An attribute of a file."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_TRIES = 8
"""How often a place may be removed by others while we make sure of it."""


class _Place:
    """One place, for as long as somebody here uses it."""

    __slots__ = ("_ours", "_path", "fd", "users")

    def __init__(self, path: str, kind: Literal["directory", "file"]) -> None:
        self.users = 0
        self.fd: int | None = None
        """Open, with a lock that all its users share; `None` if it cannot be had."""
        self._path = path
        self._ours = False
        for _ in range(_TRIES):
            with suppress(OSError):  # the launcher will say what is wrong with it
                self._ours |= _make(path, kind)
                self.fd = os.open(path, _OPEN)
                fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.fstat(self.fd).st_nlink:
                    break
            # Somebody removed it, or is about to.
            self._close()
        else:
            return
        with suppress(OSError):
            if self._ours:
                os.setxattr(self.fd, _MARK, b"")
            else:
                os.getxattr(self.fd, _MARK)
                self._ours = True

    def let_go(self) -> None:
        """Remove it, if a sandbox made it, nobody else uses it and it is still empty."""
        if self.fd is not None and self._ours:
            with suppress(OSError):  # in use, not empty, or gone
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(self._path, os.fstat(self.fd))
        self._close()

    def _close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class MountTargets:
    """
    The places that sandboxes of this process need.

    Between `reserve` and `release` a place is in use. A second command that is
    started meanwhile finds it, and is a user of it too: when the place goes, so
    does what is mounted there, in every sandbox.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
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
        """Make sure of the places that a sandbox needs; each is missing, or empty."""
        for path, kind in targets:
            place = self._places.get(path)
            if place is None:
                place = self._places[path] = _Place(path, kind)
            place.users += 1

    def release(self, paths: Collection[str]) -> None:
        """Remove the places that nobody relies on any more."""
        for path in paths:
            self._places[path].users -= 1
        if self._planning:
            self._unused.update(paths)
        else:
            self._forget(paths)

    def _forget(self, paths: Iterable[str]) -> None:
        for path in sorted(paths, key=len, reverse=True):  # what is inside another goes first
            place = self._places[path]
            if place.users == 0:
                del self._places[path]
                place.let_go()


def _make(path: str, kind: Literal["directory", "file"]) -> bool:
    """Make a place; `False` if it is there."""
    try:
        if kind == "directory":
            os.mkdir(path, 0o755)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return False
    return True


def _remove(path: str, known: os.stat_result) -> None:
    """Remove an empty folder or file, if it is the one that is known."""
    there = os.lstat(path)
    if (known.st_dev, known.st_ino) != (there.st_dev, there.st_ino):
        return
    if stat.S_ISDIR(there.st_mode):
        os.rmdir(path)  # which an empty one allows, and no other
    elif stat.S_ISREG(there.st_mode) and there.st_size == 0:
        os.unlink(path)
