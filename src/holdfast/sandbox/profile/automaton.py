"""
Compares texts with a pattern, in a time that grows with the text alone.

A pattern of a client must not hold up others, and a regular expression with many wildcards
can take longer than anybody lives. Here all ways to read a text are followed at once: the
places of the pattern that can have been reached after each character are the bits of a
number. What follows a number by a character is worked out in a few operations when it is
first needed, and kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.sandbox.profile.glob_syntax import ANY_IN_NAME, Characters, Part, Wildcard

__all__ = ["Automaton"]

_ROOM: Final = 256 << 10
"""
Bytes, roughly, that are kept for one pattern.

Some have more sets of places than any memory. What is dropped is worked out again.
"""

_OF_A_SET: Final = 400
_OF_A_WAY: Final = 100
"""Bytes, roughly, of a set of places without its number, and of a way from one to another."""


class _StateSet(dict[str, "_StateSet"]):
    """Places that can have been reached, and those that can be next by character."""

    def __init__(self, bits: int, automaton: Automaton) -> None:
        super().__init__()
        self.bits = bits
        self._automaton = automaton

    def __missing__(self, char: str) -> _StateSet:
        found = self[char] = self._automaton.after(self.bits, char)
        return found


class Automaton:
    """A pattern that texts can be compared with."""

    def __init__(self, pattern: Iterable[Part]) -> None:
        # A place is a bit. Most parts lead from one place to the next, by a character: the
        # places from which that is so, by the character or set of characters.
        self._by_char: dict[str, int] = {}
        self._by_set: list[tuple[Characters, int]] = []
        self._by_any_in_name = 0
        # Places that are not left: by any character of a name, or by any at all.
        self._stay_in_name = 0
        self._stay = 0
        # Places after a `**/`, from which another folder leads back to the one before.
        self._back = 0
        # Places from which others are reached without a character. They come before those.
        self._also: list[tuple[int, int]] = []
        self._also_from = 0
        self._last = 1 << self._build(pattern)
        self._kept: dict[int, _StateSet] = {}
        self._room = _ROOM
        self._takes: dict[str, int] = {}
        self._start = self._with_also(1)

    def matches(self, text: str) -> bool:
        """Return True if the whole of a text is as the pattern says."""
        places = self._places(self._start)
        for char in text:
            places = places[char]
            if not places.bits:
                return False
        return bool(places.bits & self._last)

    def after(self, bits: int, char: str) -> _StateSet:
        """The places that can be reached from some others by a character."""
        found = (bits & self._taking(char)) << 1 | bits & self._stay
        if char != "/":
            found |= bits & self._stay_in_name | (bits & self._back) >> 1
        self._room -= _OF_A_WAY
        return self._places(self._with_also(found))

    def _taking(self, char: str) -> int:
        """The places that are left for the next by a character."""
        known = self._takes.get(char)
        if known is None:
            known = self._by_char.get(char, 0)
            if char != "/":
                known |= self._by_any_in_name
            for characters, places in self._by_set:
                if characters.has(char):
                    known |= places
            self._room -= _OF_A_WAY + known.bit_length() // 8
            self._takes[char] = known
        return known

    def _with_also(self, bits: int) -> int:
        if bits & self._also_from:
            # Each leads to later places only, and they are in order: once is enough.
            for source, targets in self._also:
                if bits & source:
                    bits |= targets
        return bits

    def _places(self, bits: int) -> _StateSet:
        known = self._kept.get(bits)
        if known is None or self._room <= 0:
            if self._room <= 0:
                self._kept, self._takes, self._room = {}, {}, _ROOM
            self._room -= _OF_A_SET + bits.bit_length() // 8
            known = self._kept[bits] = _StateSet(bits, self)
        return known

    # -- making it

    def _build(self, pattern: Iterable[Part]) -> int:
        """Take in a pattern. Returns the number of the place at its end."""
        at = 0
        also: dict[int, int] = {}
        # Of each open brace: where its texts begin, and where those before the last one end.
        braces: list[tuple[int, list[int]]] = []
        previous: Part | None = None
        for part in pattern:
            if part is Wildcard.OPEN:
                braces.append((at, []))
                also[at] = also.get(at, 0) | 1 << at + 1
                at += 1
            elif part is Wildcard.OR:
                start, ends = braces[-1]
                ends.append(at)
                at += 1
                also[start] |= 1 << at
            elif part is Wildcard.CLOSE:
                _, ends = braces.pop()
                for end in (*ends, at):
                    also[end] = also.get(end, 0) | 1 << at + 1
                at += 1
            elif part is Wildcard.FOLDERS:
                if previous is not Wildcard.FOLDERS:  # twice is no more than once
                    also[at] = also.get(at, 0) | 1 << at + 2
                    at = self._add_folders(at)
            else:
                at = self._add(part, at)
            previous = part
        self._also = [(1 << source, targets) for source, targets in sorted(also.items())]
        self._also_from = sum(source for source, _ in self._also)
        return at

    def _add_folders(self, at: int) -> int:
        """Add a place within the name of a folder, and one behind its slash."""
        within, behind = at + 1, at + 2
        self._by_any_in_name |= 1 << at
        self._stay_in_name |= 1 << within
        self._by_char["/"] = self._by_char.get("/", 0) | 1 << within
        self._back |= 1 << behind
        return behind

    def _add(self, part: Part, at: int) -> int:
        if part is Wildcard.NAME:
            self._stay_in_name |= 1 << at
            return at
        if part is Wildcard.REST:
            self._by_any_in_name |= 1 << at
            self._by_char["/"] = self._by_char.get("/", 0) | 1 << at
            self._stay |= 1 << at + 1
        elif part == ANY_IN_NAME:
            self._by_any_in_name |= 1 << at
        elif isinstance(part, Characters):
            self._by_set.append((part, 1 << at))
        else:
            assert isinstance(part, str)  # all others were looked at
            self._by_char[part] = self._by_char.get(part, 0) | 1 << at
        return at + 1
