"""`holdfast completion`: prints completion scripts for shells."""

import argparse
import sys
from collections.abc import Iterator

import shtab

from holdfast.front.cli.parser import make_parser

__all__ = ["completion"]

# Options by the kind of value to complete.
_FILES = (
    "token_file",
    "ws_token_file",
    "ws_shared_secret_file",
    "tls_cert",
    "tls_key",
    "audit_log",
    "file",
    "config",
    "rules",
    "paths",
    "sources",
    "target",
)
_FOLDERS = ("cwd", "attach")
_PROFILES = ("sandbox", "profile")
_NAMES = ("on", "id", "ids", "environment")

_LIST_NAMES = "holdfast env list --names 2>/dev/null"
_LIST_PROFILES = (
    "sh -c 'printf \"%s\\n\" read-only workspace-write disabled; ls -d *.toml 2>/dev/null'"
)


def completion(options: argparse.Namespace) -> int:
    """Print the script for the chosen shell."""
    kinds = {
        **dict.fromkeys(_FILES, shtab.FILE),
        **dict.fromkeys(_FOLDERS, shtab.DIRECTORY),
        **dict.fromkeys(_PROFILES, shtab.cmd(_LIST_PROFILES)),
        **dict.fromkeys(_NAMES, shtab.cmd(_LIST_NAMES)),
    }
    parser = make_parser()
    for action in _actions(parser):
        if action.dest in kinds:
            action.complete = kinds[action.dest]  # type: ignore[attr-defined]  # shtab looks for it
    sys.stdout.write(shtab.complete(parser, shell=options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - there is no other way to look at them
        yield action
        # Also complete options of subcommands.
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _actions(command)
