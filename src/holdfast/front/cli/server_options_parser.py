"""Options that name an environment, shared by all subcommands that use one."""

import argparse

__all__ = [
    "add_environment_option",
    "add_environment_options",
    "add_token_option",
    "add_verbose_option",
]


def add_environment_options(parser: argparse.ArgumentParser) -> None:
    """
    Add the mutually exclusive `--on`, `--url` and `--cmd`, and the token for `--url`.

    Without any of them, the default environment is used: see `front/cli/server_options.py`.
    """
    parser.set_defaults(by_default=False)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--on",
        metavar="WHERE",
        help="a name of `holdfast env list`, `local` for this machine, or ssh://[USER@]HOST[:PORT]"
        " (default: the default of `holdfast env list`)",
    )
    group.add_argument("--url", metavar="URL", help="a server: ws://…, wss://… or unix:///PATH")
    group.add_argument(
        "--cmd", metavar="COMMAND", help="a command that serves on its stdin and stdout"
    )
    add_token_option(parser, "for --url")


def add_token_option(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add `--token-file`; `purpose` completes its help text."""
    parser.add_argument(
        "--token-file",
        metavar="PATH",
        help=f"file with the bearer token {purpose} (default: $HOLDFAST_TOKEN, or the token of a"
        " local server of this user)",
    )


def add_environment_option(parser: argparse.ArgumentParser) -> None:
    """Add `--environment`, for a server that runs its clients' commands elsewhere."""
    parser.add_argument(
        "--environment",
        metavar="NAME",
        help="where to run commands: a name of `holdfast env list`, ssh://[USER@]HOST, or the URL"
        " of an exec-server (default: the default of `holdfast env list`)",
    )


def add_verbose_option(parser: argparse.ArgumentParser) -> None:
    """Add `-v`, which shows the machine that is used."""
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="print on stderr which machine is used"
    )
