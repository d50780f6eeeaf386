"""
Renders text of a model or a command for a person who approves it, in forms and terminals alike.

Nothing in the text can hide a part of it: each line of several begins with `| `, what cannot be
seen is escaped, and a line that begins with `…` says what was left out.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

__all__ = [
    "SHOWN_CHARACTERS",
    "SHOWN_LINES",
    "fits",
    "marked",
    "shortened",
    "shown_lines",
    "visible",
]

SHOWN_CHARACTERS = 16_384
"""Characters of a command or a patch that a question shows, as escaped."""

SHOWN_LINES = 400
"""Lines of a command or a patch that a question shows."""

# Printable by their category, but drawn as nothing or as a blank: joiners, fillers, selectors.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159"
    "\U000e0000-\U000e0fff]"
)

# Blanks in a row that could move the rest of a line out of sight.
_BLANKS = re.compile(" {40,}")

# Equal lines in a row that are shown as they are; more of them could move others out of sight.
_FEW_EQUAL = 2


def visible(text: str) -> str:
    """Return a text on one line, with escapes for what could change or hide a part of it."""
    if text.isprintable() and not _UNSEEN.search(text):
        return text
    return "".join(
        letter
        if letter.isprintable() and not _UNSEEN.match(letter)
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def shortened(text: str, most: int) -> str:
    """Return a text on one line that says how much of it is missing, if it is too long."""
    shown = visible(text)
    if len(shown) <= most:
        return shown
    return f"{shown[:most]} … and {len(shown) - most} more characters"


def shown_lines(text: str, *, most: int = SHOWN_CHARACTERS) -> list[str]:
    """
    Return the lines to show of a text: one as it is, several of them marked.

    Args:
        text: The text.
        most: Characters to show; of a longer text, the middle is left out.
    """
    lines = _escaped(text)
    if len(lines) == 1 and len(lines[0]) <= most:
        return lines
    shown = list(_compact(_cut(lines, most)))
    if len(shown) <= SHOWN_LINES:
        return shown
    head, tail = SHOWN_LINES * 2 // 3, SHOWN_LINES // 3
    missing = len(shown) - head - tail
    return [*shown[:head], f"… {missing} lines are not shown", *shown[-tail:]]


def marked(text: str) -> list[str]:
    """Return all lines of a text, each marked, however many they are; see `fits`."""
    return list(_compact(_escaped(text)))


def fits(lines: list[str]) -> bool:
    """Return True if a question can show all of these lines."""
    return len(lines) <= SHOWN_LINES and sum(map(len, lines)) <= SHOWN_CHARACTERS


def _escaped(text: str) -> list[str]:
    # Only a newline ends a line: other separators are escaped.
    lines = text.split("\n")
    return [
        # One of several that has only blanks of some kind says nothing.
        "" if len(lines) > 1 and not line.strip() else _BLANKS.sub(_count_blanks, visible(line))
        for line in lines
    ]


def _count_blanks(found: re.Match[str]) -> str:
    return f" <{len(found[0])} blanks> "


def _cut(lines: list[str], most: int) -> list[str | int]:
    """Return the beginning and the end of lines, around the number of characters between them."""
    text = "\n".join(lines)
    if len(text) <= most:
        return list(lines)
    # The end is shorter: a command says first what it does.
    head, tail = text[: most * 2 // 3], text[len(text) - most // 3 :]
    return [*head.split("\n"), len(text) - len(head) - len(tail), *tail.split("\n")]


def _compact(lines: Iterable[str | int]) -> Iterator[str]:
    """Mark lines, and replace long runs of equal ones by their number."""
    for line, run in groupby(lines):
        equal = len(list(run))
        if isinstance(line, int):
            yield f"… {line} characters are not shown"
        elif equal <= _FEW_EQUAL:
            yield from [f"| {line}".rstrip()] * equal
        elif not line:
            yield f"… {equal} empty lines"
        else:
            yield f"| {line}"
            yield f"… {equal - 1} more lines like it"
