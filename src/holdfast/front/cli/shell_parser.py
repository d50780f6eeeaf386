"""Options of `holdfast shell`, whose code is imported when it is run."""

import argparse
from typing import TypeAlias

from holdfast.front.cli.policy_parser import add_rules_option
from holdfast.front.cli.sandbox_options_parser import add_confining_options, seconds
from holdfast.front.cli.server_options_parser import add_environment_options
from holdfast.front.cli.suggesting_parser import late

__all__ = ["add_shell"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_ABOUT = """\
A prompt on the tools of a model: each line is run as by `exec_command`, with live output.
`:help` shows the other commands; `:text` and `:json` show what a model would have read. Input
may also be a file or a pipe.
"""

_EXAMPLES = """\
examples:
  holdfast shell
  holdfast shell --on build --sandbox workspace-write
  holdfast shell --policy untrusted --rules ./ci.rules
  echo 'make test' | holdfast shell --model-text

exit status: 0, or 125 if the environment cannot be reached or an option is invalid.
"""


def add_shell(commands: _Commands) -> None:
    """Add `shell`."""
    shell = commands.add_parser(
        "shell",
        help="start a prompt that shows what an agent would see",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_environment_options(shell)
    shell.add_argument("--cwd", metavar="PATH", help="where commands run (default: here)")
    add_confining_options(shell)
    shell.add_argument(
        "--policy",
        choices=["on-request", "never", "untrusted"],
        help="the approval policy; questions are asked on the terminal (default: no questions)",
    )
    add_rules_option(shell, "to use in addition to those of the layers")
    shell.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=10.0,
        help="how long to wait before a line continues in the background (default: 10)",
    )
    shell.add_argument("--login", action="store_true", help="run commands in a login shell")
    shell.add_argument(
        "--model-text", action="store_true", help="show the text for a model, not live output"
    )
    shell.set_defaults(run=late("holdfast.front.cli.guarded:shell"))
