"""The options that name a place, the same wherever a command can go to one."""

import argparse

__all__ = ["add_place_options", "add_verbose_option"]


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """
    Add `--on`, `--url` and `--cmd`, of which one may be given, and the token for `--url`.

    Without any of them the default environment is meant: see `cli/place.py`.
    """
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--on",
        metavar="WHERE",
        help="a name of `holdfast env list`, `local` for this machine, or ssh://[USER@]HOST[:PORT]"
        " (default: the default of `holdfast env list`)",
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


def add_verbose_option(parser: argparse.ArgumentParser) -> None:
    """Add `-v`, which tells where something was done."""
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="say on stderr which machine it is done on"
    )
