"""
Finds the lines that match a pattern, in blocks of many lines at a time.

A call of the engine costs microseconds, so there is not one for each line: one call finds
a whole run of neighbouring lines that match.
"""

import re
from itertools import accumulate
from typing import NamedTuple

from holdfast.unified_exec.patterns import compile_pattern

__all__ = ["LineRun", "LineSearch", "valid_utf8"]

_NEEDS_SINGLE_LINES = re.compile(r"\\[AzC]|\(\?\w*-\w*m")
"""
What has another meaning in a block than in a line: borders of the text, any byte, no `m`.

Found where it is not meant, as behind an escaped backslash, it only costs time.
"""

_OVERLAP = 8 << 10
"""Bytes of a very long line that are searched again together with what follows them."""


class LineRun(NamedTuple):
    """Neighbouring lines of a block that match."""

    first: int
    """The index of the first one, from 0."""
    count: int
    start: int
    """Where the first one begins, in bytes."""
    end: int
    """Where the last one ends, behind its newline."""


def valid_utf8(data: bytes) -> bytes:
    """Return `data` with U+FFFD in place of what is no UTF-8; it has as many lines."""
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


class LineSearch:
    """
    A pattern that is looked for in each line.

    A line is searched without its end, `\\n` or `\\r\\n`, and with U+FFFD in place of what is
    no UTF-8: as a reader sees it.
    """

    def __init__(self, pattern: str) -> None:
        """
        Compile the pattern.

        Raises:
            InvalidParams: As for `compile_pattern`.
        """
        self.pattern = pattern
        self._single = compile_pattern(pattern, within_lines=True)
        self._run = None
        if not _NEEDS_SINGLE_LINES.search(pattern):
            # `\C` is the newline here: it is any byte, and only a newline is behind a `$`.
            self._run = compile_pattern(pattern, within_lines=True, wrap=r"(?:^.*{}.*$\C)+")

    def runs(self, block: bytes) -> list[LineRun]:
        """Return the lines that match; the block ends with a newline."""
        # The engine matches invalid bytes with nothing, and takes `\r` for a letter.
        text = valid_utf8(block)
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        found = self._runs_one_by_one(text) if self._run is None else self._runs_at_once(text)
        if not found or text is block:
            return found
        lengths = (len(line) + 1 for line in block.split(b"\n"))
        starts = list(accumulate(lengths, initial=0))
        return [
            LineRun(run.first, run.count, starts[run.first], starts[run.first + run.count])
            for run in found
        ]

    def _runs_at_once(self, text: bytes) -> list[LineRun]:
        found: list[LineRun] = []
        assert self._run is not None, "the caller has looked"
        # Without the wrapping the engine is several times faster; often there is no match.
        first = self._single.search(text, 0, len(text) - 1)
        if first is None:
            return found
        line, counted = 0, 0
        at = text.rfind(b"\n", 0, first[0]) + 1
        end = len(text)
        while at < end:
            span = self._run.search(text, at)
            if span is None:
                break
            start, at = span
            line += text.count(b"\n", counted, start)
            count = text.count(b"\n", start, at)
            found.append(LineRun(line, count, start, at))
            line += count
            counted = at
        return found

    def _runs_one_by_one(self, text: bytes) -> list[LineRun]:
        found: list[LineRun] = []
        at = 0
        lines = text.split(b"\n")
        lines.pop()
        for number, line in enumerate(lines):
            end = at + len(line) + 1
            if self._single.search(line) is not None:
                found.append(LineRun(number, 1, at, end))
            at = end
        return found

    def in_parts(self) -> "PartSearch":
        """Return a search of one line that is too long to be kept."""
        return PartSearch(self)

    def search_part(self, part: bytes, *, begins: bool, ends: bool) -> bool:
        """Return True if a part of a line matches, with or without its begin and end."""
        text = valid_utf8(part)
        # The anchors see one byte that belongs to no match, unless the line is over there.
        return bool(text and self._single.search(text, 0 if begins else 1, len(text) - (not ends)))


class PartSearch:
    """
    The search of one very long line, part by part.

    A match that is longer than 8 KiB may be missed where two parts meet.
    """

    def __init__(self, search: LineSearch) -> None:
        self._search = search
        self._rest = b""
        self._begins = True
        self.matched = False
        """True as soon as a match was found."""

    def feed(self, part: bytes) -> None:
        """Search what comes next."""
        if self.matched or not part:
            return
        window = self._rest + part
        self.matched = self._search.search_part(window, begins=self._begins, ends=False)
        if len(window) > _OVERLAP:
            self._begins = False
        self._rest = window[-_OVERLAP:]

    def finish(self) -> bool:
        """Search the end of the line; return True if the line matches."""
        if not self.matched:
            rest = self._rest.removesuffix(b"\r")
            self.matched = self._search.search_part(rest, begins=self._begins, ends=True)
        return self.matched
