"""The options of `holdfast mcp`."""

import argparse

from holdfast.front.cli.sandbox_options_parser import add_sandbox_write, seconds
from holdfast.front.cli.server_options_parser import add_environment_option
from holdfast.front.cli.suggesting_parser import late

__all__ = ["add_mcp"]

_ABOUT = """\
Serve the tools of Holdfast to an agent that speaks the Model Context Protocol: run commands,
go on with them, read and write files. An agent starts it on its standard streams; over HTTP it
prints its URL once it listens.
"""

_EXAMPLES = """\
examples:
  holdfast mcp
  holdfast mcp --cwd ~/project --sandbox workspace-write --ask-for-approval on-request
  holdfast mcp --environment build --sandbox danger-full-access
  holdfast mcp --listen http://127.0.0.1:4700 --token-file ~/.mcp-token
"""


def add_mcp(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "mcp",
        help="serve the tools to an agent, over the Model Context Protocol",
        usage="%(prog)s [--listen URL] [--cwd DIR] [options]",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a .toml file with these options by their names; what is given here wins"
        " (default: mcp.toml in the home of Holdfast, if it is there)",
    )
    parser.add_argument(
        "--listen",
        metavar="URL",
        help="stdio or http://IP:PORT (default: stdio)",
    )
    add_environment_option(parser)
    parser.add_argument(
        "--cwd", metavar="DIR", help="folder of the commands, and what the sandbox lets them write"
    )
    parser.add_argument(
        "--sandbox",
        metavar="PROFILE",
        help="danger-full-access, workspace-write, read-only or a .toml file"
        " (default: workspace-write)",
    )
    add_sandbox_write(parser)
    _add_approval_options(parser)
    parser.add_argument(
        "--max-wait",
        metavar="SECONDS",
        type=seconds,
        help="the longest that a call lasts, whatever it asks for (default: 50)",
    )
    parser.add_argument(
        "--on-cancel",
        choices=("stop", "keep"),
        help="what becomes of a command whose exec_command is cancelled (default: stop)",
    )
    parser.add_argument(
        "--no-notes",
        action="store_true",
        help="leave out the notes on what happened and what to do",
    )
    _add_http_options(parser)
    parser.set_defaults(run=late("holdfast.front.cli.guarded:mcp"))


def _add_approval_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ask-for-approval",
        metavar="POLICY",
        choices=("never", "on-request"),
        help="never, or on-request: what needs an approval is asked of the client"
        " (default: on-request)",
    )
    parser.add_argument(
        "--ask-after-denial",
        action="store_true",
        help="also ask whether a command that its sandbox denied something may run again outside",
    )
    parser.add_argument(
        "--rules",
        metavar="FILE",
        action="append",
        default=[],
        help="a rules file: what is allowed, asked about and forbidden; may be repeated",
    )
    parser.add_argument(
        "--rules-leave-sandbox",
        action="store_true",
        help="what rules allow runs without a sandbox: an allowed program that the"
        " agent can replace or configure then gives it everything",
    )


def _add_http_options(parser: argparse.ArgumentParser) -> None:
    over_http = parser.add_argument_group("over HTTP")
    over_http.add_argument(
        "--keep",
        metavar="SECONDS",
        type=seconds,
        help="how long sessions outlive the last request of their client (default: 1800)",
    )
    over_http.add_argument(
        "--token-file",
        metavar="PATH",
        help="holds bearer tokens, one in each line; each sees only its own sessions. Made with a"
        " new token if it is missing. Needed beyond loopback (default: a token for this start)",
    )
    over_http.add_argument(
        "--no-auth",
        action="store_true",
        help="ask for no token on loopback: every user of this machine can run commands",
    )
    over_http.add_argument(
        "--allowed-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name by which clients reach the server, besides addresses; may be repeated",
    )
    over_http.add_argument(
        "--allowed-origin",
        metavar="URL",
        action="append",
        default=[],
        help="a web page that may come in, such as https://app.example.com; may be repeated",
    )
