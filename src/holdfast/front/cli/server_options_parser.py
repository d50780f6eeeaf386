"""The options that name an environment, the same for all subcommands that use one."""

import argparse

__all__ = [
    "add_environment_option",
    "add_environment_options",
    "add_token_option",
    "add_verbose_option",
]


def add_environment_options(parser: argparse.ArgumentParser) -> None:
    """
    Add `--on`, `--url` and `--cmd`, of which one may be given, and the token for `--url`.

    Without any of them the default environment is meant: see `front/cli/server_options.py`.
    """
    parser.set_defaults(by_default=False)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--on",
        metavar="WHERE",
        help="a name of `holdfast env list`, `local` for this machine, or ssh://[USER@]HOST[:PORT]"
        " (default: the default of `holdfast env list`)",
    )
    group.add_argument(
        "--url", metavar="URL", help="on that server: ws://…, wss://… or unix:///PATH"
    )
    group.add_argument(
        "--cmd", metavar="COMMAND", help="on the server this command is, on its stdin and stdout"
    )
    add_token_option(parser, "for --url")


def add_token_option(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add `--token-file`; `purpose` says in the help text what the token is for."""
    parser.add_argument(
        "--token-file",
        metavar="PATH",
        help=f"holds the bearer token {purpose} (default: the variable HOLDFAST_TOKEN, or what a"
        " server of this user on this machine has written down)",
    )


def add_environment_option(parser: argparse.ArgumentParser) -> None:
    """Add `--environment`, for a server that runs the commands of its clients elsewhere."""
    parser.add_argument(
        "--environment",
        metavar="NAME",
        help="run commands there: a name of `holdfast env list`, ssh://[USER@]HOST, or the URL"
        " of an exec-server (default: the default of `holdfast env list`)",
    )


def add_verbose_option(parser: argparse.ArgumentParser) -> None:
    """Add `-v`, which tells where something was done."""
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="say on stderr which machine it is done on"
    )
