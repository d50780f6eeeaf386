"""The script that `holdfast-sh` is to run, by its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.agent.approvals.split.shell_arguments import read_shell_arguments

__all__ = ["Invocation", "read_invocation"]


@dataclass(frozen=True, slots=True)
class Invocation:
    """Script of a shell: a line, a file, or standard input."""

    line: str | None = None
    """Script of `-c`."""
    file: str | None = None
    """Path of a script."""
    arguments: tuple[str, ...] = ()
    """Positional arguments after the line or the file, which a script may run as commands."""
    start_file: str | None = None
    """File that an interactive shell runs first."""

    def argv(self, shell: str) -> tuple[str, ...]:
        """Return an argument list that runs the same in a shell, without other options."""
        words = [shell]
        if self.start_file is not None:
            words += ["--rcfile", self.start_file]
        if self.line is not None:
            words.append("-c")
        script = self.file if self.line is None else self.line
        if script is None:
            return (*words, "-s", *self.arguments) if self.arguments else tuple(words)
        # Rules may allow the commands of exactly `SHELL -c LINE`.
        if script.startswith(("-", "+")) and (self.line is None or self.arguments):
            words.append("--")
        return (*words, script, *self.arguments)


def read_invocation(argv: Sequence[str], shell: str) -> Invocation:
    """Parse arguments, the first one being a name, as a shell does."""
    called = read_shell_arguments([shell, *argv[1:]])
    if called.script is not None:
        return Invocation(
            line=called.script, arguments=called.operands, start_file=called.start_file
        )
    if called.from_input:
        return Invocation(arguments=called.operands, start_file=called.start_file)
    file, *arguments = called.operands
    return Invocation(file=file, arguments=tuple(arguments), start_file=called.start_file)
