"""
Parses file patterns [sandbox.globs].

`*` and `?` stay within one component; `**` as a whole component matches any number of them. `[a-f]`
and `[!a]` match one character and `{a,b}` either string. A backslash takes the next character
literally.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

__all__ = ["ANY_IN_NAME", "BadPattern", "Characters", "Part", "Wildcard", "parts"]


class BadPattern(ValueError):
    """Pattern with a syntax error."""


class Wildcard(Enum):
    """A part of a pattern that stands for more than one character."""

    NAME = auto()
    """Any text within a component: `*`."""
    FOLDERS = auto()
    """Any number of components, each with its slash: `**/`."""
    REST = auto()
    """Rest of the path: `**` at the end."""
    OPEN = auto()
    OR = auto()
    CLOSE = auto()
    """Brace, comma and closing brace of `{a,b}`."""


class Characters(NamedTuple):
    """Set of characters that match at one position; a slash never matches."""

    ranges: tuple[tuple[str, str], ...]
    """First and last character of each range."""
    negated: bool = False
    """True if all characters match but these."""

    def has(self, char: str) -> bool:
        """Return True if a character matches."""
        inside = any(first <= char <= last for first, last in self.ranges)
        return char != "/" and inside is not self.negated


Part: TypeAlias = Wildcard | Characters | str
"""Wildcard, set of characters, or one literal character."""

ANY_IN_NAME = Characters((), negated=True)
"""Set that `?` stands for."""


def parts(pattern: str) -> Iterator[Part]:
    """
    Yield the parts of a pattern.

    Raises:
        BadPattern: A range of characters ends before it begins.
    """
    # Number of open braces, which may be nested.
    braces = 0
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            start = at - 1
            while pattern[at : at + 1] == "*":
                at += 1
            # `**` is special only as a whole component, as in the patterns of git.
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
            # A `]` right after the opening bracket, or after its `!`, belongs to the set.
            end = pattern.find("]", at + 1 + (pattern[at : at + 1] in {"!", "^"}))
            # A bracket that is never closed is a literal one.
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
    # A brace that is never closed ends with the pattern.
    yield from [Wildcard.CLOSE] * braces


def _characters(inner: str) -> Characters:
    # Shells write `!`, regular expressions `^`; both are accepted.
    negated = inner[0] in "!^"
    left = inner[negated:]
    ranges: list[tuple[str, str]] = []
    while left:
        first = last = left[0]
        # A `-` at the end is a literal one.
        if left[1:2] == "-" and len(left) > 2:
            last, left = left[2], left[3:]
        else:
            left = left[1:]
        if first > last:
            raise BadPattern(f"there is nothing from {first} to {last} in [{inner}]")
        ranges.append((first, last))
    return Characters(tuple(ranges), negated)
