"""
Reads JSON text against a wanted shape: structures, texts, numbers, names.

The order in which things are read, and therefore which of two faults is told, is that of
the original's decoder. Members that nobody asked for are passed over, at any depth.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeAlias, TypeVar

from holdfast.rpc.rust_text import debug_text, float_text
from holdfast.unified_exec.arguments.json_scanner import (
    CLOSE_LIST,
    CLOSE_OBJECT,
    COMMA,
    END,
    NUMBER_STARTS,
    OPEN_LIST,
    OPEN_OBJECT,
    QUOTE,
    WORDS,
    JsonScanner,
)

__all__ = ["JsonReader", "Number", "Read", "UnlocatedFault"]

T = TypeVar("T")

# Levels of nesting from which a value that is kept as it is gets refused.
_MAX_DEPTH = 128

_TOKEN = re.compile(rb'"|[\[\]{}]')

Read: TypeAlias = Callable[[], object]
"""Reads one value at the reader's position, and moves the position behind the value."""


class Number(str):
    """A number of a kept value, as it was written."""

    __slots__ = ()


class UnlocatedFault(Exception):
    """A fault without a position yet: the object or list around it gives its own end."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class JsonReader(JsonScanner):
    """One pass over a JSON text. Every method raises `Fault` at the first fault."""

    # -- the whole text

    def document(
        self, name: str, fields: Mapping[str, Read], *, required: int = 0, needs: str | None = None
    ) -> dict[str, object]:
        """Read the whole text as one structure; see `structure`."""
        found = self.structure(name, fields, required=required, needs=needs)
        if self._space() != END:
            self._fail_next("trailing characters")
        return found

    # -- values

    def structure(
        self, name: str, fields: Mapping[str, Read], *, required: int = 0, needs: str | None = None
    ) -> dict[str, object]:
        """
        Read an object, or a list with the members in the order of `fields`.

        Args:
            name: What the errors call it.
            fields: The members that are read; all others are passed over.
            required: How many of them a list must have.
            needs: The member that an object must have.

        Returns:
            The members that were there.
        """
        first = self._value_start()
        if first == OPEN_OBJECT:
            return self._object(fields, needs=needs)
        if first == OPEN_LIST:
            return self._list_form(name, fields, required)
        return self.wrong(name)

    def strict_object(self, fields: Mapping[str, Read]) -> dict[str, object]:
        """Read an object that has no other members than these."""
        if self._value_start() != OPEN_OBJECT:
            self.wrong("an object")
        return self._object(fields, strict=True)

    def optional(self, read: Read) -> Read:
        """Return a reader that takes `null` for None and leaves all else to `read`."""

        def read_optional() -> object:
            if self._space() == b"n"[0]:
                self._word()
                return None
            return read()

        return read_optional

    def string(self) -> str:
        if self._value_start() != QUOTE:
            self.wrong("a string")
        return self._string()

    def boolean(self) -> bool:
        first = self._value_start()
        if first not in b"tf":
            self.wrong("a boolean")
        self._word()
        return first == b"t"[0]

    def integer(self, expected: str, low: int, high: int) -> int:
        """Read a whole number in JSON form; `1000.0` is none."""
        if self._value_start() not in NUMBER_STARTS:
            self.wrong(expected)
        number = self._number()
        if isinstance(number, float):
            self._fail(f"invalid type: floating point `{float_text(number)}`, expected {expected}")
        if not low <= number <= high:
            self._fail(f"invalid value: integer `{number}`, expected {expected}")
        return number

    def strings(self) -> tuple[str, ...]:
        return self._elements(self.string)

    def integers(self, expected: str, low: int, high: int) -> tuple[int, ...]:
        """Read a list of whole numbers; see `integer`."""
        return self._elements(lambda: self.integer(expected, low, high))

    def _elements(self, read: Callable[[], T]) -> tuple[T, ...]:
        if self._value_start() != OPEN_LIST:
            self.wrong("a sequence")
        self._at += 1
        found: list[T] = []
        while self._has_element(first=not found):
            found.append(read())
        self._at += 1
        return tuple(found)

    def variant(self, names: tuple[str, ...]) -> str:
        """Read one of several names, as a text or as `{"name": null}`."""
        first = self._value_start()
        if first == QUOTE:
            return self._variant_name(names)
        if first != OPEN_OBJECT:
            self._fail_next("expected value")
        self._at += 1
        if self._value_start() != QUOTE:
            self.wrong("variant identifier")
        name = self._variant_name(names)
        self._colon()
        if self._value_start() != b"n"[0]:
            self.wrong("unit")
        self._word()
        if self._space() != CLOSE_OBJECT:
            # A second member, that is: the text was found sound before.
            self._fail("expected value")
        self._at += 1
        return name

    def _variant_name(self, names: tuple[str, ...]) -> str:
        name = self._string()
        if name not in names:
            choices = ", ".join(f"`{one}`" for one in names)
            self._fail(f"unknown variant `{name}`, expected one of {choices}")
        return name

    def anything(self, *, depth: int) -> object:
        """
        Read any value; an object becomes a tuple of pairs, so doubled keys are seen.

        Args:
            depth: Levels of nesting around it.
        """
        first = self._value_start()
        start = self._at
        if first in (QUOTE, OPEN_LIST, OPEN_OBJECT):
            self._check_kept_value(depth)
            self._at = start
        self.skip()
        text = self._data[start : self._at].decode()
        # Digits stay text: only numbers that fit are asked for their value.
        return json.loads(text, object_pairs_hook=tuple, parse_int=Number, parse_float=Number)

    def _check_kept_value(self, depth: int) -> None:
        """Refuse what a value that is kept must not have: deep nesting, half surrogates."""
        around = depth
        while True:
            token = _TOKEN.search(self._data, self._at)
            if token is None:
                return
            self._at = token.start()
            byte = self._data[self._at]
            if byte == QUOTE:
                self._string()
            elif byte in (OPEN_LIST, OPEN_OBJECT):
                depth += 1
                if depth >= _MAX_DEPTH:
                    self._fail_next("recursion limit exceeded")
                self._at += 1
            else:
                depth -= 1
                self._at += 1
            if depth <= around:
                return

    def wrong(self, expected: str) -> NoReturn:
        """Refuse the value at this position, which is of another type than `expected`."""
        first = self._peek()
        if first in WORDS:
            word = self._word()
            shown = "null" if word == "null" else f"boolean `{word}`"
        elif first in NUMBER_STARTS:
            shown = self._shown_number()
        elif first == QUOTE:
            shown = f"string {debug_text(self._string())}"
        elif first == OPEN_LIST:
            shown = "sequence"
        elif first == OPEN_OBJECT:
            shown = "map"
        else:
            self._fail_next("expected value")
        self._fail(f"invalid type: {shown}, expected {expected}")

    # -- objects and lists

    def _object(
        self, fields: Mapping[str, Read], *, strict: bool = False, needs: str | None = None
    ) -> dict[str, object]:
        self._at += 1
        found: dict[str, object] = {}
        try:
            first = True
            while self._has_member(first=first):
                first = False
                key = self._string()
                read = fields.get(key)
                if read is None:
                    if strict:
                        choices = ", ".join(f"`{one}`" for one in fields)
                        raise UnlocatedFault(f"unknown field `{key}`, expected one of {choices}")
                    self._colon()
                    self.skip()
                    continue
                if key in found:
                    raise UnlocatedFault(f"duplicate field `{key}`")
                self._colon()
                found[key] = read()
            if needs is not None and needs not in found:
                raise UnlocatedFault(f"missing field `{needs}`")
        except UnlocatedFault as fault:
            if self._space() == CLOSE_OBJECT:
                self._at += 1
            self._fail(fault.text)
        self._at += 1
        return found

    def _has_member(self, *, first: bool) -> bool:
        byte = self._space()
        if byte == END:
            self._fail_next("EOF while parsing an object")
        if byte == CLOSE_OBJECT:
            return False
        if not first:
            if byte != COMMA:
                self._fail_next("expected `,` or `}`")
            self._at += 1
            byte = self._space()
            if byte == CLOSE_OBJECT:
                self._fail_next("trailing comma")
            if byte == END:
                self._fail_next("EOF while parsing a value")
        if byte != QUOTE:
            self._fail_next("key must be a string")
        return True

    def _list_form(self, name: str, fields: Mapping[str, Read], required: int) -> dict[str, object]:
        self._at += 1
        found: dict[str, object] = {}
        try:
            for key, read in fields.items():
                if not self._has_element(first=not found):
                    break
                found[key] = read()
            if len(found) < required:
                plural = "" if len(fields) == 1 else "s"
                raise UnlocatedFault(
                    f"invalid length {len(found)},"
                    f" expected {name} with {len(fields)} element{plural}"
                )
        except UnlocatedFault as fault:
            byte = self._space()
            if byte in (CLOSE_LIST, COMMA):
                self._at += 1
            if byte == COMMA:
                self._space()
            self._fail(fault.text)
        byte = self._space()
        if byte == END:
            self._fail_next("EOF while parsing a list")
        if byte == COMMA:
            self._at += 1
            if self._space() == CLOSE_LIST:
                self._fail_next("trailing comma")
            self._fail_next("trailing characters")
        if byte != CLOSE_LIST:
            self._fail_next("trailing characters")
        self._at += 1
        return found

    def _has_element(self, *, first: bool) -> bool:
        byte = self._space()
        if byte == END:
            self._fail_next("EOF while parsing a list")
        if byte == CLOSE_LIST:
            return False
        if first:
            return True
        if byte != COMMA:
            self._fail_next("expected `,` or `]`")
        self._at += 1
        byte = self._space()
        if byte == CLOSE_LIST:
            self._fail_next("trailing comma")
        if byte == END:
            self._fail_next("EOF while parsing a value")
        return True
