"""Suggestions for mistyped words."""

from collections.abc import Iterable

from holdfast.base.late_import import late_module

# Not `typing.TYPE_CHECKING`: every command loads this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import difflib
else:
    # Only needed after a mistake.
    difflib = late_module("difflib")

__all__ = ["closest", "did_you_mean", "listed"]


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that is most similar, or None if none is similar enough."""
    found = difflib.get_close_matches(word, list(dict.fromkeys(known)), n=1, cutoff=cutoff)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean …?)` with the most similar known word, or an empty string."""
    # In a short word, two swapped letters are already half of it.
    found = closest(word, known, 0.5 if len(word) <= 3 else 0.6)
    return f" (did you mean `{found}`?)" if found else ""


def listed(names: Iterable[str]) -> str:
    """Return the names in backquotes, separated by commas; `nothing` if there are none."""
    return ", ".join(f"`{name}`" for name in names) or "nothing"
