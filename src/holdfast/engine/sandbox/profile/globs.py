"""
Compiles patterns of denied files, and finds the files that match [sandbox.globs].

Patterns match files and links to files, never directories.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic

from holdfast.base.dialect import texts
from holdfast.base.errors import CannotEnforce
from holdfast.engine.sandbox.policy.disk import Disk
from holdfast.engine.sandbox.profile.automaton import Automaton
from holdfast.engine.sandbox.profile.glob_syntax import BadPattern, Part, Wildcard, parts

__all__ = ["LOOK_LIMIT", "MAX_MATCHES", "Glob", "compile_glob", "expand"]

MAX_MATCHES = 8192
"""Files that the patterns of one profile may match: each costs a mount at every start."""

LOOK_LIMIT = 10.0
"""Seconds that the search for all patterns of one profile may take."""

# Characters of a pattern: PATH_MAX, since a longer pattern matches no path.
_LONGEST = 4096

# Characters that make a component a pattern; the search starts in the directory before it.
_META = re.compile(r"[*?\[\]]")


@dataclass(frozen=True, slots=True)
class Glob:
    """Compiled pattern."""

    pattern: str
    folder: str
    """Directory to search: the path before the first wildcard."""
    parts: tuple[Part, ...]
    automaton: Automaton
    depth: int | None
    """Largest number of components of a match below `folder`; `None` for any number."""

    @property
    def wildcards(self) -> int:
        """Number of wildcards: the cost of a match grows with it."""
        return sum(isinstance(part, Wildcard) for part in self.parts)

    def matches(self, path: str) -> bool:
        """Return True if the pattern matches a file with this absolute path."""
        return self.automaton.matches(path) and (
            self.depth is None or path.count("/") - self.folder.count("/") <= self.depth
        )

    def within(self, folder: str) -> Glob:
        """
        Return the same pattern for the real path of its directory.

        Raises:
            CannotEnforce: The real path is `/`.
        """
        if folder == "/":
            raise _unsafe(self.pattern)
        # The directory is taken literally: its real path may contain wildcard characters.
        rest = self.pattern.removeprefix(self.folder)
        return _glob(folder + rest, folder, (*folder, *parts(rest)), self.depth)


# The patterns of a session are compiled once, and keep the transitions they have computed.
@lru_cache(maxsize=256)
def compile_glob(pattern: str, depth: int | None = None) -> Glob:
    """
    Compile an absolute pattern; surplus slashes and dots are removed.

    Raises:
        CannotEnforce: The pattern has no directory to search, no wildcard, a syntax error, or
            too many characters.
    """
    if len(pattern) > _LONGEST:
        raise CannotEnforce(
            f"unreadable glob `{pattern[:80]}…`: its {len(pattern):,} characters are more than the"
            f" {_LONGEST:,} that a pattern may have"
        )
    # `normpath` keeps two leading slashes, which POSIX allows to mean something else.
    if pattern:
        pattern = "/" * pattern.startswith("/") + os.path.normpath(pattern).lstrip("/")
    meta = _META.search(pattern)
    folder = pattern[: pattern.rfind("/", 0, meta.start())] if meta else ""
    if not folder.startswith("/"):
        raise _unsafe(pattern)
    try:
        return _glob(pattern, folder, tuple(parts(pattern)), depth)
    except BadPattern as error:
        raise CannotEnforce(f"unreadable glob `{pattern}`: {error}") from None


def _glob(pattern: str, folder: str, found: tuple[Part, ...], depth: int | None) -> Glob:
    return Glob(pattern, folder, found, Automaton(found), depth)


def _unsafe(pattern: str) -> CannotEnforce:
    return CannotEnforce(texts.unsafe_glob(pattern))


def expand(
    glob: Glob, disk: Disk, *, limit: int = MAX_MATCHES, deadline: float | None = None
) -> list[str]:
    """
    Return the files that match a pattern now.

    Args:
        glob: Pattern to search for.
        disk: File system to search.
        limit: Largest number of matches.
        deadline: End of the search, in seconds of `monotonic`.

    Raises:
        CannotEnforce: More than `limit` files match, or the search takes too long.
    """
    found: list[str] = []
    # Without `**`, a match has as many components as the pattern: no need to go deeper.
    deepest = glob.depth
    if "**" not in glob.pattern:
        own = glob.pattern.count("/") - glob.folder.count("/")
        deepest = own if deepest is None else min(own, deepest)
    for path, is_link in _files(disk, glob.folder, deepest):
        # Checked for each file: the search of one tree may take longer than the limit.
        if deadline is not None and monotonic() > deadline:
            raise CannotEnforce(
                f"unreadable glob `{glob.pattern}` takes too long to search for: there are"
                f" {LOOK_LIMIT:.0f} seconds for all patterns of a profile"
            )
        # The link last: following it is a system call.
        if glob.automaton.matches(path) and (not is_link or disk.leads_to_file(path)):
            found.append(path)
            if len(found) > limit:
                raise CannotEnforce(texts.glob_matches(glob.pattern))
    return found


def _files(disk: Disk, folder: str, depth: int | None) -> Iterator[tuple[str, bool]]:
    """Yield the files and links below a directory, and whether each is a link."""
    # A list instead of recursion: a tree may be deeper than Python's stack.
    pending = [(folder, 1)]
    while pending:
        where, level = pending.pop()
        for name, kind in disk.entries(where):
            path = f"{where}/{name}"
            if kind == "directory":
                if depth is None or level < depth:
                    pending.append((path, level + 1))
            else:
                yield path, kind == "link"
