"""What has to be asked of the disk before rules can be made, and how links are followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, cast

from holdfast.sandbox.policy.exhausted import raise_exhausted
from holdfast.sandbox.policy.path_fingerprint import Recheck

__all__ = ["HOST", "Disk", "HostDisk", "Remembering", "Seen", "Traced", "trace"]

T = TypeVar("T")

Seen = Literal["directory", "file", "link", "other"]

_MAX_LINKS = 40
"""As many as the kernel follows in one path."""


class Disk(Protocol):
    """The questions. A path that may not be looked at counts as missing."""

    def kind(self, path: str) -> Seen | None:
        """What is at a path; a link is not followed."""

    def target(self, path: str) -> str:
        """The text of a link."""

    def entries(self, path: str) -> Sequence[tuple[str, Seen]]:
        """What is in a directory; nothing if it cannot be read."""

    def leads_to_file(self, path: str) -> bool:
        """Whether a link leads to something that is there and is no directory."""

    def is_blank(self, path: str) -> bool:
        """Whether a directory or file is empty."""

    def can_create(self, folder: str) -> bool:
        """Whether this user can make something in a directory, or may allow it to itself."""

    def text(self, path: str) -> str:
        """The beginning of a file, up to 4 KiB; empty if it cannot be read."""


class HostDisk:
    """The disk of this machine."""

    __slots__ = ()

    def kind(self, path: str) -> Seen | None:
        try:
            mode = os.lstat(path).st_mode
        except (OSError, ValueError):
            return None
        return _KINDS.get(mode & _KIND, "other")

    def target(self, path: str) -> str:
        try:
            return os.readlink(path)
        except OSError:
            return ""  # gone since; an empty text leads nowhere

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

    def is_blank(self, path: str) -> bool:
        try:
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode):
                return found.st_size == 0 and found.st_nlink == 1
            with os.scandir(path) as entries:
                return next(entries, None) is None
        except OSError as error:
            raise_exhausted(error)
            return False

    def can_create(self, folder: str) -> bool:
        try:
            if os.access(folder, os.W_OK | os.X_OK):
                return True
            found = os.stat(folder)
            # Its owner can open it up, unless it is not the mode that is in the way.
            closed = found.st_mode & _OWNER_MAKES != _OWNER_MAKES
            read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            return found.st_uid == os.getuid() and closed and not read_only
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


class Remembering:
    """
    A disk that keeps its answers.

    It is asked once what is at a path, since entries share most of their components. And
    whatever was made from its answers is still right as long as they `hold`.
    """

    __slots__ = ("_again", "_disk", "_kinds", "_others")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._kinds: dict[str, Seen | None] = {}
        self._others: dict[tuple[Callable[[str], object], str], object] = {}
        self._again: Recheck | None = None

    def hold(self) -> bool:
        """Whether the disk would give the same answers now."""
        kind = self._disk.kind
        kinds: Mapping[str, str | None] = self._kinds
        if isinstance(self._disk, HostDisk):
            if self._again is None:
                self._again = Recheck(kinds, self._links())
            if self._again.holds():
                kinds = self._again.rest
        for path, seen in kinds.items():
            if kind(path) != seen:
                return False
        return all(ask(path) == answer for (ask, path), answer in self._others.items())

    def _links(self) -> dict[str, str]:
        target = self._disk.target
        return {path: str(said) for (ask, path), said in self._others.items() if ask == target}

    def kind(self, path: str) -> Seen | None:
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

    def is_blank(self, path: str) -> bool:
        return self._keep(self._disk.is_blank, path)

    def can_create(self, folder: str) -> bool:
        return self._keep(self._disk.can_create, folder)

    def text(self, path: str) -> str:
        return self._keep(self._disk.text, path)

    def _keep(self, ask: Callable[[str], T], path: str) -> T:
        key = (ask, path)
        if key not in self._others:
            self._others[key] = ask(path)
            self._again = None
        return cast("T", self._others[key])


_KIND: Final = 0o170000
"""The bits of a mode that say what it belongs to."""

_OWNER_MAKES: Final = stat.S_IWUSR | stat.S_IXUSR
"""What an owner needs to make something in a directory."""

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
    """Where a path leads."""

    path: str
    """Without links, as far as there is something; what is missing follows as it was given."""
    kind: Literal["directory", "file", "other"] | None
    """What is there; `None` if nothing is."""
    missing: str | None
    """The first part that is not there."""
    links: tuple[tuple[str, str], ...]
    """The links on the way: where each is, and what it says."""
    itself: str | None = None
    """What the path itself says, if it is a link."""


def trace(path: str, disk: Disk) -> Traced:
    """Follow an absolute path, one component at a time."""
    links: list[tuple[str, str]] = []
    rest = [part for part in path.split("/") if part][::-1]
    here = ""
    itself: str | None = None
    kind: Seen | None = "directory"
    while rest:
        part = rest.pop()
        if part == ".." and kind == "directory":
            here = here[: here.rfind("/")] if here else ""
            continue
        if part == "." and kind == "directory":
            continue
        at = f"{here}/{part}"
        kind = disk.kind(at) if kind == "directory" else None
        if kind is None:
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
            kind = "directory"  # where the link is
            continue
        here = at
    assert kind != "link"  # the loop follows each
    return Traced(here or "/", kind, None, tuple(links), itself)
