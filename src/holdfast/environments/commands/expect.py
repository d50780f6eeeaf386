"""Incremental pattern search in output, without an event loop or clock."""

import codecs
import re
from dataclasses import dataclass

__all__ = ["AnyPattern", "ExpectMatch", "PatternSearch"]

AnyPattern = str | bytes | re.Pattern[str] | re.Pattern[bytes]
"""A literal string or bytes, or a compiled regular expression."""

# How far before new output the match of a regular expression may begin. Without a bound, every
# `find` would search all output again.
_REACH = 64 << 10


@dataclass(frozen=True, slots=True)
class ExpectMatch:
    """A match in the output of a process."""

    before: str
    """The unread text before the match, at most about 1 MiB."""
    text: str
    """The text that matched."""
    match: re.Match[str] | re.Match[bytes] | None = None
    """The match of a regular expression, for its groups; its positions are meaningless."""
    skipped: int = 0
    """Bytes before `before` that were dropped."""


class PatternSearch:
    """An incremental search in bytes."""

    def __init__(self, pattern: AnyPattern) -> None:
        """
        Raises:
            TypeError: It is not a pattern.
            ValueError: It is empty.
        """
        if not isinstance(pattern, str | bytes | re.Pattern):
            raise TypeError(
                "a pattern must be a string, bytes or a compiled regular expression,"
                f" not {type(pattern).__name__}"
            )
        if not pattern:
            raise ValueError("the pattern is empty")
        self._pattern = pattern
        self._data = bytearray()
        self._searched = 0
        self._skipped = 0
        self.end = 0
        """Offset of the end of the match, once found."""

    @property
    def seen(self) -> str:
        """The bytes added and not dropped, as text."""
        return self._data.decode(errors="replace")

    @property
    def size(self) -> int:
        """Number of those bytes."""
        return len(self._data)

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self._data += data

    def skip(self, size: int) -> None:
        """Drop the first `size` bytes."""
        del self._data[:size]
        self._searched = max(0, self._searched - size)
        self._skipped += size

    def find(self) -> ExpectMatch | None:
        """Return the first match that involves new bytes, or None."""
        pattern, searched = self._pattern, self._searched
        self._searched = len(self._data)
        if isinstance(pattern, re.Pattern):
            return self._find_regex(pattern, max(0, searched - _REACH))
        literal = pattern.encode() if isinstance(pattern, str) else pattern
        # A match may begin in bytes searched before: up to the length of the literal less one.
        at = self._data.find(literal, max(0, searched - len(literal) + 1))
        return None if at < 0 else self._found(at, at + len(literal), None)

    def _find_regex(
        self, pattern: re.Pattern[str] | re.Pattern[bytes], start: int
    ) -> ExpectMatch | None:
        if isinstance(pattern.pattern, bytes):
            # A copy, since the match object refers to the searched bytes.
            found_bytes = pattern.search(bytes(self._data[start:]))
            if found_bytes is None:
                return None
            return self._found(start + found_bytes.start(), start + found_bytes.end(), found_bytes)
        if start:
            start += _letter_rest(self._data[start : start + 4])
        # `surrogateescape` is reversible, so positions in the text map to positions in the bytes.
        # Not final, so that half a character at the end cannot match.
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        text = decoder.decode(bytes(self._data[start:]))
        found = pattern.search(text)
        if found is None:
            return None
        before, until = (start + _size(text[:at]) for at in found.span())
        return self._found(before, until, found)

    def _found(
        self, start: int, end: int, match: re.Match[str] | re.Match[bytes] | None
    ) -> ExpectMatch:
        self.end = end
        return ExpectMatch(
            before=self._data[:start].decode(errors="replace"),
            text=self._data[start:end].decode(errors="replace"),
            match=match,
            skipped=self._skipped,
        )


def _letter_rest(data: bytes | bytearray) -> int:
    """Return the number of leading bytes that continue an earlier character."""
    for at, byte in enumerate(data):
        if byte & 0xC0 != 0x80:
            return at
    return 0


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
