"""
Reads JSON text of an expected shape: structures, strings, numbers, names.

`json` checks the syntax and finds the ends of strings and of skipped values. This module knows
which type is expected at which position, because errors report to the model where the wrong value
ends. If a text has several faults, syntax errors take precedence.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn, TypeAlias, TypeVar

from holdfast.base.dialect import debug_text, float_text

__all__ = ["Fault", "JsonReader", "Number", "Read", "UnlocatedFault"]

T = TypeVar("T")

_U64_MAX = 2**64 - 1
_I64_MIN = -(2**63)

_BLANKS = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?([0-9]+)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# An escape of a lone surrogate. The first alternative consumes whole pairs and all other escapes.
_HALF_PAIR = re.compile(
    r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u(?![dD][89a-fA-F])|\\[^u]"
    r"|(?P<high>\\u[dD][89abAB]..)|(?P<low>\\u[dD][c-fC-F]..)"
)
_NUMBER_STARTS = frozenset("-0123456789")
_WORDS = {"n": "null", "t": "true", "f": "false"}

# Error texts by the beginning of the message from `json`.
_SYNTAX = {
    "Expecting value": "expected value",
    "Expecting property name": "key must be a string",
    "Expecting ':'": "expected `:`",
    "Invalid \\": "invalid escape",
    "Extra data": "trailing characters",
}
_KINDS = {"{": "an object", "[": "a list", "": "a value"}

Read: TypeAlias = Callable[[], object]
"""Function that reads one value at the reader's position and moves the position past it."""


class Number(str):
    """A number as it was written."""

    __slots__ = ()


class Fault(Exception):
    """The JSON does not have the expected shape; `text` says why, with line and column."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class UnlocatedFault(Exception):
    """A fault that is located at the end of the enclosing object or list."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _NotJson(Exception):
    """A number that `json` accepts although it is not JSON, such as NaN."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NotJson(name)


# Digits stay strings: only requested numbers are converted.
_SKIPPING = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant)
_KEEPING = json.JSONDecoder(parse_int=Number, parse_float=Number, object_pairs_hook=tuple)


class JsonReader:
    """A single pass over a JSON text. Every method raises `Fault` at the first fault."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    # -- the whole text

    def document(
        self, name: str, fields: Mapping[str, Read], *, required: int = 0, needs: str | None = None
    ) -> dict[str, object]:
        """Read the whole text as a structure; see `structure`."""
        self._check_syntax()
        return self.structure(name, fields, required=required, needs=needs)

    def _check_syntax(self) -> None:
        """Refuse invalid syntax. All other methods rely on this check."""
        text = self._text
        try:
            _SKIPPING.decode(text)
        except json.JSONDecodeError as error:
            self._refuse_syntax(error)
        except _NotJson as error:
            raise Fault(f"`{error}` is not a JSON number") from None
        except RecursionError:
            raise Fault("the arguments are nested too deeply") from None

    def _refuse_syntax(self, error: json.JSONDecodeError) -> NoReturn:
        """Raise a syntax error in the style of the other faults."""
        text, self._at = self._text, error.pos
        if error.msg.startswith("Unterminated string"):
            self._at = len(text)
            self._fail("EOF while parsing a string")
        if error.msg.startswith("Invalid control"):
            self._fail("control character (\\u0000-\\u001F) found while parsing a string")
        here, before = text[error.pos : error.pos + 1], text[: error.pos].rstrip()[-1:]
        around = self._open_bracket()
        if not here:
            self._fail(f"EOF while parsing {_KINDS['' if before in ',:' else around]}")
        if before == "," and here in "}]":
            self._fail_next("trailing comma")
        if error.msg.startswith("Expecting ','"):
            if text[error.pos - 1].isdigit() and here in ".eE0123456789":
                self._fail_next("invalid number")
            self._fail_next(f"expected `,` or `{'}' if around == '{' else ']'}`")
        words = [said for start, said in _SYNTAX.items() if error.msg.startswith(start)]
        # A bad escape is reported one column after its backslash.
        self._at += words == ["invalid escape"]
        self._fail_next(words[0] if words else error.msg)

    def _open_bracket(self) -> str:
        """Return the innermost open bracket at this position; empty outside all brackets."""
        brackets: list[str] = []
        for bracket in re.findall(r"[\[\]{}]", self._without_strings()[: self._at]):
            if bracket in "[{":
                brackets.append(bracket)
            else:
                del brackets[-1:]
        return brackets[-1] if brackets else ""

    def _without_strings(self) -> str:
        return _STRING.sub(lambda string: "." * len(string[0]), self._text)

    # -- values

    def structure(
        self, name: str, fields: Mapping[str, Read], *, required: int = 0, needs: str | None = None
    ) -> dict[str, object]:
        """
        Read an object, or a list with its members in the order of `fields`.

        Args:
            name: The name of the structure in errors.
            fields: Readers for the known members; all others are skipped.
            required: The minimum length of a list.
            needs: A required member of an object.

        Returns:
            The members found.
        """
        first = self._next()
        if first == "{":
            return self._object(fields, needs=needs)
        if first == "[":
            return self._list_form(name, fields, required)
        return self.wrong(name)

    def strict_object(self, fields: Mapping[str, Read]) -> dict[str, object]:
        """Read an object that only has these members."""
        if self._next() != "{":
            self.wrong("an object")
        return self._object(fields, strict=True)

    def optional(self, read: Read) -> Read:
        """Return a reader that reads `null` as None and passes everything else to `read`."""

        def read_optional() -> object:
            if self._next() == "n":
                self._word()
                return None
            return read()

        return read_optional

    def string(self) -> str:
        if self._next() != '"':
            self.wrong("a string")
        return self._string()

    def boolean(self) -> bool:
        first = self._next()
        if first not in "tf":
            self.wrong("a boolean")
        self._word()
        return first == "t"

    def integer(self, expected: str, low: int, high: int) -> int:
        """Read an integer in JSON notation, which excludes `1000.0`."""
        if self._next() not in _NUMBER_STARTS:
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
        """Read a list of integers; see `integer`."""
        return self._elements(lambda: self.integer(expected, low, high))

    def _elements(self, read: Callable[[], T]) -> tuple[T, ...]:
        if self._next() != "[":
            self.wrong("a sequence")
        self._at += 1
        found: list[T] = []
        while self._next() != "]":
            if found:
                self._at += 1
            found.append(read())
        self._at += 1
        return tuple(found)

    def variant(self, names: tuple[str, ...]) -> str:
        """Read one of several names, as a string or as `{"name": null}`."""
        first = self._next()
        if first == '"':
            return self._variant_name(names)
        if first != "{":
            self._fail_next("expected value")
        self._at += 1
        if self._next() != '"':
            self._fail_next("expected value")
        name = self._variant_name(names)
        self._next()
        self._at += 1
        if self._next() != "n":
            self.wrong("unit")
        self._word()
        if self._next() != "}":
            # A second member.
            self._fail("expected value")
        self._at += 1
        return name

    def _variant_name(self, names: tuple[str, ...]) -> str:
        name = self._string()
        if name not in names:
            choices = ", ".join(f"`{one}`" for one in names)
            self._fail(f"unknown variant `{name}`, expected one of {choices}")
        return name

    def anything(self) -> object:
        """Read any value; an object becomes a tuple of pairs, which preserves duplicate keys."""
        self._next()
        start = self._at
        value, self._at = _KEEPING.raw_decode(self._text, start)
        for string in _STRING.finditer(self._text, start, self._at):
            self._check_pairs(string.start(), string.end())
        return value

    def wrong(self, expected: str) -> NoReturn:
        """Refuse the value at this position because it is not of the `expected` type."""
        first = self._next()
        if first in _WORDS:
            word = self._word()
            shown = "null" if word == "null" else f"boolean `{word}`"
        elif first in _NUMBER_STARTS:
            shown = self._shown_number()
        elif first == '"':
            shown = f"string {debug_text(self._string())}"
        else:
            shown = "sequence" if first == "[" else "map"
        self._fail(f"invalid type: {shown}, expected {expected}")

    # -- objects and lists

    def _object(
        self, fields: Mapping[str, Read], *, strict: bool = False, needs: str | None = None
    ) -> dict[str, object]:
        found: dict[str, object] = {}
        try:
            for key in self._keys():
                read = fields.get(key)
                if read is None:
                    if strict:
                        choices = ", ".join(f"`{one}`" for one in fields)
                        raise UnlocatedFault(f"unknown field `{key}`, expected one of {choices}")
                    self._pass_colon()
                    self._at = _SKIPPING.raw_decode(self._text, self._at)[1]
                    continue
                if key in found:
                    raise UnlocatedFault(f"duplicate field `{key}`")
                self._pass_colon()
                found[key] = read()
            if needs is not None and needs not in found:
                raise UnlocatedFault(f"missing field `{needs}`")
        except UnlocatedFault as fault:
            if self._next() == "}":
                self._at += 1
            self._fail(fault.text)
        self._at += 1
        return found

    def _keys(self) -> Iterator[str]:
        """Yield the key of each member; the caller skips the colon and the value."""
        self._at += 1
        while (first := self._next()) != "}":
            if first == ",":
                self._at += 1
                self._next()
            yield self._string()

    def _pass_colon(self) -> None:
        self._next()
        self._at += 1
        self._next()

    def _list_form(self, name: str, fields: Mapping[str, Read], required: int) -> dict[str, object]:
        self._at += 1
        found: dict[str, object] = {}
        try:
            for key, read in fields.items():
                if self._next() == "]":
                    break
                if found:
                    self._at += 1
                found[key] = read()
            if len(found) < required:
                plural = "" if len(fields) == 1 else "s"
                raise UnlocatedFault(
                    f"invalid length {len(found)},"
                    f" expected {name} with {len(fields)} element{plural}"
                )
        except UnlocatedFault as fault:
            first = self._next()
            if first in "],":
                self._at += 1
            if first == ",":
                self._next()
            self._fail(fault.text)
        if self._next() != "]":
            # After a comma there is one element too many.
            self._at += bool(found)
            self._next()
            self._fail_next("trailing characters")
        self._at += 1
        return found

    # -- words, strings, numbers

    def _word(self) -> str:
        word = _WORDS[self._text[self._at]]
        self._at += len(word)
        return word

    def _string(self) -> str:
        start = self._at
        text, self._at = _SKIPPING.raw_decode(self._text, start)
        assert isinstance(text, str), "a quote is at this position"
        if not text.isascii():
            self._check_pairs(start, self._at)
        return text

    def _check_pairs(self, start: int, end: int) -> None:
        """Refuse a string with a lone surrogate, which is not valid text."""
        for found in _HALF_PAIR.finditer(self._text, start, end):
            if found["low"]:
                self._at = found.end()
                self._fail("lone leading surrogate in hex escape")
            if found["high"]:
                self._at = found.end()
                self._fail_next("unexpected end of hex escape")

    def _shown_number(self) -> str:
        number = self._number(refuse=False)
        if isinstance(number, int):
            return f"integer `{number}`"
        return "integer `0`" if self._text[: self._at].endswith("-0") else "number"

    def _number(self, *, refuse: bool = True) -> int | float:
        """Read a number; as an integer if written as one that fits into 64 bits."""
        text = _NUMBER.match(self._text, self._at)
        # The syntax was checked.
        assert text is not None
        self._at = text.end()
        if text[2] is None and text[3] is None and len(text[1]) <= 20 and text[0] != "-0":
            number = int(text[0])
            if _I64_MIN <= number <= _U64_MAX:
                return number
        value = float(text[0])
        if refuse and value in (float("inf"), float("-inf")):
            self._fail("number out of range")
        return value

    # -- positions

    def _next(self) -> str:
        """Skip blanks and return the next character without consuming it; empty at the end."""
        blanks = _BLANKS.match(self._text, self._at)
        # The pattern matches the empty string, too.
        assert blanks is not None
        self._at = blanks.end()
        return self._text[self._at : self._at + 1]

    def _fail(self, text: str) -> NoReturn:
        """Raise a fault at the current position; columns count bytes."""
        before = self._text[: self._at]
        column = len(before[before.rfind("\n") + 1 :].encode())
        raise Fault(f"{text} at line {before.count(chr(10)) + 1} column {column}")

    def _fail_next(self, text: str) -> NoReturn:
        """Raise a fault at the next character, if there is one."""
        self._at = min(self._at + 1, len(self._text))
        self._fail(text)
