"""Queries of the file system that a policy is built from, and the resolution of links."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, cast

from holdfast.engine.linux.openat2 import are_directories
from holdfast.engine.sandbox.policy.exhausted import raise_exhausted

__all__ = [
    "HOST",
    "Disk",
    "HostDisk",
    "PathFingerprint",
    "RememberedDisk",
    "Seen",
    "Traced",
    "trace",
]

T = TypeVar("T")

Seen = Literal["directory", "file", "link", "other"]

# The kernel's own limit (MAXSYMLINKS) for one path.
_MAX_LINKS = 40


class Disk(Protocol):
    """Queries of a file system. A path that may not be accessed counts as missing."""

    def kind(self, path: str) -> Seen | None:
        """Return the kind of file at a path without following a link, or None."""

    def target(self, path: str) -> str:
        """Return the target of a symbolic link, or an empty string."""

    def entries(self, path: str) -> Sequence[tuple[str, Seen]]:
        """Return the names and kinds in a directory; none if it cannot be read."""

    def leads_to_file(self, path: str) -> bool:
        """Return True if a link leads to something that exists and is not a directory."""

    def is_empty(self, path: str) -> bool:
        """Return True for an empty directory or an empty file with a single name."""

    def can_create(self, folder: str) -> bool:
        """Return True if this user can create a file in a directory, if need be after chmod."""

    def sets_group(self, folder: str) -> bool:
        """Return True if new files in a directory get its group, by its set-group-ID bit."""

    def text(self, path: str) -> str:
        """Return the first 4 KiB of a file; an empty string if it cannot be read."""


class HostDisk:
    """The disk of this machine."""

    __slots__ = ()

    def kind(self, path: str) -> Seen | None:
        try:
            mode = os.lstat(path).st_mode
        # ValueError: the path contains a NUL, so no file can have it.
        except (OSError, ValueError):
            return None
        return _KINDS.get(mode & _KIND, "other")

    def target(self, path: str) -> str:
        try:
            return os.readlink(path)
        except OSError:
            # It was removed meanwhile. `trace` treats an empty target as missing.
            return ""

    def entries(self, path: str) -> Sequence[tuple[str, Seen]]:
        try:
            with os.scandir(path) as found:
                return [(entry.name, _seen_entry(entry)) for entry in found]
        except OSError as error:
            raise_exhausted(error)
            return ()

    def leads_to_file(self, path: str) -> bool:
        try:
            return not stat.S_ISDIR(os.stat(path).st_mode)
        except OSError:
            return False

    def is_empty(self, path: str) -> bool:
        try:
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode):
                # A file with a second name is not a mount point that a server made.
                return found.st_size == 0 and found.st_nlink == 1
            # One entry is enough; the directory may have millions.
            with os.scandir(path) as entries:
                return next(entries, None) is None
        except OSError as error:
            raise_exhausted(error)
            return False

    def can_create(self, folder: str) -> bool:
        try:
            # Asks the kernel, which also knows about ACLs and read-only mounts.
            if os.access(folder, os.W_OK | os.X_OK):
                return True
            found = os.stat(folder)
            # Its owner can chmod it, which only helps if it is the mode that forbids writing.
            closed = found.st_mode & _OWNER_MAKES != _OWNER_MAKES
            read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            return found.st_uid == os.getuid() and closed and not read_only
        except OSError:
            return False

    def sets_group(self, folder: str) -> bool:
        try:
            return bool(os.stat(folder).st_mode & stat.S_ISGID)
        except OSError:
            return False

    def text(self, path: str) -> str:
        try:
            with open(path, "rb") as file:
                return os.fsdecode(file.read(4096))
        except OSError as error:
            raise_exhausted(error)
            return ""


HOST = HostDisk()


class RememberedDisk:
    """
    Disk that queries another one only once for each answer and keeps the answers.

    The paths of a profile share most of their components. A policy that was built from the
    answers is valid as long as they are `still_true`.
    """

    __slots__ = ("_again", "_disk", "_kinds", "_others")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._kinds: dict[str, Seen | None] = {}
        # Answers to all other questions, by the method of the disk and the path.
        self._others: dict[tuple[Callable[[str], object], str], object] = {}
        # Made at the first check and dropped with each new answer.
        self._again: PathFingerprint | None = None

    def still_true(self) -> bool:
        """Ask all questions again; return True if every answer is the same."""
        kind = self._disk.kind
        kinds: Mapping[str, str | None] = self._kinds
        # The fingerprint makes system calls, so it works for the host's disk only.
        if isinstance(self._disk, HostDisk):
            if self._again is None:
                target = self._disk.target
                links = {path: said for (ask, path), said in self._others.items() if ask == target}
                self._again = PathFingerprint(kinds, links)
            # False may only mean that the kernel lacks `openat2`, so the paths are then
            # compared one by one.
            if self._again.still_true():
                kinds = self._again.rest
        for path, seen in kinds.items():
            if kind(path) != seen:
                return False
        return all(ask(path) == answer for (ask, path), answer in self._others.items())

    def kind(self, path: str) -> Seen | None:
        # None is an answer, too, so `get` would not work.
        try:
            return self._kinds[path]
        except KeyError:
            found = self._kinds[path] = self._disk.kind(path)
            self._again = None
            return found

    def target(self, path: str) -> str:
        return self._keep(self._disk.target, path)

    def entries(self, path: str) -> Sequence[tuple[str, Seen]]:
        return self._keep(self._disk.entries, path)

    def leads_to_file(self, path: str) -> bool:
        return self._keep(self._disk.leads_to_file, path)

    def is_empty(self, path: str) -> bool:
        return self._keep(self._disk.is_empty, path)

    def can_create(self, folder: str) -> bool:
        return self._keep(self._disk.can_create, folder)

    def sets_group(self, folder: str) -> bool:
        return self._keep(self._disk.sets_group, folder)

    def text(self, path: str) -> str:
        return self._keep(self._disk.text, path)

    def forget_missing(self, path: str) -> None:
        """Forget that a path or a directory above it was missing: it has been created."""
        for known in [known for known, seen in self._kinds.items() if seen is None]:
            if f"{path}/".startswith(f"{known}/"):
                del self._kinds[known]
        self._again = None

    def forget_search(self) -> None:
        """Forget what was found in directories: it may be large, and is not needed again."""
        searched = (self._disk.entries, self._disk.leads_to_file)
        self._others = {key: said for key, said in self._others.items() if key[0] not in searched}
        self._again = None

    def _keep(self, ask: Callable[[str], T], path: str) -> T:
        key = (ask, path)
        if key not in self._others:
            self._others[key] = ask(path)
            self._again = None
        return cast("T", self._others[key])


# S_IFMT: the bits of a mode with the type of the file.
_KIND: Final = 0o170000

# Mode bits that an owner needs to create a file in a directory.
_OWNER_MAKES: Final = stat.S_IWUSR | stat.S_IXUSR

_KINDS: Final[dict[int, Seen]] = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
}


def _seen_entry(entry: os.DirEntry[str]) -> Seen:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


class Traced(NamedTuple):
    """Result of resolving a path, component by component."""

    path: str
    """Real path of the part that exists, followed by the missing part as it was given."""
    kind: Literal["directory", "file", "other"] | None
    """Kind of file at the end; `None` if there is none."""
    missing: str | None
    """Path up to the first missing component, or None."""
    links: tuple[tuple[str, str], ...]
    """Links on the way: the path of each, and its target."""
    itself: str | None = None
    """Target of the path itself, if it is a link."""


def trace(path: str, disk: Disk) -> Traced:
    """Resolve an absolute path component by component, as the kernel would."""
    links: list[tuple[str, str]] = []
    # Components that are left, the next one last; the target of a link is put on top.
    rest = [part for part in path.split("/") if part][::-1]
    here = ""
    itself: str | None = None
    kind: Seen | None = "directory"
    while rest:
        part = rest.pop()
        # Only now, with all links before it resolved, `..` means the parent directory.
        if part == ".." and kind == "directory":
            here = here[: here.rfind("/")] if here else ""
            continue
        if part == "." and kind == "directory":
            continue
        at = f"{here}/{part}"
        kind = disk.kind(at) if kind == "directory" else None
        if kind is None:
            # A missing path has no links, so the rest can be normalised as a string.
            whole = "/".join([at, *rest[::-1]])
            return Traced(os.path.normpath(whole), None, at, tuple(links), itself)
        if kind == "link":
            said = disk.target(at)
            links.append((at, said))
            if not rest and itself is None:
                itself = said
            if len(links) > _MAX_LINKS or not said:
                return Traced(at, None, at, tuple(links), itself)
            if said.startswith("/"):
                here = ""
            rest.extend(part for part in said.split("/")[::-1] if part)
            # Resolution continues in the directory of the link.
            kind = "directory"
            continue
        here = at
    # The loop has followed every link.
    assert kind != "link"
    return Traced(here or "/", kind, None, tuple(links), itself)


# Return True if a path exists; a link at its end is not followed.
_exists = partial(os.access, mode=os.F_OK, effective_ids=True, follow_symlinks=False)


class PathFingerprint:
    """
    Earlier answers about paths, arranged so that they can be checked with few system calls.

    A policy is built from dozens of answers of the disk, and is reused only if all of them still
    hold. Asking one by one costs more than most file operations. One `openat2` without links proves
    that all components of a path are directories. `access` tells that a path is still missing
    without the cost of an exception.
    """

    __slots__ = ("_directories", "_missing", "rest")

    def __init__(self, kinds: Mapping[str, str | None], links: Mapping[str, object]) -> None:
        """
        Args:
            kinds: Answers of `Disk.kind` by path.
            links: Answers of `Disk.target` by path.
        """
        # Only the innermost directories: opening one proves all directories above it.
        directories = {path for path, kind in kinds.items() if kind == "directory"}
        inner = {path[: path.rindex("/")] or "/" for path in directories}
        self._directories = [os.fsencode(path) for path in directories - inner]
        # A path that no file can have stays missing, and needs no check.
        missing = [_encoded(path) for path, kind in kinds.items() if kind is None]
        self._missing = [path for path in missing if path is not None]
        # The target of a link is compared elsewhere, which also proves that it is a link.
        self.rest: Mapping[str, str] = {
            path: kind
            for path, kind in kinds.items()
            if kind is not None and kind != "directory" and not links.get(path)
        }
        """Answers that `still_true` does not check: files that are not directories."""

    def still_true(self) -> bool:
        """
        Return True if all directories still exist as such, and all missing paths are missing.

        False may also mean that the kernel or a container refuses `openat2`.
        """
        return are_directories(self._directories) and not any(map(_exists, self._missing))


def _encoded(path: str) -> bytes | None:
    """Return a path as bytes for system calls; None if no file can have this path."""
    try:
        encoded = os.fsencode(path)
    except ValueError:
        return None
    return None if b"\0" in encoded else encoded
