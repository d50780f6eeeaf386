"""
Compares texts with a pattern, in a time that grows with the text alone.

A pattern of a client must not hold up others, and a regular expression with many wildcards
can take longer than anybody lives. Here all ways to read a text are followed at once: the
states that the pattern can be in after each character are one set. What follows a set is
worked out when it is first needed, and kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.sandbox.glob_syntax import Characters, Part, Wildcard

__all__ = ["Automaton"]

_ROOM: Final = 8192
"""
How much is kept: members of sets, and ways from one set to the next.

Some patterns have more sets than any memory. What is dropped is worked out again.
"""

_OF_A_SET: Final = 8
"""What a set takes beside its members."""

_NOT_A_SLASH: Final = Characters((), negated=True)


class _States(dict[str, "_States"]):
    """A set of states, and the ones that follow it by character."""

    def __init__(self, members: frozenset[int], automaton: Automaton) -> None:
        super().__init__()
        self.members = members
        self._automaton = automaton

    def __missing__(self, char: str) -> _States:
        found = self[char] = self._automaton.after(self.members, char)
        return found


class Automaton:
    """A pattern that texts can be compared with."""

    def __init__(self, pattern: Iterable[Part]) -> None:
        # Of each state: what it goes on with, by which character, and what it also is at once.
        self._steps: list[list[tuple[Characters | str | None, int]]] = []
        self._also: list[list[int]] = []
        first = self._new()
        self._last = self._build(pattern, first)
        self._kept: dict[frozenset[int], _States] = {}
        self._room = _ROOM
        self._start = self._closure({first})

    def matches(self, text: str) -> bool:
        """Whether the whole of a text is as the pattern says."""
        states = self._states(self._start)
        for char in text:
            states = states[char]
            if not states.members:
                return False
        return self._last in states.members

    def after(self, members: frozenset[int], char: str) -> _States:
        """The states that follow some others by a character."""
        found = {
            target
            for state in members
            for wanted, target in self._steps[state]
            if _takes(wanted, char)
        }
        self._room -= 1
        return self._states(self._closure(found))

    def _states(self, members: frozenset[int]) -> _States:
        known = self._kept.get(members)
        if known is None or self._room <= 0:
            if self._room <= 0:
                self._kept, self._room = {}, _ROOM
            self._room -= len(members) + _OF_A_SET
            known = self._kept[members] = _States(members, self)
        return known

    def _closure(self, states: set[int]) -> frozenset[int]:
        ahead = list(states)
        while ahead:
            for state in self._also[ahead.pop()]:
                if state not in states:
                    states.add(state)
                    ahead.append(state)
        return frozenset(states)

    # -- making it

    def _new(self, also: Iterable[int] = ()) -> int:
        """A new state, which all of some others also are."""
        self._steps.append([])
        self._also.append([])
        number = len(self._steps) - 1
        for state in also:
            self._also[state].append(number)
        return number

    def _build(self, pattern: Iterable[Part], at: int) -> int:
        """Add the states of a pattern. Returns the one at its end."""
        # Of each open brace: where its texts begin, and where those before the last one end.
        braces: list[tuple[int, list[int]]] = []
        for part in pattern:
            if part is Wildcard.OPEN:
                braces.append((at, []))
                at = self._new([at])
            elif part is Wildcard.OR:
                start, ends = braces[-1]
                ends.append(at)
                at = self._new([start])
            elif part is Wildcard.CLOSE:
                _, ends = braces.pop()
                at = self._new([*ends, at])
            else:
                at = self._add(part, at)
        return at

    def _add(self, part: Part, at: int) -> int:
        if part is Wildcard.NAME:
            at = self._new([at])
            self._steps[at].append((_NOT_A_SLASH, at))
            return self._new([at])
        if part is Wildcard.FOLDERS:
            at = self._new([at])
            within = self._new()
            self._steps[at].append((_NOT_A_SLASH, within))
            self._steps[within] += [(_NOT_A_SLASH, within), ("/", at)]
            return self._new([at])
        follows = self._new()
        if part is Wildcard.REST:
            self._steps[at].append((None, follows))
            self._steps[follows].append((None, follows))
        else:
            assert not isinstance(part, Wildcard)  # all of them were looked at
            self._steps[at].append((part, follows))
        return follows


def _takes(wanted: Characters | str | None, char: str) -> bool:
    """Whether a step is taken by a character; by any, if it names none."""
    if isinstance(wanted, str):
        return char == wanted
    return wanted is None or wanted.has(char)
