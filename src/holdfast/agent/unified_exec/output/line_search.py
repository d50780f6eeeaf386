"""
Finds the lines that match a pattern, many lines at a time.

Each call of the engine costs microseconds, so one call finds a whole run of matching lines.
"""

import re
from collections.abc import Iterator
from itertools import accumulate, compress, groupby, islice
from typing import NamedTuple

from holdfast.agent.unified_exec.output.patterns import compile_pattern

__all__ = ["LineRun", "LineSearch", "valid_utf8"]

# Constructs with a different meaning in a block than in a line: start and end of the text, any
# byte, disabling `m`. A false match, such as after an escaped backslash, only costs time.
_NEEDS_SINGLE_LINES = re.compile(r"\\[AzC]|\(\?\w*-\w*m")

# Runs above which a block is checked for short, equal lines.
_MANY = 128

# Mean length in bytes up to which lines are short, including the newline.
_SHORT = 12

# Most bytes in a block.
_MOST = 64 << 10

# Bytes of a very long line to search at once.
_PART = 32 << 10

# Bytes at the end of such a part to search again with the next part.
_OVERLAP = 8 << 10


class LineRun(NamedTuple):
    """Adjacent matching lines of a block."""

    first: int
    """The index of the first line, from 0."""
    lines: int
    start: int
    """Offset of the first line in bytes."""
    end: int
    """Offset after the newline of the last line."""


def valid_utf8(data: bytes) -> bytes:
    """Return `data` with U+FFFD in place of invalid UTF-8; the number of lines is unchanged."""
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


class LineSearch:
    """
    A pattern to search for in each line.

    A line is searched as a reader sees it: without its end, `\\n` or `\\r\\n`, and with U+FFFD in
    place of invalid UTF-8.
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
            # `\C`, which matches any byte, is the newline here: only that can follow `$`.
            self._run = compile_pattern(pattern, within_lines=True, wrap=r"(?:^.*{}.*$\C)+")

    @property
    def given_up(self) -> bool:
        """True if the pattern proved too slow: no line matches from then on."""
        return self._single.given_up or (self._run is not None and self._run.given_up)

    def is_quick(self, size: int) -> bool:
        """Return True if `size` bytes can be searched in the event loop."""
        return self._single.is_quick(size) and (self._run is None or self._run.is_quick(size))

    def in_blocks(self, lines: bytes) -> Iterator[bytes]:
        """Yield the lines in blocks to search at once, each ending with a newline."""
        window = min(self._single.window, _MOST if self._run is None else self._run.window)
        start = 0
        while start < len(lines):
            end = lines.rfind(b"\n", start, start + window) + 1
            if not end:
                end = lines.find(b"\n", start + window) + 1 or len(lines)
            yield lines[start:end]
            start = end

    def matching(self, block: bytes) -> tuple[bytes, int]:
        """Return the joined matching lines and their number; faster than `runs`."""
        text = self._searchable(block)
        if text is not block:
            runs = self.runs(block)
            found = b"".join([block[run.start : run.end] for run in runs])
            return found, sum(run.lines for run in runs)
        spans, flags = self._find(text)
        if flags is None:
            found = b"".join([text[start:end] for start, end in spans])
        else:
            lines = compress(text.split(b"\n"), flags)
            found = b"\n".join([*lines, b""])
        return found, found.count(b"\n")

    def runs(self, block: bytes) -> list[LineRun]:
        """Return the runs of matching lines in a block that ends with a newline."""
        if len(block) > _MOST and block.find(b"\n") == len(block) - 1:
            return [LineRun(0, 1, 0, len(block))] if self._long_line_matches(block[:-1]) else []
        text = self._searchable(block)
        spans, flags = self._find(text)
        found = _runs_of_spans(text, spans) if flags is None else _runs_of_flags(text, flags)
        if not found or text is block:
            return found
        starts = _line_starts(block)
        return [
            LineRun(run.first, run.lines, starts[run.first], starts[run.first + run.lines])
            for run in found
        ]

    def _long_line_matches(self, line: bytes) -> bool:
        """Search a very long line in parts, so that a pattern can be given up in between."""
        parts = self.in_parts()
        for at in range(0, len(line), _PART):
            parts.feed(line[at : at + _PART])
        return parts.finish()

    @staticmethod
    def _searchable(block: bytes) -> bytes:
        # For the engine, invalid bytes match nothing and `\r` is an ordinary character.
        text = valid_utf8(block)
        return text.replace(b"\r\n", b"\n") if b"\r" in text else text

    def _find(self, text: bytes) -> tuple[list[tuple[int, int]], list[bool] | None]:
        """Return the spans of runs of matching lines; or a flag for each line if it is not None."""
        if self._run is None:
            lines = text.split(b"\n")[:-1]
            return [], [self._single.search(line) is not None for line in lines]
        spans = self._spans(text)
        found = list(islice(spans, _MANY))
        if len(found) == _MANY:
            flags = self._flags(text)
            if flags is not None:
                return [], flags
            found.extend(spans)
        return found, None

    def _spans(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each run of matching lines."""
        assert self._run is not None, "the caller has looked"
        # Without the wrapping the engine is several times faster, and often there is no match.
        first = self._single.search(text, 0, len(text) - 1)
        if first is None:
            return iter(())
        return self._run.spans(text, text.rfind(b"\n", 0, first[0]) + 1)

    def _flags(self, text: bytes) -> list[bool] | None:
        """
        Return a flag for each line if most lines are duplicates; otherwise None.

        If every second one of many short lines matches, a call for each match would take long. So
        each distinct line is only searched once.
        """
        count = text.count(b"\n")
        if len(text) > count * _SHORT:
            return None
        lines = text.split(b"\n")[:-1]
        different = list(dict.fromkeys(lines))
        if len(different) * 4 > count:
            return None
        once = b"\n".join([*different, b""])
        found = b"".join([once[start:end] for start, end in self._spans(once)])
        matching = set(found.split(b"\n")[:-1])
        return list(map(matching.__contains__, lines))

    def in_parts(self) -> "PartSearch":
        """Return a search of a single line that is too long to be kept."""
        return PartSearch(self)

    def search_part(self, part: bytes, *, begins: bool, ends: bool) -> bool:
        """Return True if a part of a line matches; the part may include the line's start or end."""
        text = valid_utf8(part)
        # Anchors see one extra byte outside the match, unless the line starts or ends there.
        return bool(text and self._single.search(text, 0 if begins else 1, len(text) - (not ends)))


def _line_starts(block: bytes) -> list[int]:
    """Return the offset of each line, and of the end."""
    return list(accumulate((len(line) + 1 for line in block.split(b"\n")[:-1]), initial=0))


def _runs_of_spans(text: bytes, spans: list[tuple[int, int]]) -> list[LineRun]:
    found: list[LineRun] = []
    line = counted = 0
    for start, end in spans:
        line += text.count(b"\n", counted, start)
        lines = text.count(b"\n", start, end)
        found.append(LineRun(line, lines, start, end))
        line += lines
        counted = end
    return found


def _runs_of_flags(text: bytes, flags: list[bool]) -> list[LineRun]:
    starts = _line_starts(text)
    found: list[LineRun] = []
    line = 0
    for matches, group in groupby(flags):
        lines = len(list(group))
        if matches:
            found.append(LineRun(line, lines, starts[line], starts[line + lines]))
        line += lines
    return found


class PartSearch:
    """
    The search of a very long line in parts.

    A match longer than 8 KiB may be missed where two parts meet.
    """

    def __init__(self, search: LineSearch) -> None:
        self._search = search
        self._rest = b""
        self._begins = True
        # True once a match was found.
        self.matched = False

    def feed(self, part: bytes) -> None:
        """Search the next part."""
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
