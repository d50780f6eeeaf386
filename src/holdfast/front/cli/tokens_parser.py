"""The options of `holdfast token`. Their code is imported only when one is run."""

import argparse
from typing import TypeAlias

from holdfast.front.cli.suggesting_parser import late

__all__ = ["add_token"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_ABOUT = """\
The tokens in the file of a server's --token-file, each with the name of a client. A server reads
its file again at SIGHUP; a token that was removed then ends its connections.
"""

_EXAMPLES = """\
examples:
  (umask 077; holdfast token add ci --token-file /etc/holdfast/token > ci-token)
  holdfast token list --token-file /etc/holdfast/token
  holdfast token remove ci --token-file /etc/holdfast/token && kill -HUP PID

exit status: 0, or 1 if the file cannot be used or has no such token, 2 for a mistake in the
command line.
"""


def add_token(commands: _Commands) -> None:
    """Add the subcommand and its own subcommands."""
    token = commands.add_parser(
        "token",
        help="tokens of a server's clients: add, list, remove",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    operations: _Commands = token.add_subparsers(
        title="operations", metavar="OPERATION", required=True
    )
    add = _add(operations, "add", "add a new token to the file, and print it")
    add.add_argument("name", metavar="NAME", help="the client that gets it")

    listing = _add(operations, "list", "list the names, and a fingerprint of each token")
    listing.add_argument("--json", action="store_true", help="one JSON array")

    remove = _add(operations, "remove", "remove the tokens of a name")
    remove.add_argument("name", metavar="NAME", help="the client that had them")
    remove.add_argument("--fingerprint", metavar="HEX", help="only this one, as `list` shows it")


def _add(operations: _Commands, name: str, about: str) -> argparse.ArgumentParser:
    parser = operations.add_parser(name, help=about, description=about)
    parser.add_argument("--token-file", metavar="PATH", required=True, help="the server's file")
    parser.set_defaults(run=late("holdfast.front.cli.tokens:token", name))
    return parser
