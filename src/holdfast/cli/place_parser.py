"""The options that name a place, the same wherever a command can go to one."""

import argparse

__all__ = ["add_place_options"]


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Add `--on`, `--url` and `--cmd`, of which one may be given, and the token for `--url`."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--on", metavar="WHERE", help="a name of `holdfast env list`, or ssh://[USER@]HOST[:PORT]"
    )
    place.add_argument(
        "--url", metavar="URL", help="on that server: ws://…, wss://… or unix:///PATH"
    )
    place.add_argument(
        "--cmd", metavar="COMMAND", help="on the server this command is, on its stdin and stdout"
    )
    parser.add_argument(
        "--token-file",
        metavar="PATH",
        help="holds the bearer token for --url (default: the variable HOLDFAST_TOKEN)",
    )
