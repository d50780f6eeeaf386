"""Commands that need a question unless a rule matches: those that delete by force."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from holdfast.agent.approvals.split.shell_arguments import base_name

__all__ = ["MAX_WRAPPERS", "Danger", "danger_of"]

MAX_WRAPPERS = 8
"""Most wrappers around a command. More would only hide it, so they count as dangerous."""


class Danger(enum.Enum):
    """The reason why a command is dangerous."""

    FORCED_REMOVAL = enum.auto()
    """The command deletes by force."""
    TOO_MANY_WRAPPERS = enum.auto()
    """The command is behind too many wrappers to be analysed."""


def danger_of(words: Sequence[str]) -> Danger | None:
    """
    Return why a command is dangerous, including behind `sudo` and `env`; None if it is not.

    Call it for every segment and every literal of a `Split`. The literals include the commands
    that scripts and other wrappers run, as separate commands.
    """
    for _ in range(MAX_WRAPPERS + 1):
        if not words:
            return None
        name = base_name(words[0])
        if name == "rm":
            return Danger.FORCED_REMOVAL if _is_forced(words[1:]) else None
        unwrapped = _unwrapped(name, words)
        if unwrapped is None:
            return None
        words = unwrapped
    return Danger.TOO_MANY_WRAPPERS


def _unwrapped(name: str, words: Sequence[str]) -> Sequence[str] | None:
    """Return the command after `sudo` or `env`, or None for other programs."""
    if name == "sudo":
        return words[1:]
    if name != "env":
        return None
    at = 1
    while at < len(words) and (words[at] == "-i" or "=" in words[at]):
        at += 1
    return words[at:]


def _is_forced(arguments: Sequence[str]) -> bool:
    for argument in arguments:
        if argument == "--":
            return False
        # Options may be abbreviated, and no other option of rm starts with an f.
        if argument.startswith("--f") and "--force".startswith(argument):
            return True
        if argument.startswith("-") and not argument.startswith("--") and "f" in argument:
            return True
    return False
