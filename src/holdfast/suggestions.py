"""Suggestions for a word that was mistyped."""

from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean …?)` with the most similar known word, or an empty string."""
    from difflib import get_close_matches  # only after a mistake

    # In a short word, two swapped letters are already half of it.
    cutoff = 0.5 if len(word) <= 3 else 0.6
    found = get_close_matches(word, list(dict.fromkeys(known)), n=1, cutoff=cutoff)
    return f" (did you mean `{found[0]}`?)" if found else ""
