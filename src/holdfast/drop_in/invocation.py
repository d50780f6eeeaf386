"""What a shell was called for, by its arguments, as bash reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Invocation", "read_invocation"]

_WITH_VALUE = ("--rcfile", "--init-file")
"""Long options that take the next argument."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """What is run: a line, a file, or what comes on standard input."""

    line: str | None = None
    """The script of `-c`."""
    file: str | None = None
    arguments: tuple[str, ...] = ()
    """The positional arguments behind the file."""

    @property
    def is_seen(self) -> bool:
        """False if commands come from standard input, where nobody can look at them first."""
        return self.line is not None or self.file is not None


def read_invocation(argv: Sequence[str]) -> Invocation:
    """Read the arguments of a shell, its own name first."""
    words = list(argv[1:])
    command = from_input = False
    while words:
        word = words[0]
        if word in ("-", "--"):
            del words[0]
            break
        if word.startswith("--"):
            # bash takes these before the short ones only; later ones end it with an error.
            del words[: 2 if word in _WITH_VALUE else 1]
            continue
        if len(word) < 2 or word[0] not in "-+":
            break
        del words[0]
        command = command or "c" in word[1:]
        from_input = from_input or "s" in word[1:]
        # Each of these letters takes the next argument, if there is one.
        del words[: word[1:].count("o") + word[1:].count("O")]
    if command:
        return Invocation(line=words[0] if words else "")
    if from_input or not words:
        return Invocation()
    return Invocation(file=words[0], arguments=tuple(words[1:]))
