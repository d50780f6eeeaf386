"""Suggestions for a word that was mistyped."""

from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean …?)` with the known word that is most like another, or nothing."""
    from difflib import get_close_matches  # only after a mistake

    # Of a short word, two letters that changed places are half of it.
    cutoff = 0.5 if len(word) <= 3 else 0.6
    found = get_close_matches(word, list(dict.fromkeys(known)), n=1, cutoff=cutoff)
    return f" (did you mean `{found[0]}`?)" if found else ""
