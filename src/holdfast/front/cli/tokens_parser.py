"""Options of `holdfast token`, whose code is imported when it is run."""

import argparse
from typing import TypeAlias

from holdfast.front.cli.suggesting_parser import late

__all__ = ["add_token"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_ABOUT = """\
Manage the tokens in the file of a server's --token-file, each with the name of a client. A
server reloads the file at SIGHUP, and then ends the connections of removed tokens.
"""

_EXAMPLES = """\
examples:
  (umask 077; holdfast token add ci --token-file /etc/holdfast/token > ci-token)
  holdfast token list --token-file /etc/holdfast/token
  holdfast token remove ci --token-file /etc/holdfast/token && kill -HUP PID

exit status: 0, or 1 if the file is unusable or has no such token, 2 for an error in the
command line.
"""


def add_token(commands: _Commands) -> None:
    """Add the subcommand and its subcommands."""
    token = commands.add_parser(
        "token",
        help="manage the tokens of a server's clients: add, list, remove",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    operations: _Commands = token.add_subparsers(
        title="operations", metavar="OPERATION", required=True
    )
    add = _add(operations, "add", "add a new token to the file, and print it")
    add.add_argument("name", metavar="NAME", help="name of the client")

    listing = _add(operations, "list", "list the name and fingerprint of each token")
    listing.add_argument("--json", action="store_true", help="one JSON array")

    remove = _add(operations, "remove", "remove the tokens of a name")
    remove.add_argument("name", metavar="NAME", help="name of the client")
    remove.add_argument(
        "--fingerprint",
        metavar="HEX",
        help="only the token with this fingerprint, as shown by `list`",
    )


def _add(operations: _Commands, name: str, about: str) -> argparse.ArgumentParser:
    parser = operations.add_parser(name, help=about, description=about)
    parser.add_argument("--token-file", metavar="PATH", required=True, help="the server's file")
    parser.set_defaults(run=late("holdfast.front.cli.tokens:token", name))
    return parser
