"""A parser of arguments that says what somebody may have meant who made a typo."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast.suggestions import did_you_mean

__all__ = ["SuggestingParser"]


class SuggestingParser(argparse.ArgumentParser):
    """
    `argparse.ArgumentParser` with two differences.

    An unknown word or option is answered with the most similar one. The error comes from the
    subcommand, so its own usage is shown.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        options, rest = super().parse_known_args(args, namespace)
        # Only the innermost parser knows which options exist.
        if rest and not self._has_subcommands:
            self._refuse(rest)
        return options, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        raise argparse.ArgumentError(
            action,
            f"there is no {value!r}{did_you_mean(str(value), known)}; known: {', '.join(known)}",
        )

    @property
    def _has_subcommands(self) -> bool:
        return self._subparsers is not None

    def _refuse(self, rest: Sequence[str]) -> NoReturn:
        first = rest[0]
        if first.startswith("-") and first != "-":
            name = first.partition("=")[0]
            known = [option for option in self._option_string_actions if option.startswith("--")]
            self.error(f"there is no option {name}{did_you_mean(name, known)}")
        self.error(f"too many arguments: {' '.join(rest)}")
