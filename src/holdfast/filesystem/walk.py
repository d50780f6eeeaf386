"""
Walks a tree, breadth first and within limits [fs.walk.*].

What a folder lists tells the kind of nearly every entry, so that entries are not
looked at one by one. The result is texts: to make an object of each of tens of
thousands of paths takes longer than to find them.
"""

import errno
import os
import re
import stat
from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

from holdfast.errors import InvalidRequest
from holdfast.filesystem.directories import kind_of, lossy
from holdfast.protocol.fs import WalkEntry, WalkError, WalkOptions, WalkResponse
from holdfast.protocol.paths import ForeignPathUri, PathUri
from holdfast.system_text import system_text

__all__ = ["WalkTree", "Walked", "WalkedPath", "check_limits", "walk"]

Kind = Literal["file", "directory"]

MAX_DEPTH = 64
MAX_DIRECTORIES = 10_000
MAX_ENTRIES = 50_000

BUDGET = 4 << 20
"""Bytes an answer may take, counted as the real server counts them."""

ITEM_COST = 64
"""What an item costs beside its texts."""


_PLAIN = re.compile(r"[\w!$&'()*+,\-.:;=@\[\]^|~]+", re.ASCII)
"""Names that a URI spells as they are; not all of them."""


def check_limits(options: WalkOptions) -> None:
    """
    Look at the limits, before the path is looked at.

    Raises:
        InvalidRequest: One of them is out of range.
    """
    if not options.max_directories or not options.max_entries:
        raise InvalidRequest("filesystem walk limits must be greater than zero")
    if (
        options.max_depth > MAX_DEPTH
        or options.max_directories > MAX_DIRECTORIES
        or options.max_entries > MAX_ENTRIES
    ):
        raise InvalidRequest(
            f"filesystem walk limits exceed maximums: depth={MAX_DEPTH}, "
            f"directories={MAX_DIRECTORIES}, entries={MAX_ENTRIES}"
        )


class Walked(NamedTuple):
    """What a walk has found. Paths are the texts of URIs, so ASCII without quotes."""

    entries: list[tuple[str, Kind]]
    errors: list[tuple[str, str]]
    truncated: bool

    def response(self) -> WalkResponse:
        """The same as objects."""
        return WalkResponse(
            entries=[WalkEntry(path=PathUri.parse(uri), kind=kind) for uri, kind in self.entries],
            errors=[WalkError(path=PathUri.parse(uri), message=m) for uri, m in self.errors],
            truncated=self.truncated,
        )


class _Folder(NamedTuple):
    path: str
    uri: str
    depth: int


class _ListedEntry(NamedTuple):
    """An entry of a folder, as far as a walk is interested; sorts by the bytes of its name."""

    name: str
    """Without what is not UTF-8, of which `is_lossy` tells."""
    kind: str
    is_link: bool
    is_lossy: bool


class _Full(Exception):
    """The answer takes no more."""


class WalkedPath(NamedTuple):
    """What a path leads to."""

    is_folder: bool
    is_link: bool
    """Whether the path is a link itself."""
    identity: tuple[int, int]
    """Device and number: the same for every path that leads there."""


class WalkTree(Protocol):
    """Where a walk goes. Its methods raise `OSError` as the kernel does."""

    def facts(self, path: str) -> WalkedPath:
        """What a path leads to."""

    def entries(self, path: str) -> Iterable[tuple[str, str | None, bool]]:
        """What is in a folder: name, kind as `folders.kind_of` has it, whether it is a link."""

    def check(self, path: str) -> None:
        """Look whether anything has that path, be it a link to nowhere."""


def walk(path: str, uri: PathUri, options: WalkOptions, *, tree: WalkTree | None = None) -> Walked:
    """
    What is below a folder; the folder itself is not listed.

    Args:
        path: Of the folder.
        uri: Of the folder, as paths below it are to be spelled.
        options: The limits, which `check_limits` has seen.
        tree: The files as they are, unless given.

    Raises:
        OSError: There is no such folder, or it cannot be read.
    """
    return _TreeWalk(tree or _HostTree(), uri, options).run(path)


class _HostTree:
    """The files of this machine."""

    def facts(self, path: str) -> WalkedPath:
        found = os.stat(path)
        is_link = stat.S_ISLNK(os.lstat(path).st_mode)
        return WalkedPath(stat.S_ISDIR(found.st_mode), is_link, (found.st_dev, found.st_ino))

    def entries(self, path: str) -> Iterable[tuple[str, str | None, bool]]:
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry.name, kind_of(entry), entry.is_symlink()

    def check(self, path: str) -> None:
        os.lstat(path)


class _TreeWalk:
    def __init__(self, tree: WalkTree, root: PathUri, options: WalkOptions) -> None:
        self._tree = tree
        self._root = root
        self._options = options
        self._entries: list[tuple[str, Kind]] = []
        self._errors: list[tuple[str, str]] = []
        self._pending: deque[_Folder] = deque()
        self._left = BUDGET
        self._examined = 0
        self._directories = 0
        self._truncated = False
        # Folders that were entered, by what they are: links lead to the same one again.
        self._entered: set[tuple[int, int]] = set()

    def run(self, path: str) -> Walked:
        facts = self._tree.facts(path)
        if facts.is_folder and (self._options.follow_directory_symlinks or not facts.is_link):
            self._enter_later(_Folder(path, str(self._root), 0))
            try:
                self._run()
            except _Full:
                self._truncated = True
        return Walked(self._entries, self._errors, self._truncated)

    def _run(self) -> None:
        while self._pending:
            folder = self._pending.popleft()
            try:
                found = self._list(folder.path)
            except OSError as error:
                if folder.depth == 0 and error.errno != errno.EACCES:
                    raise
                self._fail(folder.uri, system_text(error.errno or 0))
                continue
            for entry in found:
                if self._examined >= self._options.max_entries:
                    raise _Full
                self._examined += 1
                try:
                    self._examine(folder, entry)
                except ForeignPathUri as error:
                    self._fail(folder.uri, str(error))

    def _examine(self, folder: _Folder, entry: _ListedEntry) -> None:
        options = self._options
        uri = self._child(folder, entry.name)
        if entry.is_lossy:
            # Its bytes have no place in the answer, so it is looked up by its
            # listed name, where there usually is nothing.
            try:
                self._tree.check(os.path.join(folder.path, entry.name))
            except OSError as error:
                self._fail(uri, system_text(error.errno or 0))
        elif entry.is_link and (entry.kind != "directory" or not options.follow_directory_symlinks):
            pass
        elif entry.kind == "file":
            self._add(uri, "file")
        elif entry.kind == "directory":
            self._add(uri, "directory")
            hidden = options.prune_hidden_directories and entry.name.startswith(".")
            if folder.depth < options.max_depth and not hidden:
                path = os.path.join(folder.path, entry.name)
                self._enter_later(_Folder(path, uri, folder.depth + 1))

    def _child(self, folder: _Folder, name: str) -> str:
        if folder.depth and _PLAIN.fullmatch(name):
            return f"{folder.uri}/{name}"
        # Just below the root it shows whether the root is one that has children.
        parent = PathUri.parse(folder.uri) if folder.depth else self._root
        return str(parent.child(name))

    def _enter_later(self, folder: _Folder) -> None:
        if self._options.follow_directory_symlinks:
            try:
                identity = self._tree.facts(folder.path).identity
            except OSError as error:
                self._fail(folder.uri, system_text(error.errno or 0))
                return
            if identity in self._entered:
                return
            self._entered.add(identity)
        if self._directories >= self._options.max_directories:
            self._truncated = True
            return
        self._directories += 1
        self._pending.append(folder)

    def _add(self, uri: str, kind: Kind) -> None:
        self._pay(ITEM_COST + len(uri))
        self._entries.append((uri, kind))

    def _fail(self, uri: str, message: str) -> None:
        self._pay(ITEM_COST + len(uri) + len(message.encode()))
        self._errors.append((uri, message))

    def _pay(self, cost: int) -> None:
        if cost > self._left:
            raise _Full
        self._left -= cost

    def _list(self, path: str) -> list[_ListedEntry]:
        """The entries of a folder by the bytes of their names, without links to nowhere."""
        found: list[_ListedEntry] = []
        for name, kind, is_link in self._tree.entries(path):
            if kind is not None:
                # The order of texts is that of their UTF-8 bytes.
                text = name if name.isascii() else lossy(name)
                found.append(_ListedEntry(text, kind, is_link, text != name))
        found.sort()
        return found
