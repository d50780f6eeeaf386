"""
Renders text of a model or a command for a person who approves it, in forms and terminals.

Nothing in the text can hide a part of it: if there are several lines, each starts with `| `,
invisible characters are escaped, and a line that starts with `…` says what was omitted.

Nor can a command or a path be displayed in a different order. Displays draw letters of Hebrew,
Arabic and other scripts from right to left, including everything between them: with such letters
for X and Y, `a X && Y` becomes `a Y && X`. If that could happen in a line, these letters are
escaped. Prose is unchanged: its order is that of its language.
"""

import re
import unicodedata
from collections import deque
from itertools import groupby
from typing import TypeAlias

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
"""Most characters of a command or patch in a question, after escaping."""

SHOWN_LINES = 400
"""Most lines of a command or patch in a question."""

# Printable by category, but invisible or blank: joiners, fillers, selectors.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159"
    "\U000e0000-\U000e0fff]"
)

# Bidirectional classes of letters and digits drawn from right to left, or among such letters.
_FROM_RIGHT = frozenset(("R", "AL", "AN"))

# The Unicode blocks that contain them.
_MAYBE_FROM_RIGHT = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001efff]"
)

# Lines to show from the beginning and the end of a longer text; a run may take one more.
_HEAD_LINES = SHOWN_LINES * 2 // 3 - 2
_TAIL_LINES = SHOWN_LINES // 3

# Most combining marks on one letter: more would be drawn over other lines.
_MARKS = 3

# Consecutive blanks that could move the rest of a line out of sight.
_BLANKS = re.compile(" {40,}")

# Most equal consecutive lines to show; more could move others out of sight.
_FEW_EQUAL = 2


# A line and its number of consecutive occurrences.
_Run: TypeAlias = tuple[str, int]


def visible(text: str, *, prose: bool = False) -> str:
    """
    Return a text on one line, with escapes for characters that could change or hide a part of it.

    Args:
        text: The text.
        prose: True to keep right-to-left letters.
    """
    if text.isascii() and text.isprintable():
        return text
    return _seen(text if prose else _in_order(text))


def _seen(text: str) -> str:
    """Return a text with escapes for characters that are not visible at their position."""
    shown = []
    marks = 0
    for letter in text:
        marks = marks + 1 if unicodedata.category(letter) in ("Mn", "Me") else 0
        if letter.isprintable() and marks <= _MARKS and not _UNSEEN.match(letter):
            shown.append(letter)
        else:
            shown.append(_escape(letter))
    return "".join(shown)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def _in_order(line: str) -> str:
    """Return a line with escapes for letters that could be displayed out of order."""
    if not _MAYBE_FROM_RIGHT.search(line) or _keeps_order(line):
        return line
    return _without_right(line)


def _without_right(text: str) -> str:
    return _MAYBE_FROM_RIGHT.sub(_escape_from_right, text)


def _escape_from_right(found: re.Match[str]) -> str:
    letter = found[0]
    return _escape(letter) if unicodedata.bidirectional(letter) in _FROM_RIGHT else letter


def _keeps_order(line: str) -> bool:
    """
    Return True if a line is displayed from left to right except for single words.

    It must start with a left-to-right letter, from which many displays derive the direction.
    After a right-to-left word, there must be such a letter before the next one or a number.
    """
    begun = in_word = after_word = False
    for letter in line:
        match unicodedata.bidirectional(letter):
            case "L":
                begun, in_word, after_word = True, False, False
            case "R" | "AL":
                if not begun or after_word:
                    return False
                in_word = True
            case "AN":
                return False
            case "EN":
                if in_word:
                    return False
            case "NSM":
                pass
            case _:
                after_word = in_word
    return True


def shortened(text: str, most: int) -> str:
    """Return a text on one line; if it is too long, with the number of missing characters."""
    # Escaping never shortens, so more characters are not needed.
    shown = visible(text[: most + 1])
    missing = max(len(text), len(shown)) - most
    return f"{shown[:most]} … and {missing} more characters" if missing > 0 else shown


def shown_lines(text: str, *, most: int = SHOWN_CHARACTERS, prose: bool = False) -> list[str]:
    """
    Return the lines to show of a text: a single line unchanged, several lines marked.

    Args:
        text: The text.
        most: Most characters to show; the middle of a longer text is omitted.
        prose: True to keep right-to-left letters.
    """
    if not prose and not text.isascii():
        # A cut line may lose the letters that keep its order.
        keep = _in_order if len(text) <= most else _without_right
        text = "\n".join(map(keep, text.split("\n")))
    if "\n" not in text and len(text) <= most and len(line := _escaped(text)) <= most:
        return [line]
    runs = _runs(text)
    # Only escape the text if it is not far too long.
    if sum(len(line) for line, _ in runs) <= most:
        whole = [line for run in runs for line in _shown_run(*run)]
        if len(whole) <= SHOWN_LINES and sum(map(len, whole)) <= most:
            return whole
    # The end gets less room, since the beginning of a command says more about it.
    head = _take(runs, most * 2 // 3, _HEAD_LINES)
    tail = _take(runs, most // 3, _TAIL_LINES, from_end=True)
    lines = sum(equal for _, equal in runs)
    characters = sum(len(line) * equal for line, equal in runs)
    where = f" in {lines} lines" if lines > 1 else ""
    return [*head, f"… {characters} characters{where} are not shown", *tail]


def marked(text: str) -> list[str]:
    """Return all lines of prose, marked, without a limit; see `fits`."""
    return [line for run in _runs(text) for line in _shown_run(*run)]


def fits(lines: list[str]) -> bool:
    """Return True if a question can show all these lines."""
    return len(lines) <= SHOWN_LINES and sum(map(len, lines)) <= SHOWN_CHARACTERS


def _runs(text: str) -> deque[_Run]:
    # Only a newline ends a line: other separators are escaped. A line of spaces and tabs is
    # meaningless, but to a shell, one of other blanks is the name of a program.
    lines = (line if line.strip(" \t") else "" for line in text.split("\n"))
    return deque((line, len(list(equal))) for line, equal in groupby(lines))


def _take(runs: deque[_Run], room: int, lines: int, *, from_end: bool = False) -> list[str]:
    """Remove as many runs from one end as fit, and return their lines in order."""
    shown: list[list[str]] = []
    while runs and sum(map(len, shown)) < lines:
        line, equal = runs.pop() if from_end else runs.popleft()
        count = _fitting(line[::-1] if from_end else line, room)
        if count < len(line):
            # The rest of the line and its repetitions are omitted.
            rest = line[: len(line) - count] if from_end else line[count:]
            runs.append((rest, equal)) if from_end else runs.appendleft((rest, equal))
            if count:
                shown.append(_shown_run(line[-count:] if from_end else line[:count], 1))
            break
        shown.append(_shown_run(line, equal))
        room -= sum(map(len, shown[-1]))
    if from_end:
        shown.reverse()
    return [line for run in shown for line in run]


def _fitting(line: str, room: int) -> int:
    """Return how many characters of a line fit after escaping."""
    used = 0
    # Escaping never shortens, so more characters are not needed.
    for index, letter in enumerate(line[: max(room, 0) + 1]):
        used += len(_seen(letter))
        if used > room:
            return index
    return len(line)


def _shown_run(line: str, equal: int) -> list[str]:
    """Return the marked lines for a run; more than a few repetitions are counted instead."""
    shown = f"| {_escaped(line)}".rstrip()
    if equal <= _FEW_EQUAL:
        return [shown] * equal
    if not line:
        return [f"… {equal} empty lines"]
    return [shown, f"… {equal - 1} more lines like it"]


def _escaped(line: str) -> str:
    return _BLANKS.sub(lambda found: f" <{len(found[0])} blanks> ", _seen(line))
