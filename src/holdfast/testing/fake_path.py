"""A path in a `FakeFileSystem`, with the most useful methods of `pathlib.Path`."""

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.testing.file_tree import FileNode, FileTree

__all__ = ["FakePath", "FakeStat"]


class FakeStat(NamedTuple):
    """The result of `FakePath.stat`."""

    st_mode: int
    st_size: int
    st_mtime: float


class FakePath:
    """
    A file or directory of a fake file system, for the test itself.

    Its methods are not recorded, and `hold` and `refuse` do not apply to them. They raise the
    errors of `pathlib`. Deliberately not an `os.PathLike`, so that no call reaches the real disk
    by mistake.
    """

    def __init__(self, tree: FileTree, path: str) -> None:
        self._tree = tree
        # Without surplus slashes, so that equal paths are equal objects.
        self._path = "/" + "/".join(name for name in path.split("/") if name)

    def __truediv__(self, name: object) -> "FakePath":
        return FakePath(self._tree, f"{self._path}/{name}")

    def __str__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"FakePath({self._path!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakePath) and self._path == other._path

    def __hash__(self) -> int:
        return hash(self._path)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._path.rpartition("/")[2]

    @property
    def parent(self) -> "FakePath":
        """The directory that contains it."""
        return FakePath(self._tree, self._path.rpartition("/")[0])

    # -- looking

    def exists(self) -> bool:
        return self._tree.find(self._path) is not None

    def is_file(self) -> bool:
        return self._tree.kind_of(self._path) == "file"

    def is_dir(self) -> bool:
        return self._tree.kind_of(self._path) == "directory"

    def is_symlink(self) -> bool:
        node = self._tree.find(self._path, "keep last")
        return node is not None and node.kind == "link"

    def iterdir(self) -> Iterator["FakePath"]:
        return (self / name for name, _ in self._tree.list(self._path))

    def stat(self) -> FakeStat:
        node = self._tree.get(self._path)
        return FakeStat(node.mode, len(node.content), node.modified)

    def resolve(self) -> "FakePath":
        """Return the path without links."""
        return FakePath(self._tree, self._tree.real_path(self._path))

    def readlink(self) -> str:
        """Return the text of a link."""
        return self._tree.get(self._path, "keep last").target

    def read_bytes(self) -> bytes:
        node = self._tree.get(self._path)
        if node.kind == "directory":
            raise IsADirectoryError(f"{self._path} is a directory")
        return node.content

    def read_text(self) -> str:
        return self.read_bytes().decode()

    # -- changing

    def write_bytes(self, data: bytes) -> None:
        self._tree.write(self._tree.locate(self._path), data)

    def write_text(self, text: str) -> None:
        self.write_bytes(text.encode())

    def touch(self) -> None:
        if not self.exists():
            self.write_bytes(b"")

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        # From the top down; the root always exists and ends the recursion.
        if parents and not self.parent.exists():
            self.parent.mkdir(parents=True, exist_ok=True)
        if not (exist_ok and self.is_dir()):
            self._tree.make_directory(self._path)

    def symlink_to(self, target: object) -> None:
        self._tree.make_link(self._path, str(target))

    def mkfifo(self) -> None:
        """Make a FIFO, which never has a reader."""
        self._tree.make_fifo(self._path)

    def chmod(self, permissions: int) -> None:
        self._node().permissions = stat.S_IMODE(permissions)

    def unlink(self) -> None:
        where = self._tree.locate(self._path, "keep last")
        if where.node is None:
            raise FileNotFoundError(f"{self._path} does not exist")
        if where.node.kind == "directory":
            raise IsADirectoryError(f"{self._path} is a directory")
        self._tree.unlink(where)

    def child(self, name: bytes) -> "FakePath":
        """Return an entry by the bytes of its name, which may be invalid UTF-8."""
        return self / os.fsdecode(name)

    def _node(self) -> FileNode:
        return self._tree.get(self._path)
