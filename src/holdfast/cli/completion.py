"""`holdfast completion`: a script that teaches a shell the options of this command line."""

import argparse
import sys
from collections.abc import Iterator

from holdfast.cli.parser import make_parser

__all__ = ["completion"]

_FILES = (
    "token_file",
    "ws_token_file",
    "ws_shared_secret_file",
    "tls_cert",
    "tls_key",
    "sandbox",
    "profile",
    "audit_log",
)
_FOLDERS = ("cwd",)


def completion(options: argparse.Namespace) -> int:
    """Print the script for the shell of the options."""
    import shtab

    parser = make_parser()
    for action in _actions(parser):
        if action.dest in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab looks for it
        elif action.dest in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, shell=options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - there is no other way to look at them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _actions(command)
