"""The options of every subcommand. Their code is imported only when one is run."""

import argparse

from holdfast.base.version import __version__
from holdfast.front.cli.loading import load
from holdfast.front.cli.suggesting_parser import SuggestingParser

__all__ = ["add_completion", "make_parser"]

# The function that adds each subcommand, in the order of the help; see `loading.py`.
_ADDING = {
    "serve": "add_serve",
    "exec-server": "add_exec_server",
    "app-server": "add_app_server",
    "mcp": "add_mcp",
    "run": "add_run",
    "shell": "add_shell",
    "fs": "add_fs",
    "connect": "add_connect",
    "env": "add_env",
    "token": "add_token",
    "policy": "add_policy",
    "sandbox": "add_sandbox",
    "doctor": "add_doctor",
    "completion": "add_completion",
}

_SHELLS = ("bash", "zsh", "fish", "tcsh")

_COMPLETION_EXAMPLES = """\
examples:
  holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
  holdfast completion zsh > "${fpath[1]}/_holdfast"
  holdfast completion fish > ~/.config/fish/completions/holdfast.fish
  holdfast completion tcsh > ~/.holdfast.completion.csh   # and source it in ~/.tcshrc
"""


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """
    Return the parser; `run` of its result is the function of the chosen subcommand.

    Args:
        only: The subcommand that will be parsed, if it is known: to make the options of all
            others takes longer than most of them need to start.
    """
    parser: argparse.ArgumentParser = SuggestingParser(
        prog="holdfast",
        description="Starts processes for agents, here or on another machine, and holds them fast.",
        epilog="`holdfast COMMAND --help` shows what a command takes.",
    )
    # Set by `main`; a parser used elsewhere needs a value as well.
    parser.set_defaults(arguments=())
    parser.add_argument("--version", "-V", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in [only] if only in _ADDING else _ADDING:
        load(_ADDING[name])(commands)
    return parser


def add_completion(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `completion`."""
    completion = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="Print a script that completes commands, options, names of environments,"
        " profiles and files of holdfast in a shell.",
        epilog=_COMPLETION_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    completion.add_argument("shell", choices=_SHELLS, help="which shell")
    completion.set_defaults(run=_run_completion)


def _run_completion(options: argparse.Namespace) -> int:
    status: int = load("completion")(options)
    return status
