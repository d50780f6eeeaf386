"""Commands that are asked about whatever the rules say."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["is_dangerous"]


def is_dangerous(words: Sequence[str]) -> bool:
    """Return True if this one command deletes by force, itself or behind a wrapper."""
    raise NotImplementedError
