"""
Files in memory under the rules of POSIX paths: directories, links, FIFOs and two devices.

Every method raises the same `OSError` as the kernel. There are no users, so permission bits are
stored but not enforced.
"""

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from holdfast.engine.files.walk import WalkedPath
from holdfast.wire.protocol.fs import FileMetadata

__all__ = ["FileLocation", "FileNode", "FileTree", "Links", "os_error"]

Kind = Literal["file", "directory", "link", "fifo", "null", "full"]

Links = Literal["follow", "keep last", "refuse"]
"""
Handling of links in a look-up.

`keep last` follows all but the last name, as `lstat` does. `refuse` follows none: a link before the
last name is `ENOTDIR`.
"""

# The kernel's limit for one path (MAXSYMLINKS).
_MAX_LINKS = 40

_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755

_FORMATS: dict[Kind, int] = {
    "file": stat.S_IFREG,
    "directory": stat.S_IFDIR,
    "link": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "null": stat.S_IFCHR,
    "full": stat.S_IFCHR,
}


def os_error(number: int) -> OSError:
    """Return the error of a system call."""
    return OSError(number, os.strerror(number))


class FileNode:
    """One file of any kind, without its name."""

    def __init__(self, kind: Kind, permissions: int, *, target: str = "") -> None:
        self.kind = kind
        self.permissions = permissions
        self.target = target
        """The text of a link."""
        self.content = b""
        """Replaced as a whole, so that an open file still reads its old content."""
        self.entries: dict[str, FileNode] = {}
        """The names in a directory."""
        # Real time, as on a real disk: a test may compare it with the clock.
        self.created = self.modified = time.time()

    @property
    def mode(self) -> int:
        """The kind and the permission bits, as in `st_mode`."""
        return _FORMATS[self.kind] | self.permissions


class FileLocation(NamedTuple):
    """The result of looking up a path."""

    parent: FileNode | None
    """The containing directory; None for the root."""
    name: str
    node: FileNode | None
    """None if the name does not exist."""
    path: str
    """The path with followed links resolved."""


class FileTree:
    """A file tree with a root directory, `/dev/null` and `/dev/full`."""

    def __init__(self) -> None:
        self._root = FileNode("directory", _DIRECTORY_MODE)
        self._watchers: list[Callable[[], None]] = []
        devices = self.make("/dev", FileNode("directory", _DIRECTORY_MODE))
        devices.entries["null"] = FileNode("null", 0o666)
        devices.entries["full"] = FileNode("full", 0o666)

    # -- looking up

    def locate(self, path: str, links: Links = "follow") -> FileLocation:
        """
        Look up a path whose last name need not exist.

        Raises:
            OSError: A name before the last is missing or not a directory, or links form a loop.
        """
        # A queue, since the names of a link's target go in front of the remaining ones.
        names = deque(path.split("/"))
        # The directories from the root to the current one, with their names.
        way = [("", self._root)]
        followed = 0
        while names:
            name = names.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                # The root is its own parent.
                way = way[:-1] or way
                continue
            parent = way[-1][1]
            if parent.kind != "directory":
                raise os_error(errno.ENOTDIR)
            node = parent.entries.get(name)
            # Empty names come from surplus slashes and have no meaning.
            is_last = not any(names)
            if node is None:
                # A missing last name is up to the caller, which may be about to create it.
                if not is_last:
                    raise os_error(errno.ENOENT)
                return FileLocation(parent, name, None, _joined(way, name))
            if node.kind == "link" and (not is_last or links == "follow"):
                if links == "refuse":
                    raise os_error(errno.ENOTDIR)
                followed += 1
                if followed > _MAX_LINKS:
                    raise os_error(errno.ELOOP)
                names.extendleft(reversed(node.target.split("/")))
                # A relative target starts at the directory of the link.
                way = way[:1] if node.target.startswith("/") else way
                continue
            way.append((name, node))
        name, node = way[-1]
        above = way[-2][1] if len(way) > 1 else None
        return FileLocation(above, name, node, _joined(way[:-1], name))

    def get(self, path: str, links: Links = "follow") -> FileNode:
        """
        Return the file at a path.

        Raises:
            OSError: It cannot be reached, or does not exist.
        """
        node = self.locate(path, links).node
        if node is None:
            raise os_error(errno.ENOENT)
        return node

    def find(self, path: str, links: Links = "follow") -> FileNode | None:
        """Return the file at a path; None if it cannot be reached, for any reason."""
        try:
            return self.locate(path, links).node
        except OSError:
            # A loop of links, or a file where a directory should be.
            return None

    def real_path(self, path: str) -> str:
        """Return a path with its links resolved; a part that does not exist stays unchanged."""
        try:
            return self.locate(path).path
        except FileNotFoundError:
            parent, _, name = path.rpartition("/")
            return f"{self.real_path(parent).rstrip('/')}/{name}"

    def list(self, path: str) -> Iterator[tuple[str, FileNode]]:
        """
        Yield the names and files of a directory.

        Raises:
            OSError: It is not a directory.
        """
        directory = self.get(path)
        if directory.kind != "directory":
            raise os_error(errno.ENOTDIR)
        # A copy: the caller may remove entries while it iterates.
        yield from list(directory.entries.items())

    def kind_of(self, path: str) -> str | None:
        """Return the kind of file at a path: `file`, `directory`, `other`, or None if missing."""
        node = self.find(path)
        if node is None:
            return None
        return node.kind if node.kind in ("file", "directory") else "other"

    def metadata(self, path: str, links: Links = "follow") -> FileMetadata:
        """
        Return kind, size and times of a file.

        Raises:
            OSError: It cannot be reached, or does not exist.
        """
        node = self.get(path, links)
        # A second look-up without following the last name, to see if it is a link.
        itself = self.get(path, "keep last")
        return FileMetadata(
            is_directory=node.kind == "directory",
            is_file=node.kind == "file",
            is_symlink=itself.kind == "link",
            size=len(node.content),
            created_at_ms=int(node.created * 1000),
            modified_at_ms=int(node.modified * 1000),
            permissions=node.permissions,
        )

    # -- changing

    def make(self, path: str, node: FileNode) -> FileNode:
        """
        Put a new file at a path.

        Raises:
            OSError: `EEXIST` if a file or link exists there.
        """
        parent, name, old, _ = self.locate(path, "keep last")
        if old is not None or parent is None:
            raise os_error(errno.EEXIST)
        self.put(parent, name, node)
        return node

    def make_directory(self, path: str) -> None:
        """Create a directory; raises as `make` does."""
        self.make(path, FileNode("directory", _DIRECTORY_MODE))

    def make_link(self, path: str, target: str) -> None:
        """Create a symbolic link; raises as `make` does."""
        self.make(path, FileNode("link", 0o777, target=target))

    def make_fifo(self, path: str) -> None:
        """Create a FIFO, which never has a reader; raises as `make` does."""
        self.make(path, FileNode("fifo", _FILE_MODE))

    def put(self, parent: FileNode, name: str, node: FileNode) -> None:
        """Give a file a name, replacing the file that had it."""
        parent.entries[name] = node
        parent.modified = time.time()
        self.changed()

    def write(self, where: FileLocation, data: bytes, permissions: int | None = None) -> None:
        """
        Replace a file's content; a missing file is created, with the usual permissions.

        Raises:
            OSError: It is a directory, a FIFO or `/dev/full`.
        """
        self.check_writable(where.node)
        node = where.node
        if node is None:
            # Only the root has no parent, and it is a directory.
            assert where.parent is not None
            node = FileNode("file", _FILE_MODE)
            where.parent.entries[where.name] = node
        elif node.kind != "file":
            # A device discards the bytes.
            if node.kind == "full" and data:
                raise os_error(errno.ENOSPC)
            return
        node.content = data
        node.modified = time.time()
        if permissions is not None:
            node.permissions = permissions
        self.changed()

    def check_writable(self, node: FileNode | None) -> None:
        """
        Refuse a file that cannot be opened for writing.

        Raises:
            OSError: It is a directory, or a FIFO without a reader.
        """
        if node is not None and node.kind == "directory":
            raise os_error(errno.EISDIR)
        if node is not None and node.kind == "fifo":
            raise os_error(errno.ENXIO)

    def unlink(self, where: FileLocation) -> None:
        """
        Remove a name and everything below it.

        Raises:
            OSError: It is the root.
        """
        if where.parent is None:
            raise os_error(errno.EBUSY)
        # This also removes everything below: nothing else refers to those files.
        del where.parent.entries[where.name]
        where.parent.modified = time.time()
        self.changed()

    def rename(self, origin: FileLocation, target: FileLocation) -> None:
        """
        Move a file to another name, replacing the file that has it.

        Raises:
            OSError: The two kinds are incompatible, or the file would be below itself.
        """
        moved, old = origin.node, target.node
        # The caller has checked; only the root has no parent.
        assert moved is not None
        if origin.parent is None or target.parent is None:
            raise os_error(errno.EBUSY)
        # With slashes, so that `/ab` does not count as below `/a`.
        if f"{target.path}/".startswith(f"{origin.path}/") and moved is not old:
            raise os_error(errno.EINVAL)
        if old is not None and old is not moved:
            if old.kind == "directory" and moved.kind != "directory":
                raise os_error(errno.EISDIR)
            if old.kind != "directory" and moved.kind == "directory":
                raise os_error(errno.ENOTDIR)
            if old.entries:
                raise os_error(errno.ENOTEMPTY)
        del origin.parent.entries[origin.name]
        self.put(target.parent, target.name, moved)

    # -- watching

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change, until `unwatch`."""
        self._watchers.append(changed)

    def unwatch(self, changed: Callable[[], None]) -> None:
        """Undo `watch`; idempotent."""
        if changed in self._watchers:
            self._watchers.remove(changed)

    def changed(self) -> None:
        """Call all watchers."""
        # A copy: a watcher that fires removes itself.
        for watcher in tuple(self._watchers):
            watcher()

    # -- WalkTree, for `filesystem.walk`

    def facts(self, path: str) -> WalkedPath:
        node = self.get(path)
        is_link = self.get(path, "keep last").kind == "link"
        # The object's identity serves as device and inode.
        return WalkedPath(node.kind == "directory", is_link, (0, id(node)))

    def entries(self, path: str) -> Iterable[tuple[str, str | None, bool]]:
        for name, node in self.list(path):
            yield name, self.kind_of(f"{path}/{name}"), node.kind == "link"

    def check(self, path: str) -> None:
        self.get(path, "keep last")


def _joined(way: list[tuple[str, FileNode]], name: str) -> str:
    """Return the path of a name in a chain of directories that starts at the root."""
    return "/" + "/".join([directory for directory, _ in way[1:]] + ([name] if name else []))
