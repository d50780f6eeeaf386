"""
How a pattern of files is read [sandbox.globs].

`*` and `?` stay within one component, `**` as a whole component crosses any number of
them, `[a-f]` and `[!a]` are one character, `{a,b}` either text, and a backslash takes the
next character as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

__all__ = ["ANY_IN_NAME", "BadPattern", "Characters", "Part", "Wildcard", "as_regex", "parts"]


class BadPattern(ValueError):
    """A pattern that means nothing."""


class Wildcard(Enum):
    """A part of a pattern that stands for more than one character."""

    NAME = auto()
    """Any text within a component: `*`."""
    FOLDERS = auto()
    """Any number of components, each with its slash: `**/`."""
    REST = auto()
    """Whatever follows: `**` at the end."""
    OPEN = auto()
    OR = auto()
    CLOSE = auto()
    """Of `{a,b}`: the beginning, what is between the two texts, and the end."""


class Characters(NamedTuple):
    """A set of characters, one of which has to be there. A slash never is."""

    ranges: tuple[tuple[str, str], ...]
    """The first and the last of each."""
    negated: bool = False
    """Any but these."""

    def has(self, char: str) -> bool:
        """Return True if a character is one of them."""
        inside = any(first <= char <= last for first, last in self.ranges)
        return char != "/" and inside is not self.negated


Part: TypeAlias = Wildcard | Characters | str
"""A wildcard, a set of characters, or the one character that has to be there."""

ANY_IN_NAME = Characters((), negated=True)
"""The class of characters that `?` stands for."""


def parts(pattern: str) -> Iterator[Part]:
    """
    Take a pattern apart.

    Raises:
        BadPattern: The first of a range of characters comes after the last.
    """
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
                yield Wildcard.FOLDERS
            elif whole and at == len(pattern):
                yield Wildcard.REST
            else:
                yield Wildcard.NAME
        elif char == "?":
            yield ANY_IN_NAME
        elif char == "[":
            end = pattern.find("]", at + 1 + (pattern[at : at + 1] in {"!", "^"}))
            if end == -1:
                yield char
            else:
                yield _characters(pattern[at:end])
                at = end + 1
        elif char == "{" and "}" in pattern[at:]:
            braces += 1
            yield Wildcard.OPEN
        elif char == "}" and braces:
            braces -= 1
            yield Wildcard.CLOSE
        elif char == "," and braces:
            yield Wildcard.OR
        elif char == "\\" and at < len(pattern):
            yield pattern[at]
            at += 1
        else:
            yield char
    yield from [Wildcard.CLOSE] * braces


def _characters(inner: str) -> Characters:
    negated = inner[0] in "!^"
    left = inner[negated:]
    ranges: list[tuple[str, str]] = []
    while left:
        first = last = left[0]
        if left[1:2] == "-" and len(left) > 2:
            last, left = left[2], left[3:]
        else:
            left = left[1:]
        if first > last:
            raise BadPattern(f"there is nothing from {first} to {last} in [{inner}]")
        ranges.append((first, last))
    return Characters(tuple(ranges), negated)


_IN_REGEX = {
    Wildcard.NAME: "[^/]*",
    Wildcard.FOLDERS: "(?:[^/]+/)*",
    Wildcard.REST: ".+",
    Wildcard.OPEN: "(?:",
    Wildcard.OR: "|",
    Wildcard.CLOSE: ")",
}


def as_regex(found: Iterable[Part]) -> str:
    """The same as a regular expression, for others to use: it may take for ever to compare."""
    return "".join(
        _IN_REGEX[part]
        if isinstance(part, Wildcard)
        else _set_in_regex(part)
        if isinstance(part, Characters)
        else re.escape(part)
        for part in found
    )


def _set_in_regex(part: Characters) -> str:
    if part == ANY_IN_NAME:
        return "[^/]"
    listed = "".join(f"{re.escape(first)}-{re.escape(last)}" for first, last in part.ranges)
    return f"(?!/)[{'^' if part.negated else ''}{listed}]"
