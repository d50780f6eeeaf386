"""
Patterns of denied files [sandbox.globs], as `sandbox.profile.glob_syntax` reads them.

Only files are meant, and links to files; directories are not.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic

from holdfast.errors import CannotEnforce
from holdfast.sandbox.policy.disk import Disk
from holdfast.sandbox.profile.automaton import Automaton
from holdfast.sandbox.profile.glob_syntax import BadPattern, Part, Wildcard, as_regex, parts

__all__ = ["LOOK_LIMIT", "MAX_MATCHES", "Glob", "compile_glob", "expand"]

MAX_MATCHES = 8192
"""Of one profile. Each costs a mount, and a pattern that finds more is a mistake."""

LOOK_LIMIT = 10.0
"""Seconds that the files of one profile may be looked for."""

_LONGEST = 4096
"""Characters of a pattern; no path is longer."""

_META = re.compile(r"[*?\[\]]")


@dataclass(frozen=True, slots=True)
class Glob:
    """A pattern, ready to be looked for or compared."""

    pattern: str
    folder: str
    """Where the search begins: the part before the first wildcard."""
    parts: tuple[Part, ...]
    automaton: Automaton
    depth: int | None
    """How many components a match may be below `folder`; `None` for any number."""

    @property
    def wildcards(self) -> int:
        """The number of its wildcards: the cost of a comparison grows with them."""
        return sum(isinstance(part, Wildcard) for part in self.parts)

    @property
    def regex(self) -> str:
        """The same as a regular expression."""
        return as_regex(self.parts)

    def matches(self, path: str) -> bool:
        """Whether a file of this absolute path is meant."""
        return self.automaton.matches(path) and (
            self.depth is None or path.count("/") - self.folder.count("/") <= self.depth
        )

    def within(self, folder: str) -> Glob:
        """
        The same pattern in another directory: where its own one really is.

        Raises:
            CannotEnforce: That is `/`.
        """
        if folder == "/":
            raise _unsafe(self.pattern)
        rest = self.pattern.removeprefix(self.folder)
        return _glob(folder + rest, folder, (*folder, *parts(rest)), self.depth)


@lru_cache(maxsize=256)
def compile_glob(pattern: str, depth: int | None = None) -> Glob:
    """
    Read an absolute pattern. Surplus slashes and dots in it do not count.

    Raises:
        CannotEnforce: It has no directory to begin the search in, or no wildcard; or it
            means nothing, or is longer than any path.
    """
    if len(pattern) > _LONGEST:
        raise CannotEnforce(
            f"unreadable glob `{pattern[:80]}…`: its {len(pattern):,} characters are more than the"
            f" {_LONGEST:,} that a pattern may have"
        )
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
    return CannotEnforce(
        f"unreadable glob `{pattern}` cannot be safely expanded; "
        "use a pattern with a non-root directory prefix"
    )


def expand(
    glob: Glob, disk: Disk, *, limit: int = MAX_MATCHES, deadline: float | None = None
) -> list[str]:
    """
    Find the files that match now.

    Args:
        glob: What is looked for.
        disk: Where.
        limit: How many there may be.
        deadline: When the search has to be over, as `monotonic` tells the time.

    Raises:
        CannotEnforce: There are more than `limit`, or it takes too long.
    """
    found: list[str] = []
    # A pattern without `**` is no deeper than its own components.
    deepest = glob.depth
    if "**" not in glob.pattern:
        own = glob.pattern.count("/") - glob.folder.count("/")
        deepest = own if deepest is None else min(own, deepest)
    for path in _files(disk, glob.folder, deepest):
        if deadline is not None and monotonic() > deadline:
            raise CannotEnforce(
                f"unreadable glob `{glob.pattern}` takes too long to be looked for: there are"
                f" {LOOK_LIMIT:.0f} seconds for all patterns of a profile"
            )
        if glob.automaton.matches(path):
            found.append(path)
            if len(found) > limit:
                raise CannotEnforce(f"unreadable glob `{glob.pattern}` matches too many files")
    return found


def _files(disk: Disk, folder: str, depth: int | None) -> Iterator[str]:
    """The files below a directory; linked directories are not entered."""
    pending = [(folder, 1)]
    while pending:
        where, level = pending.pop()
        for name, kind in disk.entries(where):
            path = f"{where}/{name}"
            if kind == "directory":
                if depth is None or level < depth:
                    pending.append((path, level + 1))
            elif kind != "link" or disk.leads_to_file(path):
                yield path
