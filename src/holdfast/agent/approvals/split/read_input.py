"""Commands that run what they read."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from holdfast.agent.approvals.split.shell_arguments import SHELLS, base_name, read_shell_arguments
from holdfast.agent.approvals.split.words import UNKNOWN

__all__ = ["may_run_text", "reads_input"]


def may_run_text(words: Sequence[str]) -> bool:
    """
    Return True if a command may run a text that is made elsewhere in the script.

    Its script is the output of another command, or it starts a shell for what it reads.
    """
    name = base_name(words[0])
    if name in _INPUT_RUNNERS:
        return True
    runs = name in SHELLS or name in _TEXT_RUNNERS
    # A pattern may stand for the name of its input.
    return runs and any(not _SHELL_DECIDES.isdisjoint(word) for word in words[1:])


_SHELL_DECIDES = frozenset([UNKNOWN, "*", "?", "["])
_TEXT_RUNNERS = frozenset([".", "eval", "source", "trap"])
# Programs that run a shell, or what they read, unless they are given a command.
_INPUT_RUNNERS = frozenset(
    ["at", "batch", "chroot", "doas", "fakeroot", "newgrp", "nsenter", "parallel", "runuser"]
) | frozenset(["script", "setarch", "sg", "ssh", "su", "sudo", "unshare", "xargs"])


def reads_input(words: Sequence[str]) -> bool:
    """Return True if a command runs what it reads: a shell without a script, or `source`."""
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


_INPUT_FILE = re.compile(r"-|(.*/)?(dev/(stdin|fd/\d+)|proc/[^/]+/(task/[^/]+/)?fd/\d+)")


def _is_input(path: str) -> bool:
    """Return True for a name of standard input or of another descriptor."""
    return path != "" and _INPUT_FILE.fullmatch(posixpath.normpath(path)) is not None
