"""Commands that are asked about whatever the rules say: those that delete by force."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.approvals.split.wrappers import base_name

__all__ = ["MAX_WRAPPERS", "is_dangerous"]

MAX_WRAPPERS = 8
"""Wrappers around a command. More serve only to hide it, so they count as dangerous."""


def is_dangerous(words: Sequence[str]) -> bool:
    """
    Return True if a command deletes by force, itself or behind `sudo` and `env`.

    Call it for every segment and for every literal of a `Split`. The literals include what
    scripts and other wrappers run, each as a command of its own.
    """
    for _ in range(MAX_WRAPPERS + 1):
        if not words:
            return False
        name = base_name(words[0])
        if name == "rm":
            return _is_forced(words[1:])
        unwrapped = _unwrapped(name, words)
        if unwrapped is None:
            return False
        words = unwrapped
    return True


def _unwrapped(name: str, words: Sequence[str]) -> Sequence[str] | None:
    """Return the command after `sudo` or `env`, or None if this is another one."""
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
        # Options may be cut short, and no other one of rm begins with an f.
        if argument.startswith("--f") and "--force".startswith(argument):
            return True
        if argument.startswith("-") and not argument.startswith("--") and "f" in argument:
            return True
    return False
