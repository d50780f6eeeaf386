"""Commands that are asked about whatever the rules say: those that delete by force."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.approvals.split import split_command
from holdfast.approvals.split.wrappers import base_name

__all__ = ["MAX_WRAPPERS", "is_dangerous", "is_dangerous_call"]

MAX_WRAPPERS = 8
"""Wrappers around a command. More serve only to hide it, so they count as dangerous."""

_SHELLS = frozenset(["bash", "zsh", "sh"])


def is_dangerous(words: Sequence[str]) -> bool:
    """
    Return True if a command deletes by force, itself or behind `sudo`, `env`, `trap` or a shell.

    Call it for every segment of a `Split`. Its literals include what more wrappers hide, each
    as a command of its own: for them, `is_dangerous_call` is enough.
    """
    inner: Sequence[str] = words
    for _ in range(MAX_WRAPPERS + 1):
        if not inner:
            return False
        name = base_name(inner[0])
        if name == "rm":
            return _is_forced(inner[1:])
        script = _script(name, inner)
        if script is not None:
            # The literals are what the script runs at any depth, so none is a script again.
            literals = split_command(("bash", "-c", script)).literals
            return any(is_dangerous_call(literal) for literal in literals)
        unwrapped = _unwrapped(name, inner)
        if unwrapped is None:
            return False
        inner = unwrapped
    return True


def is_dangerous_call(words: Sequence[str]) -> bool:
    """
    Return True for a forced `rm` behind `sudo` and `env`, without a look into scripts.

    It is for the literals of a `Split`: what their scripts run is among the literals.
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


def _script(name: str, words: Sequence[str]) -> str | None:
    """Return the script that a shell or a trap gets, or None."""
    if name in _SHELLS and len(words) == 3 and words[1] in ("-c", "-lc"):
        return words[2]
    if name == "trap":
        operands = words[2:] if len(words) > 1 and words[1] == "--" else words[1:]
        return operands[0] if operands else None
    return None


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
