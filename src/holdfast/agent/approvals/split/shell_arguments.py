"""Parses the arguments of a shell as the shell does, to find the script that it will run."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "FOREIGN_SHELLS",
    "POSIX_SHELLS",
    "SHELLS",
    "ZSH",
    "ShellArguments",
    "base_name",
    "is_long_option",
    "read_shell_arguments",
]

POSIX_SHELLS = frozenset(["sh", "dash", "ash", "busybox", "posh", "yash"])
FOREIGN_SHELLS = frozenset(["fish", "csh", "tcsh", "nu", "elvish", "xonsh", "rc", "es"])
"""Shells with a different grammar."""
SHELLS = (
    POSIX_SHELLS
    | frozenset(["bash", "rbash", "zsh", "rzsh", "zsh5", "ksh", "ksh93", "rksh", "mksh", "pdksh"])
    | frozenset(["lksh", "oksh", "osh", "ysh"])
    | FOREIGN_SHELLS
)
"""
Shells whose `-c` is analysed.

Some have a different grammar. Most of their commands are found anyway; scripts that cannot be read
need a question.
"""


# bash accepts its long options with one dash, too, and in full only. Each of the other shells
# fails on these words.
_BASH_OPTIONS = frozenset(
    [
        "debug",
        "debugger",
        "dump-po-strings",
        "dump-strings",
        "help",
        "login",
        "noediting",
        "noprofile",
        "norc",
        "posix",
        "pretty-print",
        "protected",
        "restricted",
        "verbose",
        "version",
        "wordexp",
    ]
)
_BASH_OPTIONS_WITH_VALUE = frozenset(["rcfile", "init-file"])

# Long options of other shells that take the next argument.
_LONG_WITH_VALUE = frozenset(["init-command", "emulate"])

ZSH = frozenset(["zsh", "rzsh", "zsh5"])
"""Names of zsh."""


@dataclass(frozen=True, slots=True)
class ShellArguments:
    """The script in the arguments of a shell, and sources of further scripts."""

    script: str | None
    """The script of `-c`; empty if the option has none."""
    operands: tuple[str, ...]
    """The words after the script or the options: a file and its arguments."""
    from_input: bool
    """True if the shell runs its standard input."""
    start_file: str | None = None
    """The file in an option of bash that an interactive shell runs first."""


def base_name(name: str) -> str:
    """Return the file name of a program."""
    return name.rpartition("/")[2]


def is_long_option(word: str, *names: str) -> bool:
    """Return True if a word is a long option with one of these names, possibly abbreviated."""
    return word.startswith("--") and len(word) > 2 and any(n.startswith(word[2:]) for n in names)


def read_shell_arguments(words: Sequence[str]) -> ShellArguments:
    """Parse the arguments of a shell, its own name first."""
    zsh = base_name(words[0]) in ZSH
    at = 1
    command = input_option = short_options = False
    start_file: str | None = None
    while at < len(words):
        word = words[at]
        if word in ("-", "--"):
            at += 1
            break
        if word[:1] not in ("-", "+"):
            break
        name, equals, value = word.lstrip("-").partition("=")
        at += 1
        if not short_options and word[0] == "-" and _is_bash_option(word):
            if name in _BASH_OPTIONS_WITH_VALUE:
                start_file = "".join(words[at : at + 1])
                at += 1
        elif word.startswith("--"):
            if name == "command" and equals:
                return ShellArguments(value, tuple(words[at:]), from_input=False)
            command = command or name == "command"
            at += name in _LONG_WITH_VALUE and not equals
        else:
            short_options = True
            letters, taken = _short_options(word[1:], zsh=zsh)
            at += taken
            # As for the shells, also after a plus sign.
            command = command or "c" in letters
            input_option = input_option or "s" in letters
            if zsh and "b" in letters:
                break
    rest = tuple(words[at:])
    if command:
        script = rest[0] if rest else ""
        return ShellArguments(script, rest[1:], from_input=False, start_file=start_file)
    from_input = input_option or not rest
    return ShellArguments(None, rest, from_input=from_input, start_file=start_file)


def _is_bash_option(word: str) -> bool:
    name = word[2:] if word.startswith("--") else word[1:]
    return name in _BASH_OPTIONS or name in _BASH_OPTIONS_WITH_VALUE


def _short_options(letters: str, *, zsh: bool) -> tuple[str, int]:
    """Return the option letters, and how many of the next words they take."""
    if zsh:
        # A name may be attached to the letter.
        before, option, name = letters.partition("o")
        return before, int(bool(option) and not name)
    return letters, letters.count("o") + letters.count("O")
