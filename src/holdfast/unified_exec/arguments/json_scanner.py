"""
Walks over JSON text byte by byte, with the original decoder's words for what is wrong.

The model reads these errors, with the line and column where decoding stopped. A decoder that
first makes Python objects has lost the positions, the order of the members and doubled keys:
this one goes from left to right and stops at the first fault.
What is wanted at which position is the business of `json_reader`.
"""

import json
import re
from typing import NoReturn

__all__ = [
    "CLOSE_LIST",
    "CLOSE_OBJECT",
    "COMMA",
    "END",
    "NUMBER_STARTS",
    "OPEN_LIST",
    "OPEN_OBJECT",
    "QUOTE",
    "WORDS",
    "Fault",
    "JsonScanner",
]

_U64_MAX = 2**64 - 1
_I64_MIN = -(2**63)
_I32_MAX = 2**31 - 1

END = -1
"""Stands for a byte where the text has ended."""

_LAST_BLANK = ord(" ")
_SPACE = re.compile(rb"[ \t\n\r]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
# The rest of a string behind its first quote. Possessive: a long string costs no memory.
_STRING = re.compile(
    rb'((?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+)"',
)
_NUMBER = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEX = re.compile(rb"[0-9a-fA-F]{4}")

QUOTE, COMMA, _COLON = b'",:'
OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT = b"[]{}"
_BACKSLASH = ord("\\")
WORDS = {b"n"[0]: b"null", b"t"[0]: b"true", b"f"[0]: b"false"}
_DIGITS = frozenset(b"0123456789")
NUMBER_STARTS = _DIGITS | {b"-"[0]}
_EXPONENT_STARTS = frozenset(b"eE")
_ESCAPES = frozenset(b'"\\/bfnrt')


class Fault(Exception):
    """The text is not what was wanted; `text` says why, with line and column."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class JsonScanner:
    """A position in a JSON text. Every method raises `Fault` at the first fault."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def skip(self) -> None:
        """Pass over one value of any kind; only its syntax is checked."""
        open_brackets: list[int] = []
        while True:
            first = self._value_start()
            if first == QUOTE:
                self._skip_string()
            elif first in NUMBER_STARTS:
                self._scan_number(at_end="invalid number")
            elif first in WORDS:
                self._word()
            elif first in (OPEN_LIST, OPEN_OBJECT):
                self._at += 1
                open_brackets.append(first)
                if not self._closes(open_brackets[-1]):
                    self._skip_key(open_brackets)
                    continue
                self._at += 1
                open_brackets.pop()
            else:
                self._fail_next("expected value")
            if not self._skip_to_next_value(open_brackets):
                return

    def _skip_to_next_value(self, open_brackets: list[int]) -> bool:
        """Pass over closing brackets, a comma and a key; return False at the end."""
        while open_brackets:
            bracket = open_brackets[-1]
            if self._closes(bracket):
                self._at += 1
                open_brackets.pop()
                continue
            if self._peek() != COMMA:
                closing = "]" if bracket == OPEN_LIST else "}"
                self._fail_next(f"expected `,` or `{closing}`")
            self._at += 1
            self._skip_key(open_brackets)
            return True
        return False

    def _closes(self, bracket: int) -> bool:
        """Return whether the next byte closes the bracket; the end of the text is a fault."""
        byte = self._space()
        if byte == END:
            kind = "a list" if bracket == OPEN_LIST else "an object"
            self._fail_next(f"EOF while parsing {kind}")
        return byte == (CLOSE_LIST if bracket == OPEN_LIST else CLOSE_OBJECT)

    def _skip_key(self, open_brackets: list[int]) -> None:
        if open_brackets[-1] == OPEN_LIST:
            return
        byte = self._space()
        if byte == END:
            self._fail_next("EOF while parsing an object")
        if byte != QUOTE:
            self._fail_next("key must be a string")
        self._skip_string()
        self._colon()

    def _colon(self) -> None:
        byte = self._space()
        if byte == END:
            self._fail_next("EOF while parsing an object")
        if byte != _COLON:
            self._fail_next("expected `:`")
        self._at += 1

    # -- words and strings

    def _word(self) -> str:
        """Read `null`, `true` or `false`, whichever its first letter promises."""
        word = WORDS[self._data[self._at]]
        for expected in word:
            if self._at == len(self._data):
                self._fail("EOF while parsing a value")
            self._at += 1
            if self._data[self._at - 1] != expected:
                self._fail("expected ident")
        return word.decode()

    def _skip_string(self) -> None:
        whole = _STRING.match(self._data, self._at + 1)
        if whole is None:
            self._find_string_fault(kept=False)
        self._at = whole.end()

    def _string(self) -> str:
        whole = _STRING.match(self._data, self._at + 1)
        if whole is None:
            self._find_string_fault(kept=True)
        text = whole[1].decode()
        if "\\" in text:
            text = json.loads(f'"{text}"')
            if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
                self._find_string_fault(kept=True)
        self._at = whole.end()
        return text

    def _find_string_fault(self, *, kept: bool) -> NoReturn:
        """Find the fault of the string here. Of one that is not kept, surrogates do not count."""
        self._at += 1
        while True:
            plain = _PLAIN.match(self._data, self._at)
            # The pattern matches the empty string, too.
            assert plain is not None
            self._at = plain.end()
            byte = self._peek()
            if byte == END:
                self._fail("EOF while parsing a string")
            if byte != _BACKSLASH:
                # The string is known to have a fault before its end.
                assert byte != QUOTE
                # A decoder that keeps the string has taken the byte already.
                self._at += kept
                self._fail("control character (\\u0000-\\u001F) found while parsing a string")
            self._at += 1
            self._check_escape(kept=kept)

    def _check_escape(self, *, kept: bool) -> None:
        byte = self._next_of_string()
        if byte in _ESCAPES:
            return
        if byte != b"u"[0]:
            self._fail("invalid escape")
        unit = self._hex()
        if not kept or not 0xD800 <= unit <= 0xDFFF:
            return
        if unit >= 0xDC00:
            self._fail("lone leading surrogate in hex escape")
        for expected in b"\\u":
            if self._next_of_string() != expected:
                self._fail("unexpected end of hex escape")
        if not 0xDC00 <= self._hex() <= 0xDFFF:
            self._fail("lone leading surrogate in hex escape")

    def _next_of_string(self) -> int:
        byte = self._peek()
        if byte == END:
            self._fail("EOF while parsing a string")
        self._at += 1
        return byte

    def _hex(self) -> int:
        digits = self._data[self._at : self._at + 4]
        self._at += len(digits)
        if len(digits) < 4:
            self._fail("EOF while parsing a string")
        if not _HEX.fullmatch(digits):
            self._fail("invalid escape")
        return int(digits, 16)

    # -- numbers

    def _scan_number(self, *, at_end: str) -> "re.Match[bytes]":
        """
        Pass over a number.

        Args:
            at_end: What is wrong if the text ends inside of it.
        """
        number = _NUMBER.match(self._data, self._at)
        if number is None:
            # The fault is after the minus sign.
            self._fail_number(self._at + 1, at_end)
        self._at = end = number.end()
        whole, fraction, exponent = number.groups()
        rest = self._peek()
        if exponent is None and rest in _EXPONENT_STARTS:
            signed = self._data[end + 1 : end + 2] in (b"+", b"-")
            self._fail_number(end + 1 + signed, at_end)
        if exponent is None and fraction is None and rest == b"."[0]:
            self._fail_number(end + 1, at_end)
        if whole == b"0" and fraction is None and exponent is None and rest in _DIGITS:
            self._fail_number(end, at_end)
        return number

    def _fail_number(self, at: int, at_end: str) -> NoReturn:
        self._at = at
        self._fail_next(at_end if at >= len(self._data) else "invalid number")

    def _shown_number(self) -> str:
        text = self._scan_number(at_end="EOF while parsing a value")
        if text[2] is None and text[3] is None and len(text[1]) <= 20:
            number = int(text[0])
            if _I64_MIN <= number <= _U64_MAX:
                return f"integer `{number}`"
        return "number"

    def _number(self) -> int | float:
        """Read a number: an integer if it is written as one and fits into 64 bits."""
        start = self._at
        text = self._scan_number(at_end="EOF while parsing a value")
        whole, fraction, exponent = text.groups()
        negative = self._data[start] == b"-"[0]
        if fraction is None and exponent is None and len(whole) <= 20:
            number = int(whole)
            if not negative and number <= _U64_MAX:
                return number
            if negative and 0 < number <= -_I64_MIN:
                return -number
        value = self._float(whole, fraction, exponent)
        return -value if negative else value

    def _float(self, whole: bytes, fraction: bytes | None, exponent: bytes | None) -> float:
        """Compute a float as the original does: 64 bits of digits, then one power of ten."""
        digits, used = _first_digits(0, whole)
        power = len(whole) - used
        if fraction is not None:
            digits, used = _first_digits(digits, fraction[1:])
            power -= used
        if exponent is not None:
            power += self._exponent(exponent, zero=digits == 0)
        value = float(digits)
        while power < -308 and value:
            value /= 1e308
            power += 308
        if not value:
            return 0.0
        if power > 308:
            self._fail("number out of range")
        value = value * float(f"1e{power}") if power >= 0 else value / float(f"1e{-power}")
        if value == float("inf"):
            self._fail("number out of range")
        return value

    def _exponent(self, text: bytes, *, zero: bool) -> int:
        digits = text[1:].lstrip(b"+-")
        value = 0
        for index, digit in enumerate(digits):
            value = value * 10 + digit - b"0"[0]
            if value > _I32_MAX:
                if text[1:2] != b"-" and not zero:
                    # Decoding stops at the digit that is one too many.
                    self._at -= len(digits) - index - 1
                    self._fail("number out of range")
                break
        return -value if text[1:2] == b"-" else value

    # -- positions

    def _peek(self) -> int:
        return self._data[self._at] if self._at < len(self._data) else END

    def _space(self) -> int:
        """Pass over blanks and return the next byte, which stays."""
        byte = self._peek()
        if byte > _LAST_BLANK:
            # The common case: a regular expression would take three times as long.
            return byte
        blanks = _SPACE.match(self._data, self._at)
        # The pattern matches the empty string, too.
        assert blanks is not None
        self._at = blanks.end()
        return self._peek()

    def _value_start(self) -> int:
        byte = self._space()
        if byte == END:
            self._fail_next("EOF while parsing a value")
        return byte

    def _fail(self, text: str) -> NoReturn:
        """Raise a fault that is seen after what was read last."""
        line = self._data.count(b"\n", 0, self._at) + 1
        column = self._at - (self._data.rfind(b"\n", 0, self._at) + 1)
        raise Fault(f"{text} at line {line} column {column}")

    def _fail_next(self, text: str) -> NoReturn:
        """Raise a fault about the next byte, if there is one."""
        self._at = min(self._at + 1, len(self._data))
        self._fail(text)


def _first_digits(value: int, digits: bytes) -> tuple[int, int]:
    """Add digits to a value while it fits into 64 bits; return it and how many fitted."""
    for index, digit in enumerate(digits):
        longer = value * 10 + digit - b"0"[0]
        if longer > _U64_MAX:
            return value, index
        value = longer
    return value, len(digits)
