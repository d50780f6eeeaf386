"""
Finds texts that a shell expands again although they were quoted.

The index of an array's member is expanded when arithmetic or a builtin uses it, and a prompt when
it is shown. So `X='a[$(ls)]'; echo $((X))` runs `ls`.
"""

import re
from collections.abc import Iterator

from holdfast.agent.approvals.split.words import UNKNOWN

__all__ = [
    "CODE_IN_PATTERN",
    "MEMBER",
    "ZSH_TABLE",
    "ZSH_TABLES",
    "is_prompt",
    "prompt_command",
    "texts_expanded_later",
]

MEMBER = re.compile(r"\w\[.*[$`]", re.DOTALL)
"""The name of an array's member whose index has to be expanded."""

ZSH_TABLES = frozenset(
    ["aliases", "commands", "functions", "galiases", "saliases", "nameddirs"]
    + [f"dis_{name}" for name in ("aliases", "functions", "galiases", "saliases")]
)
"""Arrays of zsh with which a script defines functions, aliases and command names."""

ZSH_TABLE = re.compile(rf"(?:-[A-Za-z]*|\{{+)?(?:{'|'.join(sorted(ZSH_TABLES))})(?:\[|\+?=)")
"""An assignment to one of them, or to a member; also after an option or a brace."""

CODE_IN_PATTERN = re.compile(r"\([^()\n]*?(?:e[^\w\s()]|[+'\"\\$`])")
"""The qualifiers of a pattern of zsh that may run code, such as `*(e:…:)`."""

# An index with a substitution. Its end is unclear, since it may contain quotes and another index.
_INDEX = re.compile(rf"(?:^|[\w([{UNKNOWN}])\[(?=.*(?:\$[({{\[]|`))", re.DOTALL)
# Variables whose value a shell expands: prompts, and names of startup files.
_EXPANDED_VARIABLE = re.compile(
    r"(?:PS[0-4]|R?PROMPT[2-4]?|RPS[12]|SPROMPT|POSTEDIT|BASH_ENV|ENV|MAILPATH)\+?=(?=.*(?:[$`]|\\[0-7]{3}))",
    re.DOTALL,
)
_PROMPT_ESCAPE = re.compile(r"\\([0-7]{3}|[nr\\\[\]])")
_PROMPT_ESCAPES = {"n": "\n", "r": "\r", "\\": "\\", "[": "", "]": ""}
_SCRIPT_VARIABLE = re.compile(r"PROMPT_COMMAND(?:\[[^]]*\])?\+?=")


def texts_expanded_later(text: str) -> Iterator[str]:
    """Yield the part of an unquoted word that a shell may expand later."""
    if (variable := _EXPANDED_VARIABLE.match(text)) is not None:
        value = text[variable.end() :]
        yield value
        if "\\" in value:
            # A prompt has escapes, too.
            yield _PROMPT_ESCAPE.sub(_shown_in_prompt, value)
    elif (index := _INDEX.search(text)) is not None:
        yield text[index.end() :]


def _shown_in_prompt(escape: re.Match[str]) -> str:
    known = _PROMPT_ESCAPES.get(escape[1])
    return chr(int(escape[1], 8)) if known is None else known


def is_prompt(text: str) -> bool:
    """Return True if a word sets a variable whose value a shell expands as a whole."""
    return _EXPANDED_VARIABLE.match(text) is not None


def prompt_command(text: str) -> str | None:
    """Return the script that a word sets for each prompt, or None."""
    variable = _SCRIPT_VARIABLE.match(text)
    return None if variable is None else text[variable.end() :]
