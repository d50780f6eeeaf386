"""
Finds what a path leads to inside of a sandbox, in a way that no race can bend.

A path that is checked first and used later can change in between: whoever may write
in one of its folders puts a link there. So nothing is ever used by its path. Either
the kernel looks a path up without following any link (`RESOLVE_NO_SYMLINKS`), and
then the path that was checked is the place that was opened; or each name is looked
up in the open folder before it, links are read and followed here, and each step is
checked. What is found is held open, and worked on through its descriptors.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from holdfast.filesystem.sandboxed.visibility import Sight, View
from holdfast.linux.openat2 import RESOLVE_NO_SYMLINKS, OpenHow, openat2

__all__ = ["KeptMissing", "ResolvedPath", "Resolver", "failure", "reopen"]

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_READABLE = frozenset({Sight.READ, Sight.WRITE})
_MAX_LINKS = 40
"""Links the kernel follows in one path."""


@lru_cache(maxsize=8)
def _without_links(flags: int) -> OpenHow:
    return OpenHow(flags, RESOLVE_NO_SYMLINKS)


class KeptMissing(FileNotFoundError):
    """
    A folder on the way is missing, and a rule keeps it so.

    In a sandbox it is there, empty and read-only: whoever reads in it finds nothing, and
    whoever writes is told that it is read-only.
    """


def failure(number: int) -> OSError:
    """The error that the kernel would raise in the sandbox."""
    return OSError(number, os.strerror(number))


def reopen(descriptor: int, flags: int) -> int:
    """Open what a descriptor only looks at, whatever its path is by now."""
    return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """
    What a path leads to. Its descriptors are closed at the end of the block that found it.

    Both are good for nothing but to name things; `reopen` gives one that can be read.
    """

    path: str
    """Where it really is."""
    sight: Sight
    folder: int
    """The folder it is in, open; of the root, the root itself."""
    name: str
    """What it is called there; empty for the root."""
    descriptor: int
    """The thing itself, open; -1 if there is none."""
    mode: int
    """Its kind, 0 if there is none."""
    is_link: bool
    """Whether the path that was asked for is a link."""
    folder_sight: Sight

    @property
    def exists(self) -> bool:
        return self.descriptor >= 0

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    def present(self) -> "ResolvedPath":
        """
        The same, if it is there.

        Raises:
            OSError: It is not.
        """
        if not self.exists:
            raise failure(errno.ENOENT)
        return self


def _open_without_links(view: View, path: str, flags: int) -> int:
    if view.sight(path, folder=bool(flags & os.O_DIRECTORY)) not in _READABLE:
        return -1
    # Fails as well where the kernel or a container lacks the call; the walk then does the work.
    return openat2(os.fsencode(path), _without_links(flags))


class Resolver:
    """Looks paths up in the tree that a view shows."""

    def __init__(self, view: View) -> None:
        self.view = view

    def open_at_once(self, path: str, flags: int) -> int:
        """
        Open a path that has no link in it and may be read; -1 if that is not so.

        The one call for the usual case. Whatever stands in its way is found out by `find`.
        """
        return _open_without_links(self.view, path, flags)

    @contextmanager
    def find(
        self, path: str, *, follow: bool = True, links_on_the_way: bool = True
    ) -> Iterator[ResolvedPath]:
        """
        Look a path up. Its last name need not be there.

        Args:
            path: Absolute, without dots and surplus slashes.
            follow: Follow a link at the end.
            links_on_the_way: Follow links before the end; otherwise they are no folders.

        Raises:
            OSError: As the kernel would say inside of the sandbox.
        """
        search = _Search(self.view, follow, links_on_the_way)
        try:
            yield search.run(path)
        finally:
            search.close()


class _LinkAhead(Exception):
    """The short way ends at a link."""


class _Search:
    """One look-up. Holds the folders on the way, so that `..` leads back to what was checked."""

    def __init__(self, view: View, follow: bool, links_on_the_way: bool) -> None:
        self._view = view
        self._follow = follow
        self._links_on_the_way = links_on_the_way
        self._folders: list[tuple[int, str, Sight]] = []
        self._found = -1
        self._links = 0
        self._is_link = False
        self._from_root = False

    def close(self) -> None:
        if self._found >= 0:
            os.close(self._found)
            self._found = -1
        for descriptor, _, _ in self._folders:
            os.close(descriptor)
        self._folders.clear()

    def run(self, path: str) -> ResolvedPath:
        parent, _, name = path.rpartition("/")
        folder = _open_without_links(self._view, parent or "/", _FOLDER) if name else -1
        if folder < 0:
            return self._walk(path)
        self._enter(folder, parent or "/")
        try:
            place = self._step(name, [])
        except _LinkAhead:
            # The folders above are needed now, in case it leads back up.
            self.close()
            return self._walk(path)
        return place or self._innermost()

    def _walk(self, path: str) -> ResolvedPath:
        root = os.open("/", _LOOK | os.O_DIRECTORY)
        self._enter(root, "/")
        self._from_root = True
        pending = path.split("/")[::-1]
        while pending:
            name = pending.pop()
            if name in {"", "."}:
                continue
            if name == "..":
                self._leave()
                continue
            # What is left of `a/` is an empty name: it has to be a folder, and links lead on.
            place = self._step(name, pending)
            if place is not None:
                return place
        return self._innermost()

    def _enter(self, folder: int, path: str) -> None:
        self._folders.append((folder, path, self._view.sight(path, folder=True)))

    def _leave(self) -> None:
        if self._folders[-1][2] is Sight.DENIED:
            raise failure(errno.EACCES)
        if len(self._folders) > 1:
            os.close(self._folders.pop()[0])

    def _innermost(self) -> ResolvedPath:
        """The folder in which the way ended."""
        descriptor, here, sight = self._folders[-1]
        outer, _, outer_sight = self._folders[-2 if len(self._folders) > 1 else -1]
        self._found = os.dup(descriptor)
        mode = os.fstat(self._found).st_mode
        name = here.rpartition("/")[2]
        return ResolvedPath(here, sight, outer, name, self._found, mode, self._is_link, outer_sight)

    def _step(self, name: str, pending: list[str]) -> ResolvedPath | None:
        """Go on by one name; a place is the end of the way."""
        folder, above, around = self._folders[-1]
        path = f"{above.rstrip('/')}/{name}"
        sight = self._view.sight(path, folder=True)
        last = not pending
        if sight is Sight.DENIED and around is Sight.DENIED:
            raise failure(errno.EACCES)
        if sight is Sight.HIDDEN:
            if not last:
                raise failure(errno.ENOENT)
            return ResolvedPath(path, sight, folder, name, -1, 0, self._is_link, around)
        try:
            descriptor = os.open(name, _LOOK, dir_fd=folder)
        except FileNotFoundError as error:
            if not last and sight is Sight.READ and around is Sight.WRITE:
                raise KeptMissing(error.errno, error.strerror) from None
            if not last:
                raise
            return ResolvedPath(path, sight, folder, name, -1, 0, self._is_link, around)
        self._found = descriptor  # closed with the rest, should anything fail
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            self._found = -1
            self._folders.append((descriptor, path, sight))
            return None
        sight = self._view.sight(path)
        if stat.S_ISLNK(mode):
            if last and not self._follow:
                return ResolvedPath(path, sight, folder, name, descriptor, mode, True, around)
            self._enter_link(sight, pending)
            return None
        if not last:
            raise failure(errno.ENOTDIR)
        return ResolvedPath(path, sight, folder, name, descriptor, mode, self._is_link, around)

    def _enter_link(self, sight: Sight, pending: list[str]) -> None:
        if not self._from_root:
            raise _LinkAhead
        if not self._links_on_the_way:
            raise failure(errno.ENOTDIR)
        if sight is Sight.DENIED:
            raise failure(errno.EACCES)
        self._links += 1
        if self._links > _MAX_LINKS:
            raise failure(errno.ELOOP)
        # The link itself, not whatever has its name by now.
        target = os.readlink("", dir_fd=self._found)
        os.close(self._found)
        self._found = -1
        self._is_link = self._is_link or not pending
        if target.startswith("/"):
            for descriptor, _, _ in self._folders[1:]:
                os.close(descriptor)
            del self._folders[1:]
        pending.extend(target.split("/")[::-1])
