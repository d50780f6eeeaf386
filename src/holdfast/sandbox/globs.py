"""
Patterns of denied files (sandbox spec 3.6).

`*` and `?` stay within one component, `**` as a whole component crosses any number of
them, `[a-f]` and `[!a]` are one character, `{a,b}` either text, and a backslash takes the
next character as it is. Only files are meant, and links to files; directories are not.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from holdfast.errors import CannotEnforce
from holdfast.sandbox.disk import Disk

__all__ = ["MAX_MATCHES", "Glob", "compile_glob", "expand"]

MAX_MATCHES = 8192
"""Of one profile. Each costs a mount, and a pattern that finds more is a mistake."""

_META = re.compile(r"[*?\[\]]")


@dataclass(frozen=True, slots=True)
class Glob:
    """A pattern, ready to be looked for or compared."""

    pattern: str
    folder: str
    """Where the search begins: the part before the first wildcard."""
    regex: re.Pattern[str]
    depth: int | None
    """How many components a match may be below `folder`; `None` for any number."""

    def matches(self, path: str) -> bool:
        """Whether a file of this absolute path is meant."""
        return self.regex.fullmatch(path) is not None and (
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
        regex = re.compile(re.escape(folder) + _translate(rest), re.DOTALL)
        return Glob(folder + rest, folder, regex, self.depth)


@lru_cache(maxsize=256)
def compile_glob(pattern: str, depth: int | None = None) -> Glob:
    """
    Read an absolute pattern. Surplus slashes and dots in it do not count.

    Raises:
        CannotEnforce: It has no directory to begin the search in, or no wildcard.
    """
    if pattern:
        pattern = "/" * pattern.startswith("/") + os.path.normpath(pattern).lstrip("/")
    meta = _META.search(pattern)
    folder = pattern[: pattern.rfind("/", 0, meta.start())] if meta else ""
    if not folder.startswith("/"):
        raise _unsafe(pattern)
    return Glob(pattern, folder, re.compile(_translate(pattern), re.DOTALL), depth)


def _unsafe(pattern: str) -> CannotEnforce:
    return CannotEnforce(
        f"unreadable glob `{pattern}` cannot be safely expanded; "
        "use a pattern with a non-root directory prefix"
    )


def expand(glob: Glob, disk: Disk, *, limit: int = MAX_MATCHES) -> list[str]:
    """
    Find the files that match now.

    Raises:
        CannotEnforce: There are more than `limit`.
    """
    found: list[str] = []
    # A pattern without `**` is no deeper than its own components.
    deepest = glob.depth
    if "**" not in glob.pattern:
        own = glob.pattern.count("/") - glob.folder.count("/")
        deepest = own if deepest is None else min(own, deepest)
    for path in _files(disk, glob.folder, deepest):
        if glob.regex.fullmatch(path):
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


def _translate(pattern: str) -> str:
    """Turn a pattern into a regular expression."""
    done: list[str] = []
    braces = 0
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            start = at - 1
            while pattern[at : at + 1] == "*":
                at += 1
            whole = at - start == 2 and pattern[start - 1 : start] in {"/", ""}
            if whole and pattern[at : at + 1] == "/":
                at += 1
                done.append("(?:[^/]+/)*")
            elif whole and at == len(pattern):
                done.append(".+")
            else:
                done.append("[^/]*")
        elif char == "?":
            done.append("[^/]")
        elif char == "[":
            end = pattern.find("]", at + 1 + (pattern[at : at + 1] in {"!", "^"}))
            if end == -1:
                done.append(r"\[")
                continue
            inner = pattern[at:end]
            negated = inner[0] in "!^"
            body = re.sub(r"([\\\[\]&~|^])", r"\\\1", inner[negated:])
            done.append(f"(?!/)[{'^' if negated else ''}{body}]")
            at = end + 1
        elif char == "{" and "}" in pattern[at:]:
            braces += 1
            done.append("(?:")
        elif char == "}" and braces:
            braces -= 1
            done.append(")")
        elif char == "," and braces:
            done.append("|")
        else:
            if char == "\\" and at < len(pattern):
                char = pattern[at]
                at += 1
            done.append(re.escape(char))
    return "".join(done) + ")" * braces
