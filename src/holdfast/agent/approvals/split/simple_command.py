"""The result of splitting, and the function that splits one argument list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.agent.approvals.split.budget import MAX_TEXT, Budget, TooCostlyError
from holdfast.agent.approvals.split.literals import Literals
from holdfast.agent.approvals.split.plain import (
    Commands,
    has_syntax_error,
    plain_commands,
    simple_commands,
)
from holdfast.agent.approvals.split.read_command import ReadCommand
from holdfast.agent.approvals.split.shell_arguments import POSIX_SHELLS, ZSH, base_name

__all__ = ["Split", "split_command"]

_SPLIT_SHELLS = frozenset(["bash", "zsh", "sh"])
# Commands after which a shell does not read further lines.
_ENDING = frozenset(["exec", "exit", "logout", "return"])
_SYSTEM_FOLDERS = ("/bin", "/usr/bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The commands of one argument list, in a narrow and a wide view."""

    segments: tuple[tuple[str, ...], ...]
    """The commands that a rule may allow: those of a plain script, or the argument list alone."""

    plain: bool
    """True if the argument list is a shell with a plain script, whose commands are `segments`."""

    literals: tuple[tuple[str, ...], ...]
    """Every command found anywhere. Only for prompt, forbidden and dangerous."""

    unseen: str | None
    """The reason why it could not be read completely, or None. If set, no rule may allow it."""

    fault: str | None = None
    """
    The syntax error with which the shell refuses the script, and its position, or None.

    Both parsers must find an error. If only one does, only `unseen` is set.
    """


def split_command(argv: Sequence[str], *, shell: str | None = None) -> Split:
    """
    Return the commands that `argv` runs.

    Args:
        argv: The program and its arguments.
        shell: The configured shell. Another one outside `/bin` and `/usr/bin` is a separate
            segment, before the commands of its script.

    Raises:
        SplittingUnavailable: A script has to be read, and the extra `approvals` is missing.
    """
    whole = tuple(argv)
    fault = _fault(whole)
    if fault is not None:
        return Split(segments=(whole,), plain=False, literals=(), unseen=fault)
    script = _script(whole)
    if script is None:
        literals = Literals(Budget())
        literals.add_command(whole)
        return Split(
            segments=(whole,), plain=False, literals=literals.commands, unseen=literals.unseen
        )
    return _split_script(whole, script, shell)


def _split_script(whole: tuple[str, ...], script: str, shell: str | None) -> Split:
    budget = Budget()
    literals = Literals(budget, zsh=base_name(whole[0]) in ZSH)
    commands = simple_commands(script) if len(script) <= MAX_TEXT else None
    if commands is not None:
        literals.add_commands(commands)
    else:
        read = literals.add_script(script, posix=base_name(whole[0]) in POSIX_SHELLS)
        commands = None if literals.unseen else _agreed(script, read, budget)
    if literals.unseen:
        commands = None
    extra = _is_extra_segment(whole[0], shell)
    if extra:
        literals.add_command(whole)
    return Split(
        segments=(whole,) if commands is None else ((whole, *commands) if extra else commands),
        plain=commands is not None,
        literals=literals.commands,
        unseen=literals.unseen,
        fault=_certain_fault(base_name(whole[0]), script, literals, budget),
    )


def _certain_fault(shell: str, script: str, literals: Literals, budget: Budget) -> str | None:
    """Return the syntax error of a script, if the shell is certain to reach it and fail."""
    # The grammar is bash's, so it does not apply to zsh.
    if literals.fault is None or shell == "zsh":
        return None
    # A shell reads line by line, so it may end before the error.
    if any(words[0] in _ENDING for words in literals.commands):
        return None
    try:
        return literals.fault if has_syntax_error(script, budget) else None
    except TooCostlyError:
        return None


def _agreed(script: str, read: Sequence[ReadCommand], budget: Budget) -> Commands | None:
    """Return the commands of a plain script if our reader finds the same ones."""
    if any(piece.unknown for command in read for word in command.words for piece in word.pieces):
        return None
    try:
        commands = plain_commands(script, budget)
    except TooCostlyError:
        return None
    ours = tuple([tuple([word.text for word in command.words]) for command in read])
    return commands if commands == ours else None


def _fault(words: tuple[str, ...]) -> str | None:
    """Return why these words cannot be executed, or None."""
    if not words or not words[0]:
        return "it names no program"
    for word in words:
        if "\0" in word:
            return "it contains a NUL character"
        if not word.isascii() and not _is_unicode(word):
            return "it contains bytes that are no text"
    return None


def _is_unicode(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _script(words: tuple[str, ...]) -> str | None:
    """Return the script of exactly `SHELL -c|-lc SCRIPT`, or None."""
    if len(words) != 3 or words[1] not in ("-c", "-lc"):
        return None
    return words[2] if base_name(words[0]) in _SPLIT_SHELLS else None


def _is_extra_segment(program: str, shell: str | None) -> bool:
    """Return True for a program with the name of a shell at an untrusted path."""
    if program == shell or "/" not in program:
        return False
    return program.rpartition("/")[0] not in _SYSTEM_FOLDERS
