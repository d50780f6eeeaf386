"""Options of `holdfast mcp`."""

import argparse

from holdfast.front.cli.sandbox_options_parser import add_sandbox_write, seconds
from holdfast.front.cli.server_options_parser import add_environment_option
from holdfast.front.cli.suggesting_parser import late

__all__ = ["add_mcp"]

_ABOUT = """\
Serve the tools of Holdfast to an agent over the Model Context Protocol: run commands, interact
with them, read and write files. Agents start this command on its standard streams; over HTTP
it prints its URL once it listens.
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
        help="serve tools to an agent over the Model Context Protocol",
        usage="%(prog)s [--listen URL] [--cwd DIR] [options]",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a .toml file with these options by name; the command line takes precedence"
        " (default: mcp.toml in Holdfast's home, if it exists)",
    )
    parser.add_argument(
        "--listen",
        metavar="URL",
        help="stdio or http://IP:PORT (default: stdio)",
    )
    add_environment_option(parser)
    parser.add_argument(
        "--cwd", metavar="DIR", help="directory of the commands, which the sandbox lets them write"
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
        help="maximum duration of a call, whatever it requests (default: 50)",
    )
    parser.add_argument(
        "--on-cancel",
        choices=("stop", "keep"),
        help="what to do with a command whose exec_command is cancelled (default: stop)",
    )
    parser.add_argument(
        "--no-notes",
        action="store_true",
        help="omit the notes on what happened and what to do",
    )
    _add_http_options(parser)
    parser.set_defaults(run=late("holdfast.front.cli.guarded:mcp"))


def _add_approval_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ask-for-approval",
        metavar="POLICY",
        choices=("never", "on-request"),
        help="never, or on-request: ask the client for approvals (default: on-request)",
    )
    parser.add_argument(
        "--ask-after-denial",
        action="store_true",
        help="also ask whether to rerun a command without the sandbox that denied it access",
    )
    parser.add_argument(
        "--rules",
        metavar="FILE",
        action="append",
        default=[],
        help="a rules file: commands to allow, ask about or forbid; may be repeated",
    )
    parser.add_argument(
        "--rules-leave-sandbox",
        action="store_true",
        help="run commands that rules allow without a sandbox: an allowed program that the agent"
        " can replace or configure then gives it full access",
    )


def _add_http_options(parser: argparse.ArgumentParser) -> None:
    over_http = parser.add_argument_group("over HTTP")
    over_http.add_argument(
        "--keep",
        metavar="SECONDS",
        type=seconds,
        help="how long a session outlives the last request of its client (default: 1800)",
    )
    over_http.add_argument(
        "--token-file",
        metavar="PATH",
        help="file with bearer tokens, one per line; each only sees its own sessions. Created with"
        " a new token if missing. Required beyond loopback (default: a token for this run)",
    )
    over_http.add_argument(
        "--no-auth",
        action="store_true",
        help="require no token on loopback: every user of this machine can run commands",
    )
    over_http.add_argument(
        "--allowed-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a host name that clients use for the server, besides IP addresses; may be repeated",
    )
    over_http.add_argument(
        "--allowed-origin",
        metavar="URL",
        action="append",
        default=[],
        help="a web page that may connect, such as https://app.example.com; may be repeated",
    )
