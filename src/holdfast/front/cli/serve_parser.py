"""Options of `holdfast serve` and `holdfast exec-server`."""

import argparse

from holdfast.front.cli.listen_parser import (
    add_listen_options,
    add_principal_limits,
    not_negative_seconds,
    positive,
)
from holdfast.front.cli.operate_parser import add_operating_options
from holdfast.front.cli.suggesting_parser import late

__all__ = ["SERVER_CONFIG", "add_exec_server", "add_serve"]

# Seconds; less than the 90 that systemd allows a service to stop.
_DRAIN = 10.0

SERVER_CONFIG = "/etc/holdfast/server.toml"
"""The system-wide config file of the server."""


def add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `serve`."""
    _add_server(
        commands,
        "serve",
        "start a server and print its URL",
        as_codex=False,
        config=SERVER_CONFIG,
    )


def add_exec_server(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `exec-server`, with the defaults of its name and without the system-wide config file."""
    _add_server(
        commands,
        "exec-server",
        "the same, with the name and defaults of Codex",
        as_codex=True,
        config=None,
    )


def _add_server(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    about: str,
    *,
    as_codex: bool,
    config: str | None,
) -> None:
    """Add a server command; with `as_codex` it requires no token by default."""
    serve = commands.add_parser(
        name,
        help=about,
        usage="%(prog)s [--listen URL] [options]",
        description="Serve the exec-server protocol. Prints one line, the URL, once it listens.",
    )
    add_listen_options(
        serve, default="ws://127.0.0.1:0", default_about="%(default)s, any free port"
    )
    serve.add_argument(
        "--concurrent-requests",
        metavar="COUNT",
        type=positive,
        help="maximum waiting requests of a connection; 1 keeps strict order",
    )
    # Clients of `exec-server` expect its commands to end at once.
    drain = 0.0 if as_codex else _DRAIN
    serve.add_argument(
        "--drain",
        metavar="SECONDS",
        type=not_negative_seconds,
        default=drain,
        help="how long commands may take to end after SIGTERM to the server, which forwards it to"
        f" them; a second SIGTERM ends them at once (default: {drain:g})",
    )
    serve.add_argument(
        "--keep",
        action="store_true",
        help="with --listen stdio: outlive a lost connection, for a later --attach",
    )
    serve.add_argument(
        "--attach",
        metavar="FOLDER",
        help="with --listen stdio: connect to a server that was started with --keep",
    )
    # Only exec-servers have principals with limits.
    add_principal_limits(serve)
    serve.set_defaults(as_codex=as_codex, command=name)
    add_operating_options(serve, default_config=config)
    serve.set_defaults(run=late("holdfast.front.cli.serve:serve", serve))
