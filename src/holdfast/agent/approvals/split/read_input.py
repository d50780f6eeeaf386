"""Commands that run their input, and how they split it into words."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence

from holdfast.agent.approvals.split.shell_arguments import (
    SHELLS,
    base_name,
    is_long_option,
    read_shell_arguments,
)
from holdfast.agent.approvals.split.words import UNKNOWN, decode_ansi_c

__all__ = ["input_arguments", "input_delimiter", "may_run_text", "read_arguments", "reads_input"]


def may_run_text(words: Sequence[str]) -> bool:
    """
    Return True if a command may run a text produced elsewhere in the script.

    Its script is the output of another command, or it starts a shell for its input.
    """
    name = base_name(words[0])
    if name in _INPUT_RUNNERS:
        return True
    runs = name in SHELLS or name in _TEXT_RUNNERS
    # A pattern may match the name of its input.
    return runs and any(not _SHELL_DECIDES.isdisjoint(word) for word in words[1:])


_SHELL_DECIDES = frozenset([UNKNOWN, "*", "?", "["])
_TEXT_RUNNERS = frozenset([".", "eval", "source", "trap"])
# Programs that run a shell, or their input, unless they have a command as an argument.
_INPUT_RUNNERS = frozenset(
    ["at", "batch", "chroot", "doas", "fakeroot", "newgrp", "nsenter", "parallel", "runuser"]
) | frozenset(["script", "setarch", "sg", "ssh", "su", "sudo", "unshare", "xargs"])


def reads_input(words: Sequence[str]) -> bool:
    """Return True if a command runs its input: a shell without a script, or `source`."""
    name = base_name(words[0])
    if name in (".", "source"):
        return any(_is_input(word) for word in words[1:3])
    if name not in SHELLS:
        return False
    called = read_shell_arguments(words)
    if called.start_file is not None and _is_input(called.start_file):
        return True
    if called.script is not None:
        return _is_input(called.script)
    return called.from_input or _is_input(called.operands[0])


def input_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """Return the values of `$0`, `$1` and so on in the script that a command runs."""
    if base_name(words[0]) in (".", "source"):
        return ("sh", *words[2:])
    if base_name(words[0]) not in SHELLS:
        return ()
    called = read_shell_arguments(words)
    if called.script is not None:
        return called.operands
    if not (reads_input(words) or may_run_text(words)):
        return ()
    return ("sh", *called.operands[0 if called.from_input else 1 :])


def input_delimiter(words: Sequence[str]) -> str | None:
    """
    Return what separates the arguments in the input of `xargs`; None for another command.

    It is empty for blanks, between which quotes count.
    """
    if base_name(words[0]) != "xargs":
        return None
    for number, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        if is_long_option(name, "delimiter"):
            found = value if equals else "".join(words[number + 1 : number + 2])
        elif word.startswith("-") and not word.startswith("--") and "d" in word:
            found = word.partition("d")[2] or "".join(words[number + 1 : number + 2])
        else:
            continue
        return decode_ansi_c(found, printed=True)[:1]
    return ""


def read_arguments(text: str, delimiter: str) -> tuple[str, ...]:
    """Return the arguments that `xargs` reads from a text; signs of a shell mean nothing there."""
    try:
        found = text.split(delimiter) if delimiter else shlex.split(text)
    except ValueError:
        # A quote that is not closed ends the input.
        found = text.split()
    return tuple(filter(None, found))


_INPUT_FILE = re.compile(r"-|(.*/)?(dev/(stdin|fd/\d+)|proc/[^/]+/(task/[^/]+/)?fd/\d+)")


def _is_input(path: str) -> bool:
    """Return True for a name of standard input or of another descriptor."""
    return path != "" and _INPUT_FILE.fullmatch(posixpath.normpath(path)) is not None
