"""Parses the arguments of a shell as bash does, to find the script that it will run."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Invocation", "read_invocation"]

# Long options that take the next argument.
_WITH_VALUE = ("--rcfile", "--init-file")


@dataclass(frozen=True, slots=True)
class Invocation:
    """Script of a shell: a line, a file, or standard input."""

    line: str | None = None
    """Script of `-c`."""
    file: str | None = None
    """Path of a script."""
    arguments: tuple[str, ...] = ()
    """Positional arguments after the file."""


def read_invocation(argv: Sequence[str]) -> Invocation:
    """Parse the arguments of a shell, its own name first."""
    words = list(argv[1:])
    command = from_input = False
    while words:
        word = words[0]
        if word in ("-", "--"):
            del words[0]
            break
        if word.startswith("--"):
            # bash accepts long options before short ones only, and fails on later ones.
            del words[: 2 if word in _WITH_VALUE else 1]
            continue
        if len(word) < 2 or word[0] not in "-+":
            break
        del words[0]
        command = command or "c" in word[1:]
        from_input = from_input or "s" in word[1:]
        # Each `o` and `O` takes one more argument.
        del words[: word[1:].count("o") + word[1:].count("O")]
    if command:
        return Invocation(line=words[0] if words else "")
    if from_input or not words:
        return Invocation()
    return Invocation(file=words[0], arguments=tuple(words[1:]))
