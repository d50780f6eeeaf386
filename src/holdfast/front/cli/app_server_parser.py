"""The options of `holdfast app-server`."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from holdfast.base.late_import import late_module
from holdfast.front.cli.listen_parser import add_listen_options, positive
from holdfast.front.cli.operate_parser import add_log_options
from holdfast.front.cli.sandbox_options_parser import add_sandbox_write
from holdfast.front.cli.server_options_parser import add_environment_option
from holdfast.front.cli.suggesting_parser import late

if TYPE_CHECKING:
    from holdfast.base import dialect
else:
    # Most commands build this parser, and few show or check the option that needs it.
    dialect = late_module("holdfast.base.dialect")

__all__ = ["add_app_server"]

_ABOUT = """\
Serve the app-server protocol to editors and other applications: `command/exec`, its
controls, and `process/*`. Prints its URL once it listens; on stdio it prints nothing and
ends with its input.
"""

_EXAMPLES = """\
examples:
  holdfast app-server
  holdfast app-server --listen ws://127.0.0.1:4600 --token-file ~/.apps-token
  holdfast app-server --listen unix:///run/user/1000/apps.sock --environment build
  holdfast app-server --sandbox workspace-write --profile ci=ci-profile.toml
"""


def add_app_server(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "app-server",
        help="serve command/exec to an editor or another application",
        usage="%(prog)s [--listen URL] [options]",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_listen_options(parser, default="stdio", default_about="%(default)s")
    parser.add_argument(
        "--concurrent-requests",
        metavar="COUNT",
        type=positive,
        help="maximum commands of a connection that run at once (default: 1024)",
    )
    add_log_options(parser)
    add_environment_option(parser)
    parser.add_argument(
        "--sandbox",
        metavar="PROFILE",
        default="read-only",
        help="default sandbox of commands: read-only, workspace-write, disabled or a .toml file"
        " (default: %(default)s)",
    )
    add_sandbox_write(parser)
    parser.add_argument(
        "--profile",
        metavar="NAME=FILE",
        action="append",
        default=[],
        type=_named_file,
        help="a profile that clients may name; may be repeated",
    )
    parser.add_argument(
        "--compat",
        choices=_Versions(),
        metavar="VERSION",
        help="behave like %(choices)s where the default is better",
    )
    parser.set_defaults(run=late("holdfast.front.cli.guarded:app_server"), as_codex=False)


class _Versions:
    """The values of `--compat`."""

    def __iter__(self) -> Iterator[str]:
        return iter(get_args(dialect.Compat))

    def __str__(self) -> str:
        return ", ".join(self)


def _named_file(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not name or not equals or not path:
        raise argparse.ArgumentTypeError(f"expected NAME=FILE, not {text!r}")
    if name.startswith(":"):
        raise argparse.ArgumentTypeError(f"{name!r}: such names belong to built-in profiles")
    return name, path
