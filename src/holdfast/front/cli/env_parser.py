"""Options of `holdfast env`, whose code is imported when it is run."""

import argparse
from typing import TypeAlias

from holdfast.front.cli.suggesting_parser import late

__all__ = ["add_env"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_ABOUT = """\
Named environments: this machine (`local`), and those of environments.toml in
$HOLDFAST_HOME (by default ~/.config/holdfast). The same names can be used in
`holdfast run --on NAME`, `holdfast fs … --on NAME` and `holdfast.connect("NAME")`.
"""

_EXAMPLES = """\
examples:
  holdfast env add build --url wss://build.example.com --token-file ~/.build-token
  holdfast env add box --cmd "docker exec -i box holdfast serve --listen stdio"
  holdfast env check
  holdfast run --on build -- make test

exit status: 0, or 1 after a failure (for check: if an environment cannot be used), 2 for an
error in the command line.
"""


def add_env(commands: _Commands) -> None:
    """Add the subcommand and its subcommands."""
    env = commands.add_parser(
        "env",
        help="named environments to run commands in: list, show, check, add, remove",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    operations: _Commands = env.add_subparsers(
        title="operations", metavar="OPERATION", required=True
    )

    listing = _add(operations, "list", "list them, without connecting")
    listing.add_argument("--names", action="store_true", help="only the names, one per line")
    _add_file_option(listing)
    _add_json_option(listing)

    show = _add(operations, "show", "connect to one, and show its configuration and features")
    show.add_argument("id", metavar="NAME")
    _add_file_option(show)
    _add_json_option(show)

    check = _add(operations, "check", "connect to them and show status, version and latency")
    check.add_argument("ids", metavar="NAME", nargs="*", help="default: all")
    _add_file_option(check)
    _add_json_option(check)

    add = _add(operations, "add", "add one, with a URL or with a command that serves on stdio")
    add.add_argument("id", metavar="NAME")
    group = add.add_mutually_exclusive_group(required=True)
    group.add_argument("--url", metavar="URL", help="a server: ws://…, wss://… or unix:///PATH")
    group.add_argument(
        "--cmd", metavar="COMMAND", help="a command that serves on its stdin and stdout"
    )
    add.add_argument(
        "--token-file", metavar="PATH", help="file with the bearer token of the server"
    )
    add.add_argument("--cwd", metavar="PATH", help="directory to start the command in")
    add.add_argument("--connect-timeout", metavar="SECONDS", type=float, help="default 10")
    add.add_argument("--initialize-timeout", metavar="SECONDS", type=float, help="default 10")
    add.add_argument("--default", action="store_true", help="make it the default")
    _add_file_option(add)

    remove = _add(operations, "remove", "remove one from the file")
    remove.add_argument("id", metavar="NAME")
    _add_file_option(remove)


def _add_file_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file", metavar="PATH", help="another environments.toml, such as the one in $CODEX_HOME"
    )


def _add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add(operations: _Commands, name: str, about: str) -> argparse.ArgumentParser:
    parser = operations.add_parser(name, help=about, description=about)
    parser.set_defaults(run=late("holdfast.front.cli.env:env", name))
    return parser
