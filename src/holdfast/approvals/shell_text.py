"""Shows an argv as one line for a shell, quoted as the original quotes it in its texts."""

import re
from collections.abc import Iterable

__all__ = ["joined_command", "quoted_word"]

_PLAIN = re.compile(r"[A-Za-z0-9+\-./:@\]_]+")

# A quote cannot hold itself. Shells differ about backslashes in single quotes, and about
# dollars, backticks and history expansion in double quotes: the original avoids them all.
_NOT_SINGLE = frozenset("'\\^")
_NOT_DOUBLE = frozenset("`$!^")
_ESCAPED = re.compile(r'(["\\$`])')


def joined_command(argv: Iterable[str]) -> str:
    """Return a command as one line that a shell reads as the same words."""
    return " ".join(map(quoted_word, argv))


def quoted_word(word: str) -> str:
    """Return a word with the quotes that it needs: none, single ones, or a mixture."""
    if not word:
        return "''"
    if _PLAIN.fullmatch(word):
        return word
    pieces = []
    rest = word
    while rest:
        length, single = _longest_piece(rest)
        piece, rest = rest[:length], rest[length:]
        pieces.append(f"'{piece}'" if single else _double_quoted(piece))
    return "".join(pieces)


def _double_quoted(piece: str) -> str:
    if _PLAIN.fullmatch(piece):
        return piece
    return '"' + _ESCAPED.sub(r"\\\1", piece) + '"'


def _longest_piece(text: str) -> tuple[int, bool]:
    """Return how much of a text fits into one pair of quotes, and True for single ones."""
    # A caret is only safe directly behind an opening single quote.
    start = 1 if text[0] == "^" else 0
    single, double = True, not start
    for index in range(start, len(text)):
        letter = text[index]
        next_single = single and letter not in _NOT_SINGLE
        next_double = double and letter not in _NOT_DOUBLE
        if not (next_single or next_double):
            return index, single
        single, double = next_single, next_double
    return len(text), single
