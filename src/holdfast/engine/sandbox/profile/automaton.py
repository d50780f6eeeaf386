"""
Matches strings with a pattern in a time that grows only with the length of the string.

A client's pattern must not delay other clients, and backtracking over many wildcards takes
exponential time. So this is a nondeterministic automaton that is made deterministic as needed.
The states that can be reached after a character are the bits of one number. The transition
from such a set by a character is computed when it is first needed, and cached.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.engine.sandbox.profile.glob_syntax import ANY_IN_NAME, Characters, Part, Wildcard

__all__ = ["Automaton"]

# Bytes, roughly, that the cache of one pattern may take. Some patterns have exponentially many
# sets of states, so a full cache is dropped and filled again.
_ROOM: Final = 256 << 10

# Bytes, roughly, of a cached set without its number, and of one cached transition.
_SET_BYTES: Final = 400
_TRANSITION_BYTES: Final = 100


class _StateSet(dict[str, "_StateSet"]):
    """Set of states, and a cache of the sets that follow it by each character."""

    def __init__(self, bits: int, automaton: Automaton) -> None:
        super().__init__()
        self.bits = bits
        self._automaton = automaton

    def __missing__(self, char: str) -> _StateSet:
        found = self[char] = self._automaton.after(self.bits, char)
        return found


class Automaton:
    """Compiled pattern. A state is a position in the pattern, and a bit of a number."""

    def __init__(self, pattern: Iterable[Part]) -> None:
        # States from which a character leads to the next one: by that character, by a set
        # of characters, or by any character but a slash.
        self._by_char: dict[str, int] = {}
        self._by_set: list[tuple[Characters, int]] = []
        self._by_any_in_name = 0
        # States that any character but a slash, or any character at all, leaves as they are.
        self._stay_in_name = 0
        self._stay = 0
        # States after a `**/`: a further directory name leads back to the state before.
        self._back = 0
        # Transitions without a character. Each leads to later states only.
        self._also: list[tuple[int, int]] = []
        self._also_from = 0
        self._last = 1 << self._build(pattern)
        self._kept: dict[int, _StateSet] = {}
        self._room = _ROOM
        self._takes: dict[str, int] = {}
        self._start = self._with_also(1)

    def matches(self, text: str) -> bool:
        """Return True if the pattern matches the whole text."""
        states = self._states(self._start)
        for char in text:
            states = states[char]
            if not states.bits:
                return False
        return bool(states.bits & self._last)

    def after(self, bits: int, char: str) -> _StateSet:
        """Return the states that a character leads to from a set of states."""
        found = (bits & self._taking(char)) << 1 | bits & self._stay
        if char != "/":
            found |= bits & self._stay_in_name | (bits & self._back) >> 1
        self._room -= _TRANSITION_BYTES
        return self._states(self._with_also(found))

    def _taking(self, char: str) -> int:
        """Return the states that a character leaves for the next one."""
        known = self._takes.get(char)
        if known is None:
            known = self._by_char.get(char, 0)
            if char != "/":
                known |= self._by_any_in_name
            for characters, states in self._by_set:
                if characters.has(char):
                    known |= states
            self._room -= _TRANSITION_BYTES + known.bit_length() // 8
            self._takes[char] = known
        return known

    def _with_also(self, bits: int) -> int:
        """Return the states with those that are reached from them without a character."""
        if bits & self._also_from:
            # Each transition leads to later states only, and the list is sorted, so that one
            # pass finds all of them.
            for source, targets in self._also:
                if bits & source:
                    bits |= targets
        return bits

    def _states(self, bits: int) -> _StateSet:
        known = self._kept.get(bits)
        if known is None or self._room <= 0:
            if self._room <= 0:
                # A set that a running match holds stays valid: it only fills its own dict.
                self._kept, self._takes, self._room = {}, {}, _ROOM
            self._room -= _SET_BYTES + bits.bit_length() // 8
            known = self._kept[bits] = _StateSet(bits, self)
        return known

    # -- construction

    def _build(self, pattern: Iterable[Part]) -> int:
        """Add the states of a pattern; return the number of the last one."""
        at = 0
        also: dict[int, int] = {}
        # For each open brace: its state, and the states at the ends of its finished texts.
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
                # `**/**/` means the same as `**/`, and would double the states.
                if previous is not Wildcard.FOLDERS:
                    also[at] = also.get(at, 0) | 1 << at + 2
                    at = self._add_folders(at)
            else:
                at = self._add(part, at)
            previous = part
        self._also = [(1 << source, targets) for source, targets in sorted(also.items())]
        self._also_from = sum(source for source, _ in self._also)
        return at

    def _add_folders(self, at: int) -> int:
        """Add a state within the name of a directory, and one after its slash."""
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
            # All other kinds of parts are handled above or in `_build`.
            assert isinstance(part, str)
            self._by_char[part] = self._by_char.get(part, 0) | 1 << at
        return at + 1
