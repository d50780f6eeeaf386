"""The script that `holdfast-sh` is to run, by its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.approvals.split.shell_arguments import read_shell_arguments

__all__ = ["Invocation", "read_invocation"]


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
    """Parse the arguments of a shell as bash does, its own name first."""
    called = read_shell_arguments(["bash", *argv[1:]])
    if called.script is not None:
        return Invocation(line=called.script)
    if called.from_input:
        return Invocation()
    return Invocation(file=called.operands[0], arguments=called.operands[1:])
