"""Patterns for the shell syntax that the lexer recognises."""

import re
from collections.abc import Sequence

__all__ = [
    "ALL_ARGUMENTS",
    "ANSI_C_TEXT",
    "ARGUMENT",
    "BACKTICK_RUN",
    "BLANKS",
    "DEFAULT",
    "DEFAULT_OF_MEMBER",
    "DOLLAR_QUOTE",
    "DOUBTFUL_ARITHMETIC",
    "EXPANDED_VALUE",
    "FLAGS",
    "INDEXED",
    "IN_ARITHMETIC",
    "IN_DEFAULT",
    "IN_DOCUMENT",
    "IN_NO_ARITHMETIC",
    "IN_QUOTES",
    "JOINED",
    "JOINED_NAME",
    "JOINED_OPERATOR",
    "JOINED_PARAMETER",
    "KNOWN_PARAMETER",
    "LONGER_SIGNS",
    "NAME",
    "NAMED",
    "PARAMETER_PART",
    "PART_OF_VALUE",
    "PATTERN_OPERATOR",
    "PLAIN_RUN",
    "QUOTE",
    "ZSH_SIGN",
    "ZSH_SIGN_IN_QUOTES",
    "argument",
    "joins_in_substitution",
    "known_value",
]

PLAIN_RUN = re.compile(r"[^ \t\n'\"\\$`<>|&;()]+")
ANSI_C_TEXT = re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL)
BACKTICK_RUN = re.compile(r"[^`\\]*")
BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
ALL_ARGUMENTS = re.compile(r'"\$(?:@|\{[^}]*@\})"')
# Lines joined by a backslash, and what comes after them.
JOINED = re.compile(r"(?:\\\n)+(.?)")
JOINED_NAME = re.compile(r"(?:\\\n)+[A-Za-z0-9_]")
# A joined line before or after the name in ${name}, or between the operators that follow it.
JOINED_OPERATOR = re.compile(r":*\\\n")
JOINED_PARAMETER = re.compile(r"[=~^+#!]*[A-Za-z0-9_@*#?$!-]*:*\\\n")
LONGER_SIGNS = frozenset(
    [
        "&&",
        "&>",
        "||",
        "|&",
        ";;",
        ";&",
        ";|",
        ";;&",
        "<<",
        "<<<",
        "<<-",
        "<>",
        "<&",
        "<(",
        ">>",
        ">|",
        ">&",
        ">(",
        "&>>",
        "((",
        "))",
    ]
)
IN_QUOTES = re.compile(r"[^\"\\$`]+")
IN_DOCUMENT = re.compile(r"[^\\$`]+")
QUOTE = re.compile(r"['\"]")
DOLLAR_QUOTE = re.compile(r"\$['\"]")
IN_DEFAULT = re.compile(r"[^'\"\\$`<>{}]+")
IN_ARITHMETIC = re.compile(r"[^'\"\\$`(){}\[\]<>]+")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
# ${name}: flags of zsh, signs before the name, and the name, which may be empty in zsh.
FLAGS = re.compile(r"\([^()'\"\\$`{}\n]*\)")
# Signs between the dollar sign and the name in zsh; ordinary text in other shells.
ZSH_SIGN = re.compile(r"[=~^+]")
ZSH_SIGN_IN_QUOTES = re.compile(r"[=~^+]+[A-Za-z_0-9{@*]")
# A name with a letter beyond ASCII, after a dollar sign or before a value: one of zsh only.
ZSH_NAME = re.compile(
    r"\$\{?[=~^+#!]*[A-Za-z_0-9]*[^\x00-\x7f\W]|^[A-Za-z_0-9]*[^\x00-\x7f\W]\w*(?:\[.*)?\+?="
)
_NAME_OR_SIGN = r"(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])"
_PARAMETER = rf"[=~^+#!]*{_NAME_OR_SIGN}"
INDEXED = re.compile(rf"[=~^+#!]*{_NAME_OR_SIGN}?(?=\[)")
# ${name:-word}: the word that replaces an unset or a set variable.
DEFAULT = re.compile(rf"{_PARAMETER}(?::?[-=+]|::=)|[=~^+#!]*:[-=+]")
DEFAULT_OF_MEMBER = re.compile(r":?[-=+]|::=")
# ${name#pattern} and its like: single quotes in the pattern are quotes, also in double ones.
PATTERN_OPERATOR = re.compile(_PARAMETER + r"(?:\[[^]]*\])?[#%/^,]")
# ${name/*/text}: the pattern matches an unset variable.
_EMPTY_PATTERN = _PARAMETER + r"(?:\[[^]]*\])?//?[#%]?\**/(?!\})"
# A name and what may follow it; anything else is a form that only some shells have.
NAMED = re.compile(rf"(?!{_EMPTY_PATTERN}){_PARAMETER}" + r"(?=[}:#%/^,@*\[?]|\Z)|[#!]\}")
# ${name:1}: arithmetic follows the colon.
PART_OF_VALUE = re.compile(r":(?![-=+?])")
PARAMETER_PART = re.compile(_PARAMETER + PART_OF_VALUE.pattern)
# ${name@P}: the value as a prompt.
EXPANDED_VALUE = re.compile(r"@[A-Za-z]*P[A-Za-z]*\}$")
ARGUMENT = re.compile(r"[0-9]+|[@*]")
# Characters that end the word in $[…] for a shell without that arithmetic.
IN_NO_ARITHMETIC = re.compile(r"[;&|<>()#\n]")
# Signs in ((…)) that change how lines are read where it is two subshells.
DOUBTFUL_ARITHMETIC = re.compile(r"<<|[#'\"`\\\n]")
# Variables with a known value. IFS is a blank, as at the start.
_KNOWN_VARIABLES = {"IFS": " ", "SHELL": "sh", "BASH": "bash", "0": "sh"}
KNOWN_PARAMETER = re.compile(r"(IFS|SHELL|BASH|0)(?![A-Za-z0-9_])")


def known_value(name: str, *, quoted: bool) -> str:
    """Return the value of a variable that is not set: empty, for most."""
    # A blank in quotes does not separate words.
    return "" if quoted and name == "IFS" else _KNOWN_VARIABLES.get(name, "")


def argument(name: str, arguments: Sequence[str]) -> str:
    """Return the value of `$1`, `$@` and similar, `$0` first; empty beyond the last."""
    if not name.isdecimal():
        return " ".join(arguments[1:])
    return "".join(arguments[int(name) : int(name) + 1]) if len(name) < 4 else ""


def joins_in_substitution(document: str) -> bool:
    """Return True if a line may be joined in a comment or in quotes of a substitution."""
    # Not a single regular expression, which would retry from each start.
    for wanted in (("$(", "`"), ("#", "'"), ("\\\n",)):
        found = [at for at in map(document.find, wanted) if at >= 0]
        if not found:
            return False
        document = document[min(found) :]
    return True
