"""
Walks a directory tree, breadth first and within limits [fs.walk.*].

`scandir` returns the kind of nearly every entry, so most need no `stat`. Paths are strings until
the end: creating objects for tens of thousands of them takes longer than finding them.
"""

import errno
import os
import re
import stat
from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

from holdfast.base.dialect import limits, texts
from holdfast.base.errors import InvalidRequest
from holdfast.base.system_text import system_text
from holdfast.engine.files.directories import kind_of, lossy
from holdfast.wire.protocol.fs import WalkEntry, WalkError, WalkOptions, WalkResponse
from holdfast.wire.protocol.paths import ForeignPathUri, PathUri

__all__ = ["WalkTree", "WalkedPath", "check_limits", "walk"]

Kind = Literal["file", "directory"]

MAX_DEPTH = limits.WALK_DEPTH
MAX_DIRECTORIES = limits.WALK_DIRECTORIES
MAX_ENTRIES = limits.WALK_ENTRIES

BUDGET = limits.WALK_BUDGET
"""Bytes of a response, where each item counts `ITEM_COST` and its texts."""

ITEM_COST = limits.WALK_ITEM


# File names that need no escapes in a URI. Others are passed to `PathUri`, which is slower.
_PLAIN = re.compile(r"[\w!$&'()*+,\-.:;=@\[\]^|~]+", re.ASCII)


def check_limits(options: WalkOptions) -> None:
    """
    Check the limits of a walk; call this before the path is checked.

    Raises:
        InvalidRequest: A limit is out of range.
    """
    if not options.max_directories or not options.max_entries:
        raise InvalidRequest(texts.WALK_ZERO)
    if (
        options.max_depth > MAX_DEPTH
        or options.max_directories > MAX_DIRECTORIES
        or options.max_entries > MAX_ENTRIES
    ):
        raise InvalidRequest(texts.walk_exceeds(MAX_DEPTH, MAX_DIRECTORIES, MAX_ENTRIES))


class _Folder(NamedTuple):
    """Directory that is still to be listed."""

    path: str
    uri: str
    depth: int


class _ListedEntry(NamedTuple):
    """Entry of a directory; sorts by the bytes of its name."""

    name: str
    """Name as a string; `is_lossy` if it has bytes that are not UTF-8."""
    kind: str
    is_link: bool
    is_lossy: bool


class _Full(Exception):
    """The response has reached a limit."""


class WalkedPath(NamedTuple):
    """Target of a path."""

    is_folder: bool
    """True if the target is a directory."""
    is_link: bool
    """True if the path itself is a link."""
    identity: tuple[int, int]
    """Device and inode number: the same for every path to the target."""


class WalkTree(Protocol):
    """File tree that a walk reads. Its methods raise the `OSError` of the system call."""

    def facts(self, path: str) -> WalkedPath:
        """Return facts about the target of a path."""

    def entries(self, path: str) -> Iterable[tuple[str, str | None, bool]]:
        """Yield name, kind (see `directories.kind_of`) and whether it is a link, per entry."""

    def check(self, path: str) -> None:
        """Raise `FileNotFoundError` unless the path exists; a dangling link exists."""


def walk(root: PathUri, options: WalkOptions, *, tree: WalkTree | None = None) -> WalkResponse:
    """
    Return the files and directories below a directory.

    Args:
        root: The directory; its URI is the prefix of all paths in the result.
        options: Limits, already checked by `check_limits`.
        tree: Tree to read; the host's files unless given.

    Raises:
        OSError: The directory is missing or cannot be read.
    """
    return _TreeWalk(tree or _HostTree(), root, options).run()


class _HostTree:
    """Files of this machine, with the permissions of the server."""

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
    """State of one walk."""

    def __init__(self, tree: WalkTree, root: PathUri, options: WalkOptions) -> None:
        self._tree = tree
        self._root = root
        self._options = options
        self._entries: list[WalkEntry] = []
        self._errors: list[WalkError] = []
        self._pending: deque[_Folder] = deque()
        self._left = BUDGET
        # Entries and directories so far, for the limits of the request.
        self._examined = 0
        self._directories = 0
        self._truncated = False
        # Directories that were entered, by device and inode: links may form loops.
        self._entered: set[tuple[int, int]] = set()

    def run(self) -> WalkResponse:
        path = self._root.native
        facts = self._tree.facts(path)
        if facts.is_folder and (self._options.follow_directory_symlinks or not facts.is_link):
            self._enter_later(_Folder(path, str(self._root), 0))
            try:
                self._run()
            except _Full:
                self._truncated = True
        return WalkResponse(entries=self._entries, errors=self._errors, truncated=self._truncated)

    def _run(self) -> None:
        while self._pending:
            folder = self._pending.popleft()
            try:
                found = self._list(folder.path)
            except OSError as error:
                # An unreadable root is an item of the result, not an error of the call.
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
            # JSON cannot carry its bytes. It is looked up by its name as a string, which usually
            # does not exist.
            try:
                self._tree.check(os.path.join(folder.path, entry.name))
            except OSError as error:
                self._fail(uri, system_text(error.errno or 0))
        # A link is listed only if it leads to a directory and such links are followed.
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
        # Right below the root, `child` checks that the URI of the root can have children.
        parent = PathUri.parse(folder.uri) if folder.depth else self._root
        return str(parent.child(name))

    def _enter_later(self, folder: _Folder) -> None:
        # Without links there are no loops, and no need for a `stat` of each directory.
        if self._options.follow_directory_symlinks:
            try:
                identity = self._tree.facts(folder.path).identity
            except OSError as error:
                self._fail(folder.uri, system_text(error.errno or 0))
                return
            if identity in self._entered:
                return
            self._entered.add(identity)
        # Other directories in the queue are still listed, unlike after `_Full`.
        if self._directories >= self._options.max_directories:
            self._truncated = True
            return
        self._directories += 1
        self._pending.append(folder)

    def _add(self, uri: str, kind: Kind) -> None:
        self._pay(ITEM_COST + len(uri))
        self._entries.append(WalkEntry(uri=uri, kind=kind))

    def _fail(self, uri: str, message: str) -> None:
        self._pay(ITEM_COST + len(uri) + len(message.encode()))
        self._errors.append(WalkError(path=PathUri.parse(uri), message=message))

    def _pay(self, cost: int) -> None:
        """Deduct the cost of an item from the budget of the response."""
        if cost > self._left:
            raise _Full
        self._left -= cost

    def _list(self, path: str) -> list[_ListedEntry]:
        """Return the entries of a directory, sorted by name, without dangling links."""
        found: list[_ListedEntry] = []
        for name, kind, is_link in self._tree.entries(path):
            if kind is not None:
                # Code points sort like their UTF-8 bytes.
                text = name if name.isascii() else lossy(name)
                found.append(_ListedEntry(text, kind, is_link, text != name))
        # Sorted, so that the limits cut off the same entries each time.
        found.sort()
        return found
