"""A position in a text that is read from left to right."""

from __future__ import annotations

import re

__all__ = ["Cursor"]


class Cursor:
    """A text with a read position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def position(self) -> int:
        """The number of characters that were read."""
        return self._at

    def text_since(self, position: int) -> str:
        """Return the text read since `position`."""
        return self._text[position : self._at]

    def go_back(self, position: int) -> None:
        """Read again from `position` on."""
        self._at = position

    @property
    def char(self) -> str:
        """The next character; empty at the end."""
        return self._text[self._at : self._at + 1]

    def looking_at(self, text: str) -> bool:
        """Return True if `text` comes next."""
        return self._text.startswith(text, self._at)

    def matches(self, pattern: re.Pattern[str]) -> bool:
        """Return True if a match of `pattern` comes next."""
        return pattern.match(self._text, self._at) is not None

    def skip(self, count: int) -> None:
        """Skip `count` characters."""
        self._at += count

    def take(self, pattern: re.Pattern[str]) -> str | None:
        """Read a match of `pattern` at this position, if any."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]
