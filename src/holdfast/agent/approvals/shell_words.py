"""Quotes words for a shell, for display."""

from collections.abc import Sequence

__all__ = ["join_words", "shown_command"]

# Characters that need no quotes.
_BARE = frozenset("+-./:@]_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")

_NOT_IN_SINGLE_QUOTES = frozenset("'\\^")
_NOT_IN_DOUBLE_QUOTES = frozenset("`$!^")


def join_words(words: Sequence[str]) -> str | None:
    """Return words as a line for a shell, or None if one contains a NUL."""
    if any("\0" in word for word in words):
        return None
    return " ".join(_quote(word) for word in words)


def shown_command(argv: Sequence[str]) -> str:
    """Return a command as a line for a shell, for questions and refusals."""
    line = join_words(argv)
    return "<command included NUL byte>" if line is None else line


def _quote(word: str) -> str:
    if not word:
        return "''"
    if _BARE.issuperset(word):
        return word
    parts: list[str] = []
    while word:
        length, style = _quotable(word)
        chunk, word = word[:length], word[length:]
        if style == '"':
            chunk = "".join("\\" + c if c in '$`"\\' else c for c in chunk)
        parts.append(style + chunk + style)
    return "".join(parts)


def _quotable(word: str) -> tuple[int, str]:
    """
    Return how many characters one kind of quotes can contain, and the best kind for them.

    A `^` at the start is only safe in single quotes: shells may treat it as a history event.
    """
    styles = {"", "'", '"'}
    start = 0
    if word[0] == "^":
        styles, start = {"'"}, 1
    for length in range(start, len(word)):
        character = word[length]
        left = styles.copy()
        if character not in _BARE:
            left.discard("")
        if character in _NOT_IN_SINGLE_QUOTES:
            left.discard("'")
        if character in _NOT_IN_DOUBLE_QUOTES:
            left.discard('"')
        if not left:
            return length, min(styles, key=("", "'", '"').index)
        styles = left
    return len(word), min(styles, key=("", "'", '"').index)
