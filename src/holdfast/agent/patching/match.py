"""
Locates the chunks of an update in a file and builds the new content.

Lines are compared in four ways, each looser than the previous one: exactly, ignoring trailing
blanks, ignoring leading and trailing blanks, and with typographic dashes, quotes and blanks
replaced by ASCII. The first way with a match is used.

A file is encoded as a string with one character per line, so that a search is one `str.find`.
Failed searches are cached, and the total number of lines searched in one file is limited, so
that a patch designed to be slow fails with an error.
"""

import re
from collections.abc import Callable, Sequence

from holdfast.agent.patching.parse import ChunkLine, UpdateChunk
from holdfast.agent.patching.whitespace import strip, strip_end

__all__ = ["MOST_LINES", "ChunkNotFound", "TooMuchWork", "updated_text"]

MOST_LINES = 1_000_000
"""Most lines of a file: each distinct line needs a Unicode character."""

MOST_STEPS = 250_000_000
"""Most lines that all searches in one file may visit, which takes about a second."""

# A line and its ending, including the lone carriage return of old files.
_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")

# Typographic characters that models replace by ASCII, or vice versa.
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
        **dict.fromkeys(
            "\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "
        ),
    }
)


class ChunkNotFound(Exception):
    """A chunk is not in the file: its `context` line, or otherwise its `lines`."""

    def __init__(self, context: str | None, lines: Sequence[str]) -> None:
        super().__init__(context, lines)
        self.context = context
        self.lines = lines


class TooMuchWork(Exception):
    """A file has too many lines, or locating the chunks takes too long; the text says which."""


def _as_is(line: str) -> str:
    return line


def _plain(line: str) -> str:
    return strip(line).translate(_PLAIN)


_WAYS: tuple[Callable[[str], str], ...] = (_as_is, strip_end, strip, _plain)


def updated_text(content: str, chunks: Sequence[UpdateChunk]) -> str:
    """
    Return the content of a file after an update.

    Afterwards, every line has a line ending. New lines get the ending of the first line.

    Raises:
        ChunkNotFound: A chunk does not match.
        TooMuchWork: The file has too many lines, or locating the chunks takes too long.
    """
    lines, endings = _split(content)
    # Files with mixed line endings keep theirs; only new lines follow the first one.
    ending = endings[0] if endings and endings[0] else "\n"
    if endings and not endings[-1]:
        endings[-1] = ending
    searched = _Searched(lines)
    replacements: list[tuple[int, int, str]] = []
    cursor = 0
    for chunk in chunks:
        if chunk.context is not None:
            found = searched.find([chunk.context], cursor)
            if found is None:
                raise ChunkNotFound(chunk.context, ())
            # The chunk must be below its context line.
            cursor = found + 1
        old = chunk.old
        if not old:
            # A chunk without old lines has no position, so it goes to the end of the file.
            added = "".join(f"{line.text}{ending}" for line in chunk.lines)
            replacements.append((len(lines), len(lines), added))
            continue
        marked: Sequence[ChunkLine] = chunk.lines
        position = searched.find(old, cursor, at_end=chunk.at_end)
        if position is None and not old[-1]:
            # Models often end a chunk with an empty line that the file does not have.
            marked = _without_last_blank(chunk.lines)
            old = old[:-1]
            position = searched.find(old, cursor, at_end=chunk.at_end)
        if position is None:
            raise ChunkNotFound(None, chunk.old)
        at = position
        pieces: list[str] = []
        for line in marked:
            if line.mark == "+":
                pieces.append(f"{line.text}{ending}")
                continue
            if line.mark == " ":
                # From the file, since the match may not have been exact.
                pieces.append(lines[at] + endings[at])
            at += 1
        replacements.append((position, at, "".join(pieces)))
        cursor = at
    return _replaced(lines, endings, replacements)


def _without_last_blank(lines: Sequence[ChunkLine]) -> list[ChunkLine]:
    """
    Return the lines of a chunk without its last old line, which is blank.

    An empty last new line is dropped as well. A kept line that is no longer old becomes an added
    line; one that is no longer new becomes a removed line.
    """
    last_old = max(index for index, line in enumerate(lines) if line.mark != "+")
    last_new = max((index for index, line in enumerate(lines) if line.mark != "-"), default=-1)
    changed: list[ChunkLine] = []
    for index, line in enumerate(lines):
        old, new = line.mark != "+", line.mark != "-"
        if index == last_old:
            old = False
        if index == last_new and not line.text:
            new = False
        if old or new:
            changed.append(ChunkLine(" " if old and new else "-" if old else "+", line.text))
    return changed


def _split(content: str) -> tuple[list[str], list[str]]:
    """
    Return the lines of a file and their endings.

    Raises:
        TooMuchWork: There are too many.
    """
    if content.count("\n") + content.count("\r") > 2 * MOST_LINES:
        raise TooMuchWork(f"it has more than {MOST_LINES} lines")
    # The usual case, for which `split` is much faster than the regular expression.
    if "\r" not in content:
        lines = content.split("\n")
        endings = ["\n"] * len(lines)
        if lines[-1]:
            endings[-1] = ""
        else:
            del lines[-1], endings[-1]
    else:
        pairs = [(found[1], found[2]) for found in _LINE.finditer(content) if found[0]]
        lines, endings = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if len(lines) > MOST_LINES:
        raise TooMuchWork(f"it has more than {MOST_LINES} lines")
    return lines, endings


def _replaced(
    lines: list[str], endings: list[str], replacements: list[tuple[int, int, str]]
) -> str:
    pieces: list[str] = []
    done = 0
    # A chunk for the end of the file may precede other chunks.
    for first, last, text in sorted(replacements, key=lambda one: one[0]):
        pieces.extend(map(str.__add__, lines[done:first], endings[done:first]))
        pieces.append(text)
        done = last
    pieces.extend(map(str.__add__, lines[done:], endings[done:]))
    return "".join(pieces)


class _Searched:
    """The lines of a file, prepared for each of the four ways of searching."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._coded: list[tuple[dict[str, str], str] | None] = [None] * len(_WAYS)
        # Failed searches. Later searches start further down, so they would also fail.
        self._absent: set[tuple[int, str]] = set()
        self._steps = 0

    def find(self, wanted: Sequence[str], start: int, *, at_end: bool = False) -> int | None:
        """
        Return the index of the first match from `start` on, or None.

        Args:
            wanted: Lines to find; an empty list is found at `start`.
            start: Index of the first line to search.
            at_end: True if the lines must be the last ones of the file.
        """
        if at_end:
            last = len(self._lines) - len(wanted)
            if last < start:
                return None
            start = last
        for number, way in enumerate(_WAYS):
            codes, text = self._code(number, way)
            try:
                pattern = "".join([codes[way(line)] for line in wanted])
            except KeyError:
                # One of the lines is nowhere in the file.
                continue
            if (number, pattern) in self._absent:
                continue
            position = text.find(pattern, start)
            self._steps += (position if position >= 0 else len(text)) - start
            if self._steps > MOST_STEPS:
                raise TooMuchWork("it takes too long to find the chunks in it")
            if position >= 0:
                return position
            # With `at_end` only one position was tried, so others may match.
            if not at_end:
                self._absent.add((number, pattern))
        return None

    def _code(self, number: int, way: Callable[[str], str]) -> tuple[dict[str, str], str]:
        coded = self._coded[number]
        if coded is None:
            codes: dict[str, str] = {}
            # Codes start at 1. Surrogates are fine: the string is never encoded to bytes.
            text = "".join(
                [codes.setdefault(way(line), chr(len(codes) + 1)) for line in self._lines]
            )
            coded = self._coded[number] = (codes, text)
        return coded
