"""
Recognises commands that only call `apply_patch`.

These are the argv `apply_patch PATCH`, and a shell script with one here document, optionally
after `cd DIRECTORY &&`. All other scripts are left to the shell.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BARE_PATCH", "PatchCommand", "find_patch"]

BARE_PATCH = (
    "apply_patch verification failed: patch detected without explicit call to apply_patch."
    ' Rerun as ["apply_patch", "<patch>"]'
)
"""Error text for a model whose command is a patch without a call to `apply_patch`."""

# Models use both spellings.
_NAMES = ("apply_patch", "applypatch")
_SHELLS = frozenset({"bash", "sh", "zsh"})
_FLAGS = frozenset({"-c", "-lc"})
_FRAME = "*** Begin Patch"

# Everything before the patch: `cd` with a literal directory, or variable assignments, and the call
# with a here document. Expansions such as `$HOME` are left to the shell.
_HEAD = re.compile(
    r"""
    \s*
    (?: cd [ \t]+
        (?: '(?P<single>[^'\n]+)' | "(?P<double>[^"$`\\\n]+)" | (?P<bare>[\w./@%+,:=-]+) )
        [ \t]* && \s*
      | (?: [A-Za-z_]\w* = [\w./@%+,:=-]* [ \t]+ )*
    )
    (?: apply_patch | applypatch ) [ \t]*
    << (?P<dash>-?) [ \t]*
    (?P<quote>['"]?) (?P<mark>[\w.-]+) (?P=quote)
    [ \t]* (?: \n | \Z )
    """,
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class PatchCommand:
    """A call to `apply_patch`."""

    patch: str
    """Text of the patch."""
    workdir: str | None = None
    """Directory of a preceding `cd`."""
    bare: bool = False
    """True for a patch without a call; if the patch is valid, the model gets `BARE_PATCH`."""


def find_patch(argv: Sequence[str]) -> PatchCommand | None:
    """Return the patch that a command applies, or None if the command has to run."""
    if len(argv) == 2 and argv[0] in _NAMES:
        return PatchCommand(argv[1])
    script: str | None = None
    if len(argv) == 1:
        script = argv[0]
    elif len(argv) == 3 and argv[0].rpartition("/")[2] in _SHELLS and argv[1] in _FLAGS:
        script = argv[2]
    if script is None:
        return None
    if len(argv) == 3 and any(name in script for name in _NAMES):
        found = _here_document(script)
        if found is not None:
            return found
    return PatchCommand(script, bare=True) if script.lstrip().startswith(_FRAME) else None


def _here_document(script: str) -> PatchCommand | None:
    head = _HEAD.match(script)
    if head is None:
        return None
    lines = script[head.end() :].split("\n")
    # `<<-` strips leading tabs, including those of the patch.
    if head["dash"]:
        lines = [line.lstrip("\t") for line in lines]
    try:
        end = lines.index(head["mark"])
    except ValueError:
        # Without an end mark, a shell prints a warning and uses all lines.
        end = len(lines)
    # Another command follows, so the script has to run as a whole.
    if any(line.strip() for line in lines[end + 1 :]):
        return None
    workdir = head["single"] or head["double"] or head["bare"]
    if workdir is not None and (workdir == "-" or workdir.startswith("-")):
        # An option of `cd`, or the previous directory, which only the shell knows.
        return None
    return PatchCommand("\n".join(lines[:end]), workdir)
