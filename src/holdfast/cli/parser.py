"""The options of every subcommand. Their code is imported only when one is run."""

import argparse

from holdfast._version import __version__

__all__ = ["make_parser"]

_AUTH_MODES = ("capability-token", "signed-bearer-token")


def make_parser() -> argparse.ArgumentParser:
    """The parser of `holdfast`; the chosen subcommand's function is in `run` of its result."""
    parser = argparse.ArgumentParser(
        prog="holdfast",
        description="Starts processes for agents, here or on another machine, and holds them fast.",
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands, "serve", "start a server and print its URL")
    _add_serve(commands, "exec-server", "the same, under the name it has in Codex")
    return parser


def _add_serve(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, about: str
) -> None:
    serve = commands.add_parser(
        name,
        help=about,
        description="Serve the exec-server protocol. Prints one line, the URL, once it listens.",
    )
    serve.add_argument(
        "--listen",
        metavar="URL",
        default="ws://127.0.0.1:0",
        help="ws://IP:PORT, stdio or unix:///PATH (default: %(default)s, any free port)",
    )
    serve.add_argument(
        "--concurrent-requests",
        metavar="COUNT",
        type=_positive,
        help="requests of a connection that may wait at once; 1 keeps strict order",
    )
    serve.add_argument(
        "--ws-auth", metavar="MODE", choices=_AUTH_MODES, help=" or ".join(_AUTH_MODES)
    )
    serve.add_argument("--ws-token-file", metavar="PATH", help="holds the capability token")
    serve.add_argument("--ws-token-sha256", metavar="HEX", help="SHA-256 of the capability token")
    serve.add_argument(
        "--ws-shared-secret-file", metavar="PATH", help="key of signed tokens (HS256)"
    )
    serve.add_argument("--ws-issuer", metavar="NAME", help="required `iss` of signed tokens")
    serve.add_argument("--ws-audience", metavar="NAME", help="required `aud` of signed tokens")
    serve.add_argument(
        "--ws-max-clock-skew-seconds", metavar="N", type=_not_negative, help="default 30"
    )
    serve.add_argument(
        "--insecure-no-auth",
        action="store_true",
        help="allow listening beyond loopback without --ws-auth: anyone who can connect runs commands",
    )
    serve.set_defaults(run=_run_serve)


def _run_serve(options: argparse.Namespace) -> int:
    from holdfast.cli.serve import serve  # noqa: PLC0415

    return serve(options)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value
