"""An argument parser that suggests corrections of typos."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from holdfast.base.late_import import load
from holdfast.base.suggestions import did_you_mean

__all__ = ["SuggestingParser", "add_command", "late"]


def late(where: str, *first: object) -> Callable[[argparse.Namespace], int]:
    """
    Return a function that imports and calls the function of a subcommand.

    Args:
        where: `module:function`, which returns the exit status.
        first: Arguments to pass before the options.
    """
    return lambda options: int(load(where)(*first, options))


def add_command(
    parser: argparse.ArgumentParser,
    verb: str,
    *,
    run: Callable[[argparse.Namespace], int],
    metavar: str = "ARGV",
) -> None:
    """
    Add a positional command that takes all remaining arguments and must not be empty.

    Args:
        parser: Parser of the subcommand.
        verb: What is done with the command, for the error if it is missing.
        run: Called with the options, in which `argv` is the command.
        metavar: Its name in the help text.
    """
    parser.add_argument("argv", metavar=metavar, nargs=argparse.REMAINDER, help="the command")

    def start(options: argparse.Namespace) -> int:
        # argparse leaves the separator in a REMAINDER.
        if options.argv[:1] == ["--"]:
            del options.argv[0]
        if not options.argv:
            parser.error(f"the command to {verb} is missing")
        return run(options)

    parser.set_defaults(run=start)


class SuggestingParser(argparse.ArgumentParser):
    """
    `argparse.ArgumentParser` with three differences.

    For an unknown subcommand or option, the error suggests the most similar one. The error comes
    from the subcommand, so its usage is shown. A missing subcommand is answered with a list.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if self._subparsers is not None and not (sys.argv[1:] if args is None else args):
            self._ask_for_subcommand()
        options, rest = super().parse_known_args(args, namespace)
        # Only the innermost parser knows the options.
        if rest and not self._has_subcommands:
            self._refuse(rest)
        return options, rest

    def _get_formatter(self) -> argparse.HelpFormatter:
        # Without a width, `argparse` would import `shutil`, with modules for archives, to determine
        # it, and it creates a formatter for each added option.
        make: Any = self.formatter_class
        formatter: argparse.HelpFormatter = make(prog=self.prog, width=_columns() - 2)
        return formatter

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        raise argparse.ArgumentError(
            action,
            f"invalid choice {value!r}{did_you_mean(str(value), known)}; known: {', '.join(known)}",
        )

    def _ask_for_subcommand(self) -> None:
        """Exit with the names of the subcommands, if one is required."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and action.required:  # noqa: SLF001 - the only name it has
                names = ", ".join(action.choices)
                self.error(f"{action.metavar} is missing; known: {names}")

    @property
    def _has_subcommands(self) -> bool:
        return self._subparsers is not None

    def _refuse(self, rest: Sequence[str]) -> NoReturn:
        first = rest[0]
        if first.startswith("-") and first != "-":
            name = first.partition("=")[0]
            known = [option for option in self._option_string_actions if option.startswith("--")]
            self.error(f"unknown option {name}{did_you_mean(name, known)}")
        self.error(f"too many arguments: {' '.join(rest)}")


def _columns() -> int:
    """Return the width of the terminal, as `shutil.get_terminal_size` does."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        # Not `sys.stdout`, which may have been replaced.
        output = sys.__stdout__
        return 80 if output is None else os.get_terminal_size(output.fileno()).columns or 80
    except (ValueError, OSError):
        # It is closed, or not a terminal.
        return 80
