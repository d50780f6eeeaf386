"""The result of splitting, and the function that splits one argument list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["UNKNOWN", "Split", "split_command"]

UNKNOWN = "\0"
"""Stands in a word of `Split.literals` for a part that only the shell will know.

No rule and no argument can contain it, so a word with such a part equals nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The commands of one argument list, in a narrow view and in a wide one."""

    segments: tuple[tuple[str, ...], ...]
    """What a rule may allow: the commands of a plain script, or the argument list alone."""

    plain: bool
    """The argument list is a shell with a plain script, and `segments` are its commands."""

    literals: tuple[tuple[str, ...], ...]
    """Every command that can be seen anywhere. For prompt, forbidden and dangerous only."""

    unseen: str | None
    """Why the command could not be read to its end, or None. Then no rule may allow it."""


def split_command(argv: Sequence[str], *, shell: str | None = None) -> Split:
    """
    Return the commands that `argv` runs.

    Args:
        argv: The program and its arguments.
        shell: The configured shell. Another one outside of `/bin` and `/usr/bin` is a
            segment of its own, before the commands of its script.
    """
    raise NotImplementedError
