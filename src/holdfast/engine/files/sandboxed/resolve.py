"""
Resolves paths as a sandbox shows them, safe against races.

A path that is checked first and used later can change in between: a process with write access to
one of its directories can insert a link. So no file is used by its path. In the usual case the
kernel resolves the path without links (`RESOLVE_NO_SYMLINKS`), and the checked path is the one that
was opened. Otherwise each component is opened relative to its parent, links are read and followed
here, and each step is checked. The result is open, and is used by its descriptors.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from holdfast.base.errors import OperationFailed
from holdfast.base.system_text import system_text
from holdfast.engine.files.sandboxed.visibility import Sight, View
from holdfast.engine.linux.openat2 import RESOLVE_NO_SYMLINKS, OpenHow, openat2
from holdfast.engine.linux.shared_directories import follows

__all__ = ["KeptMissing", "ResolvedPath", "Resolver", "failure", "reopen"]

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_READABLE = frozenset({Sight.READ, Sight.WRITE})
# The kernel's own limit (MAXSYMLINKS) for one path.
_MAX_LINKS = 40


@lru_cache(maxsize=8)
def _without_links(flags: int) -> OpenHow:
    return OpenHow(flags, RESOLVE_NO_SYMLINKS)


class KeptMissing(FileNotFoundError):
    """
    A directory of the path is missing, and a rule keeps it missing.

    In a sandbox it exists as an empty read-only mount: reading in it fails with ENOENT, writing
    with EROFS.
    """


def failure(number: int) -> OSError:
    """Return the error that the kernel would raise in the sandbox."""
    return OSError(number, os.strerror(number))


def reopen(descriptor: int, flags: int) -> int:
    """Open the file of an O_PATH descriptor, whatever its path is now."""
    return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """
    Result of resolving a path. Its descriptors are closed at the end of the `find` block.

    Both are O_PATH descriptors; `reopen` returns one for reading or writing.
    """

    path: str
    """Real path."""
    sight: Sight
    """Visibility of the file in the sandbox."""
    folder: int
    """Descriptor of its directory; that of `/` for `/`."""
    name: str
    """Name in the directory; empty for `/`."""
    descriptor: int
    """Descriptor of the file; -1 if it is missing."""
    mode: int
    """`st_mode` of the file; 0 if it is missing."""
    is_link: bool
    """True if the requested path is a link."""
    folder_sight: Sight
    """Visibility of the directory in the sandbox."""

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
        Return the object itself, if the file exists.

        Raises:
            OSError: `ENOENT` if it does not.
        """
        if not self.exists:
            raise failure(errno.ENOENT)
        return self


def _open_without_links(view: View, path: str, flags: int) -> int:
    # Only paths that the sandbox shows unchanged; all others need the walk.
    if view.sight(path, patterns=not flags & os.O_DIRECTORY) not in _READABLE:
        return -1
    # Also fails where the kernel or a container lacks the call; the walk is the fallback.
    return openat2(os.fsencode(path), _without_links(flags))


class Resolver:
    """Resolver of paths in the tree that a view shows."""

    def __init__(self, view: View) -> None:
        self.view = view

    def open_at_once(self, path: str, flags: int) -> int:
        """
        Open a readable path without links by one system call; return -1 otherwise.

        On -1 the caller uses `find`, which raises the right error.
        """
        return _open_without_links(self.view, path, flags)

    @contextmanager
    def find(
        self, path: str, *, follow: bool = True, links_on_the_way: bool = True
    ) -> Iterator[ResolvedPath]:
        """
        Resolve a path; its last component may be missing.

        Args:
            path: Absolute path without dots and surplus slashes.
            follow: Follow a link at the end.
            links_on_the_way: Follow links before the last component; otherwise ENOTDIR.

        Raises:
            OSError: The error of the kernel in the sandbox.
            OperationFailed: A change in the block failed with EROFS because the path belongs to
                Holdfast itself; the text has the reason.
        """
        search = _Search(self.view, follow, links_on_the_way)
        at = path
        try:
            resolved = search.run(path)
            at = resolved.path
            yield resolved
        except OSError as error:
            raise self.with_reason(error, at) from error.__cause__
        finally:
            search.close()

    def with_reason(self, error: OSError, path: str) -> OSError | OperationFailed:
        """Return the error, with the reason if a path of Holdfast itself is read-only."""
        reason = self.view.own_reason(path) if error.errno == errno.EROFS else None
        if reason is None:
            return error
        return OperationFailed(f"{system_text(errno.EROFS)}: {reason}", errno=errno.EROFS)


class _LinkAhead(Exception):
    """The path has a link at its end, so it has to be walked from `/`."""


class _Search:
    """
    Resolution of one path.

    Keeps the directories of the path open, so that `..` leads back to a checked directory.
    """

    def __init__(self, view: View, follow: bool, links_on_the_way: bool) -> None:
        self._view = view
        self._follow = follow
        self._links_on_the_way = links_on_the_way
        self._folders: list[tuple[int, str, Sight]] = []
        self._found = -1
        self._links = 0
        self._is_link = False
        # The rest of the path comes from a link that a pattern matches.
        self._by_match = False
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
            resolved = self._step(name, [])
        except _LinkAhead:
            # The link may lead upwards; that needs the directories above.
            self.close()
            return self._walk(path)
        return resolved or self._innermost()

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
            # After `a/`, an empty name is left: `a` has to be a directory, and links are
            # followed.
            resolved = self._step(name, pending)
            if resolved is not None:
                return resolved
        return self._innermost()

    def _enter(self, folder: int, path: str) -> None:
        self._folders.append((folder, path, self._view.sight(path, patterns=False)))

    def _leave(self) -> None:
        if self._folders[-1][2] is Sight.DENIED:
            raise failure(errno.EACCES)
        if len(self._folders) > 1:
            os.close(self._folders.pop()[0])

    def _innermost(self) -> ResolvedPath:
        """Return the last directory that was entered as the result."""
        descriptor, here, sight = self._folders[-1]
        outer, _, outer_sight = self._folders[-2 if len(self._folders) > 1 else -1]
        self._found = os.dup(descriptor)
        mode = os.fstat(self._found).st_mode
        name = here.rpartition("/")[2]
        return ResolvedPath(here, sight, outer, name, self._found, mode, self._is_link, outer_sight)

    def _step(self, name: str, pending: list[str]) -> ResolvedPath | None:
        """Resolve one component; return the result at the end of the path, or else None."""
        folder, above, around = self._folders[-1]
        path = f"{above.rstrip('/')}/{name}"
        sight = self._view.sight(path, patterns=False)
        last = not pending
        # A denied directory can be seen, but nothing in it.
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
        # `close` closes it if a step below fails.
        self._found = descriptor
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            self._found = -1
            self._folders.append((descriptor, path, sight))
            return None
        # Patterns deny what a link leads to; the link itself can be read and removed.
        if stat.S_ISLNK(mode):
            if last and not self._follow:
                return ResolvedPath(path, sight, folder, name, descriptor, mode, True, around)
            self._enter_link(path, sight, pending)
            return None
        if not last:
            raise failure(errno.ENOTDIR)
        # Again, now that it is known to be a file: patterns deny files only.
        sight = self._view.sight_by_match(path) if self._by_match else self._view.sight(path)
        return ResolvedPath(path, sight, folder, name, descriptor, mode, self._is_link, around)

    def _enter_link(self, path: str, sight: Sight, pending: list[str]) -> None:
        if not self._from_root:
            raise _LinkAhead
        if not self._links_on_the_way:
            raise failure(errno.ENOTDIR)
        if sight is Sight.DENIED:
            raise failure(errno.EACCES)
        self._links += 1
        if self._links > _MAX_LINKS:
            raise failure(errno.ELOOP)
        if not follows(os.fstat(self._found), os.fstat(self._folders[-1][0])):
            raise failure(errno.EACCES)
        # By descriptor, since its name may stand for another file now.
        target = os.readlink("", dir_fd=self._found)
        os.close(self._found)
        self._found = -1
        if not pending:
            self._is_link = True
            self._by_match = self._by_match or self._view.matches(path)
        # An absolute target starts again from `/`, whose descriptor stays open.
        if target.startswith("/"):
            for descriptor, _, _ in self._folders[1:]:
                os.close(descriptor)
            del self._folders[1:]
        pending.extend(target.split("/")[::-1])
