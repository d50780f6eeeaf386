"""Options of `holdfast connect`, whose code is imported when it is run."""

import argparse
from typing import TypeAlias

from holdfast.base.late_import import load
from holdfast.base.url_schemes import SCHEMES
from holdfast.front.cli.server_options_parser import add_token_option

__all__ = ["add_connect"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_ABOUT = """\
Try an environment, and set up a host behind ssh.

The host only needs Python 3.11. If it lacks this version of Holdfast, you are asked whether
to install it: into one directory of your user on that host, over the same ssh. --remove
removes it again.
"""

_EXAMPLES = """\
examples:
  holdfast connect ssh://me@build.example.com
  holdfast connect --yes --save build ssh://build
  holdfast connect --ssh "ssh -J gate -i ~/.ssh/ci" ssh://build:2222
  holdfast connect --remove ssh://build
  holdfast connect ws://127.0.0.1:4500

exit status: 0, or 1 without connection or consent, 2 for an error in the command line.
"""


def add_connect(commands: _Commands) -> None:
    """Add the subcommand."""
    connect = commands.add_parser(
        "connect",
        help="try an environment; on a host behind ssh, install Holdfast if you agree",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    connect.add_argument(
        "where",
        metavar="WHERE",
        help=f"{', '.join(scheme.form for scheme in SCHEMES)}, or a name in environments.toml",
    )
    connect.add_argument("--yes", "-y", action="store_true", help="install without asking")
    connect.add_argument(
        "--remove", action="store_true", help="remove what was installed on the host"
    )
    connect.add_argument(
        "--save", metavar="NAME", help="save it in environments.toml under this name"
    )
    connect.add_argument(
        "--ssh", metavar="COMMAND", help="the ssh command with your options, as one argument"
    )
    add_token_option(connect, "of a server")

    def start(options: argparse.Namespace) -> int:
        if options.remove and (options.save or options.yes):
            connect.error("--remove cannot be used with --save or --yes")
        status: int = load("holdfast.front.cli.connect:connect")(options)
        return status

    connect.set_defaults(run=start)
