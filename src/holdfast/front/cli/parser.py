"""Options of all subcommands, whose code is imported when one is run."""

import argparse

from holdfast.base.late_import import load
from holdfast.base.version import __version__
from holdfast.front.cli.suggesting_parser import SuggestingParser, late

__all__ = ["add_completion", "make_parser"]

# The function that adds each subcommand, in the order of the help text.
_ADDING = {
    "serve": "holdfast.front.cli.serve_parser:add_serve",
    "exec-server": "holdfast.front.cli.serve_parser:add_exec_server",
    "app-server": "holdfast.front.cli.app_server_parser:add_app_server",
    "mcp": "holdfast.front.cli.mcp_parser:add_mcp",
    "run": "holdfast.front.cli.run_parser:add_run",
    "shell": "holdfast.front.cli.shell_parser:add_shell",
    "fs": "holdfast.front.cli.fs_parser:add_fs",
    "connect": "holdfast.front.cli.connect_parser:add_connect",
    "env": "holdfast.front.cli.env_parser:add_env",
    "token": "holdfast.front.cli.tokens_parser:add_token",
    "policy": "holdfast.front.cli.policy_parser:add_policy",
    "sandbox": "holdfast.front.cli.sandbox_parser:add_sandbox",
    "doctor": "holdfast.front.cli.sandbox_parser:add_doctor",
    "completion": "holdfast.front.cli.parser:add_completion",
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
    Return the parser; `run` of the parsed options is the function of the chosen subcommand.

    Args:
        only: The subcommand to be parsed, if known: adding the options of all others takes longer
            than most of them need to start.
    """
    parser: argparse.ArgumentParser = SuggestingParser(
        prog="holdfast",
        description="Starts processes for agents, here or on another machine, and holds them fast.",
        epilog="`holdfast COMMAND --help` shows the options of a command.",
    )
    # Set by `main`; other users of the parser need a value too.
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
    completion.add_argument("shell", choices=_SHELLS, help="name of the shell")
    completion.set_defaults(run=late("holdfast.front.cli.completion:completion"))
