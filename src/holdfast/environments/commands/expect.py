"""Looks for a pattern in output that is still coming. Pure: no event loop and no clock."""

import codecs
import re
from dataclasses import dataclass

__all__ = ["AnyPattern", "ExpectMatch", "PatternSearch"]

AnyPattern = str | bytes | re.Pattern[str] | re.Pattern[bytes]
"""A literal text, or a compiled regular expression."""

# Bytes before new output in which a match of a regular expression may begin.
_REACH = 64 << 10


@dataclass(frozen=True, slots=True)
class ExpectMatch:
    """A pattern that was found in what a process wrote."""

    before: str
    """The text before it that nobody had read, about 1 MiB at most."""
    text: str
    """The text that matched."""
    match: re.Match[str] | re.Match[bytes] | None = None
    """The match of a regular expression, for its groups; its positions mean nothing."""
    skipped: int = 0
    """Bytes before `before` that were passed over."""


class PatternSearch:
    """A search in bytes that are added piece by piece."""

    def __init__(self, pattern: AnyPattern) -> None:
        """
        Raises:
            TypeError: It is no pattern.
            ValueError: It is empty.
        """
        if not isinstance(pattern, str | bytes | re.Pattern):
            raise TypeError(
                "a pattern is a text, bytes or a compiled regular expression,"
                f" not {type(pattern).__name__}"
            )
        if not pattern:
            raise ValueError("the pattern is empty")
        self._pattern = pattern
        self._data = bytearray()
        self._searched = 0
        self._skipped = 0
        self.end = 0
        """Bytes up to the end of the match, once there is one."""

    @property
    def seen(self) -> str:
        """Everything that was added and not skipped, as text."""
        return self._data.decode(errors="replace")

    @property
    def size(self) -> int:
        """Bytes of that."""
        return len(self._data)

    def add(self, data: bytes) -> None:
        """Take what comes next."""
        self._data += data

    def skip(self, size: int) -> None:
        """Forget the first bytes."""
        del self._data[:size]
        self._searched = max(0, self._searched - size)
        self._skipped += size

    def find(self) -> ExpectMatch | None:
        """Return the first match, unless it was looked for in vain before."""
        pattern, searched = self._pattern, self._searched
        self._searched = len(self._data)
        if isinstance(pattern, re.Pattern):
            return self._find_regex(pattern, max(0, searched - _REACH))
        literal = pattern.encode() if isinstance(pattern, str) else pattern
        at = self._data.find(literal, max(0, searched - len(literal) + 1))
        return None if at < 0 else self._found(at, at + len(literal), None)

    def _find_regex(
        self, pattern: re.Pattern[str] | re.Pattern[bytes], start: int
    ) -> ExpectMatch | None:
        if isinstance(pattern.pattern, bytes):
            # A copy: the match refers to what it was found in.
            found_bytes = pattern.search(bytes(self._data[start:]))
            if found_bytes is None:
                return None
            return self._found(start + found_bytes.start(), start + found_bytes.end(), found_bytes)
        if start:
            start += _letter_rest(self._data[start : start + 4])
        # Reversible, so that positions in the text are positions in the bytes; and not
        # final, so that half of a letter at the end does not match.
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
    """Return how many bytes at the start belong to a letter that began before."""
    for at, byte in enumerate(data):
        if byte & 0xC0 != 0x80:
            return at
    return 0


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
