"""The options of `holdfast connect`. Their code is imported only when it is run."""

import argparse
from typing import TypeAlias

from holdfast.base.late_import import load
from holdfast.base.url_schemes import SCHEMES
from holdfast.front.cli.server_options_parser import add_token_option

__all__ = ["add_connect"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_ABOUT = """\
Try an environment out, and set up a host behind ssh.

A host needs Python 3.11 and nothing else. Where this version of Holdfast is missing, you
are asked whether it may be installed: into one folder of your user on that host, over
the same ssh. --remove takes it away again.
"""

_EXAMPLES = """\
examples:
  holdfast connect ssh://me@build.example.com
  holdfast connect --yes --save build ssh://build
  holdfast connect --ssh "ssh -J gate -i ~/.ssh/ci" ssh://build:2222
  holdfast connect --remove ssh://build
  holdfast connect ws://127.0.0.1:4500

exit status: 0, or 1 if there is no connection or no consent, 2 for a mistake in the
command line.
"""


def add_connect(commands: _Commands) -> None:
    """Add the subcommand."""
    connect = commands.add_parser(
        "connect",
        help="try an environment out; on a host behind ssh, install Holdfast if you agree",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    connect.add_argument(
        "where",
        metavar="WHERE",
        help=f"{', '.join(scheme.form for scheme in SCHEMES)}, or a name in environments.toml",
    )
    connect.add_argument("--yes", "-y", action="store_true", help="install without a question")
    connect.add_argument(
        "--remove", action="store_true", help="remove what was installed on the host"
    )
    connect.add_argument(
        "--save", metavar="NAME", help="write it down in environments.toml under this name"
    )
    connect.add_argument(
        "--ssh", metavar="COMMAND", help="ssh with options of your own, in one word"
    )
    add_token_option(connect, "of a server")

    def start(options: argparse.Namespace) -> int:
        if options.remove and (options.save or options.yes):
            connect.error("--remove goes with neither --save nor --yes")
        status: int = load("holdfast.front.cli.connect:connect")(options)
        return status

    connect.set_defaults(run=start)
