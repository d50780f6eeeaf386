"""
Mounts of this process, and the paths at which they show the same files.

A directory can be mounted at several paths: by a bind mount, as a subvolume of btrfs, as a layer of
an overlay. `/proc/self/mountinfo` says for each mount which directory of which file system it
shows. File systems that show files of another one in their own way, such as FUSE, are not seen
through.

Reading it costs about a microsecond per mount, and there may be thousands. The kernel signals
POLLPRI on an open mountinfo after each mount and unmount, so it is read again only after that.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from holdfast.engine.linux.kernel_cache import LOCAL_KINDS, mount_changes

__all__ = [
    "NO_MOUNTS",
    "Aliases",
    "Mount",
    "MountTable",
    "Place",
    "mount_table",
    "parse_mounts",
]

_MOUNTINFO: Final = "/proc/self/mountinfo"

# Spaces, tabs, line feeds and backslashes are written in octal; in options, commas as well.
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")

# Directories that each sandbox has itself, and one in them that is the machine's.
_PRIVATE: Final = ("/dev", "/proc", "/sys")
_SHARED: Final = "/dev/shm"  # noqa: S108 - a name to compare with

_point = attrgetter("point")


class Place(NamedTuple):
    """Directory or file of a file system, wherever that is mounted."""

    device: str
    path: str
    """Path in the file system."""


class Mount(NamedTuple):
    """Line of mountinfo."""

    ident: int
    parent: int
    device: str
    root: str
    """Directory or file of the file system that is mounted."""
    point: str
    writable: bool
    kind: str
    """Kind of file system, such as `ext4`."""
    layers: tuple[str, ...] = ()
    """Paths that an overlay was made from; relative ones are left out."""

    @property
    def place(self) -> Place:
        """Directory or file that is mounted."""
        return Place(self.device, self.root)


class Aliases(NamedTuple):
    """Further paths at which the files of a path are shown."""

    whole: tuple[str, ...] = ()
    """Paths of the file or directory itself."""
    parts: tuple[str, ...] = ()
    """Paths of something below it."""
    ways: tuple[str, ...] = ()
    """
    Paths of the directories on which a directory above it is mounted.

    A mount moves with its mount point when that is renamed.
    """


_NONE: Final = Aliases()

# Paths whose aliases are cached: a few of Holdfast itself, and those of profiles.
_MOST_KNOWN: Final = 1024


class MountTable:
    """The mounts of a process at one moment. Compared by identity."""

    def __init__(self, mounts: Iterable[Mount] = ()) -> None:
        every = {mount.ident: mount for mount in mounts}
        # A mount point has one mount: a later one there is mounted on the former.
        self._on: dict[tuple[int | None, str], Mount] = {}
        for mount in every.values():
            known = mount.parent in every and mount.parent != mount.ident
            self._on[mount.parent if known else None, mount.point] = mount
        self._mounts = every
        self._visible = [
            mount
            for mount in every.values()
            if not _is_private(mount.point) and self.at(mount.point) is mount
        ]
        self._shows: dict[int, tuple[Place, ...]] = {
            mount.ident: (mount.place, *self._layers(mount)) for mount in self._visible
        }
        self._by_place: dict[Place, list[Mount]] = {}
        for mount in self._visible:
            for place in self._shows[mount.ident]:
                self._by_place.setdefault(place, []).append(mount)
        # There may be thousands: what is below a path is found by bisection.
        self._sorted_places = sorted(self._by_place)
        self._visible.sort(key=_point)
        self.has_aliases = any(
            path != mount.point
            for mount in self._visible
            for place in self._shows[mount.ident]
            for path in self._paths_of(place)
        )
        """False if no file is shown at two paths, as on most machines."""
        self._known: dict[str, Aliases] = {}

    def at(self, path: str) -> Mount | None:
        """Return the mount that shows a path without links; None if unknown."""
        found: Mount | None = None
        end = 0
        # From the top, as the kernel does: a mount can hide another one below its mount point.
        while True:
            point = path[:end] or "/"
            while (mount := self._on.get((found and found.ident, point))) is not None:
                found = mount
            if end == len(path) or path == "/":
                return found
            end = path.find("/", end + 1)
            end = len(path) if end < 0 else end

    def places(self, path: str) -> tuple[Place, ...]:
        """Return the places of a path without links: one, and those in the layers of an overlay."""
        mount = self.at(path)
        if mount is None:
            return ()
        rest = _below(path, mount.point)
        shown = self._shows.get(mount.ident) or (mount.place,)
        return tuple(Place(device, _join(root, rest)) for device, root in shown)

    def places_below(self, path: str) -> set[Place]:
        """Return the places of a path and of all mounts below it."""
        first, last = (bisect_left(self._visible, one, key=_point) for one in _range_below(path))
        below = (place for one in self._visible[first:last] for place in self._shows[one.ident])
        return {*self.places(path), *below}

    def names(self, path: str) -> tuple[str, ...]:
        """Return the other paths of a file or directory; see `Aliases.whole`."""
        return self._names(path) if self.has_aliases else ()

    def aliases(self, path: str) -> Aliases:
        """Return all paths at which a command could reach a path, or something below it."""
        # Each file is below `/`, so no other path stands for it.
        if not self.has_aliases or path == "/":
            return _NONE
        known = self._known.get(path)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[path] = self._aliases(path)
        return known

    def _names(self, path: str) -> tuple[str, ...]:
        found = (one for place in self.places(path) for one in self._paths_of(place))
        return tuple(dict.fromkeys(one for one in found if not _covers(path, one)))

    def _aliases(self, path: str) -> Aliases:
        whole = self._names(path)
        parts = (
            point
            for place in self.places_below(path)
            for point in (*self._paths_of(place), *self._points_below(place))
        )
        # A directory above the path may be mounted below it; that is not a part of it.
        outside = (
            one
            for one in parts
            if one not in whole and not _covers(path, one) and not _covers(one, path)
        )
        ways = (one for place in self._mounted_on(path) for one in self._paths_of(place))
        return Aliases(whole, tuple(sorted(set(outside))), tuple(sorted(set(ways))))

    def _paths_of(self, place: Place) -> Iterator[str]:
        """Yield the paths at which a place is shown, not hidden by another mount."""
        device, path = place
        above = path
        while True:
            for mount in self._by_place.get(Place(device, above), ()):
                shown = _join(mount.point, _below(path, above))
                if self.at(shown) is mount:
                    yield shown
            if above in ("/", ""):
                return
            above = above[: above.rfind("/")] or "/"

    def _points_below(self, place: Place) -> Iterator[str]:
        """Yield the mount points that show something below a place."""
        first, last = (Place(place.device, path) for path in _range_below(place.path))
        start, stop = (bisect_left(self._sorted_places, one) for one in (first, last))
        for below in self._sorted_places[start:stop]:
            yield from (mount.point for mount in self._by_place[below])

    def _mounted_on(self, path: str) -> Iterator[Place]:
        """Yield the places of the mount points above a path, in the mounts that they are in."""
        mount = self.at(path)
        while mount is not None and mount.point != "/":
            over = self._mounts.get(mount.parent)
            if over is not None and over.ident in self._shows:
                rest = _below(mount.point, over.point)
                yield from (Place(one, _join(root, rest)) for one, root in self._shows[over.ident])
            mount = over

    def _layers(self, overlay: Mount) -> Iterator[Place]:
        for named in overlay.layers:
            on = self.at(named)
            # Looking at any other kind may never return.
            if on is None or on.kind not in LOCAL_KINDS:
                continue
            # Docker names layers by links.
            layer = os.path.realpath(named)
            mount = self.at(layer)
            # In a container the paths of its layers are shown, but do not exist.
            if mount is None or mount is overlay or not os.path.isdir(layer):
                continue
            inside = _join(layer, overlay.root.lstrip("/"))
            yield Place(mount.device, _join(mount.root, _below(inside, mount.point)))


def parse_mounts(text: str) -> Iterator[Mount]:
    """Parse the text of a `mountinfo`."""
    # By line feeds only: a path may have other characters that end a line.
    for line in text.split("\n"):
        if not line:
            continue
        ident, parent, device, root, point, options, rest = line.split(" ", 6)
        # Any number of optional fields, up to a dash.
        kind, _, options_of_kind = f" {rest}".partition(" - ")[2].partition(" ")
        yield Mount(
            *(int(ident), int(parent), device, _plain(root), _plain(point)),
            writable=options.startswith("rw"),
            kind=kind,
            layers=tuple(_read_layers(options_of_kind)) if kind == "overlay" else (),
        )


def _read_layers(fields: str) -> Iterator[str]:
    """Yield the absolute paths of an overlay's layers, from its source and its options."""
    for option in fields.rpartition(" ")[2].split(","):
        name, _, value = option.partition("=")
        if name in ("upperdir", "lowerdir+"):
            paths = [_plain(value)]
        elif name == "lowerdir":
            # A colon in a path is escaped by a backslash, which is itself written in octal.
            found = re.findall(r"(?:\\.|[^:\\])+", _plain(value))
            paths = [re.sub(r"\\(.)", r"\1", one) for one in found]
        else:
            continue
        yield from (path for path in paths if path.startswith("/"))


class _ReadTable(NamedTuple):
    changes: int | None
    content: bytes
    table: MountTable


_known: _ReadTable | None = None


def mount_table() -> MountTable:
    """
    Return the mounts of this process; the same object as before if they are the same.

    `NO_MOUNTS` if no file has two paths, whatever is mounted.

    Raises:
        OSError: No descriptor is left, or there is no `/proc`.
    """
    global _known
    # Before the text is read, so that a change in between is noticed the next time.
    changes = mount_changes()
    known = _known
    # The kernel does not signal that a directory above a mount point is renamed. That makes no
    # alias, but an alias may have another path then.
    settled = known is not None and changes is not None and known.changes == changes
    if known is not None and settled and not known.table.has_aliases:
        return known.table
    with open(_MOUNTINFO, "rb", buffering=0) as file:
        content = file.read()
    if known is None or known.content != content:
        found = MountTable(parse_mounts(content.decode("utf-8", "surrogateescape")))
        known = _ReadTable(changes, content, found if found.has_aliases else NO_MOUNTS)
    _known = known._replace(changes=changes)
    return known.table


def _plain(text: str) -> str:
    """Return a path of mountinfo without its octal escapes."""
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def _is_private(point: str) -> bool:
    private = any(_covers(one, point) for one in _PRIVATE)
    return private and not _covers(_SHARED, point)


def _covers(path: str, other: str) -> bool:
    return path == "/" or other == path or other.startswith(f"{path}/")


def _range_below(path: str) -> tuple[str, str]:
    """Return two strings: paths below this path sort between them."""
    folder = path.rstrip("/")
    # `0` is the character after the slash.
    return f"{folder}/", f"{folder}0"


def _below(path: str, above: str) -> str:
    """Return the rest of a path after one above it, without a slash at its beginning."""
    return path[len(above) :].lstrip("/")


def _join(folder: str, rest: str) -> str:
    return f"{folder.rstrip('/')}/{rest}" if rest else folder


NO_MOUNTS: Final = MountTable()
"""Table of a machine whose files all have one path."""
