"""The worker of `holdfast mcp`: the tools for an agent."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from holdfast._version import install_command
from holdfast.cli.loading import load
from holdfast.cli.mcp_settings import McpSettings, read_settings
from holdfast.cli.server_worker import set_log_level
from holdfast.environments.config.home import is_configured
from holdfast.errors import InvalidConfig
from holdfast.mcp_server.options import PROFILES, ServerOptions
from holdfast.server.entrance import EntranceOptions
from holdfast.server.listen import BadListenUrl, ListenUrl, parse_listen_url
from holdfast.server.serve import ServeOptions, StartFailed, serve_forever
from holdfast.telemetry import Telemetry

if TYPE_CHECKING:
    from holdfast.mcp_server.http import HttpAccess
    from holdfast.mcp_server.server import McpServer

__all__ = ["run_mcp"]


def run_mcp(options: argparse.Namespace, lifeline: int) -> int:
    """Serve in this process, which has a guardian, and return the exit status."""
    try:
        set_log_level(os.environ.get("HOLDFAST_LOG", "error"))
        settings = read_settings(options)
        _check(settings)
        # Loaded after the checks, which answer at once; it may not be installed.
        server_class = load("McpServer")
    except ValueError:
        print("Error: HOLDFAST_LOG must be error, warning, info or debug", file=sys.stderr)
        return 1
    except InvalidConfig as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(
            f"Error: the extra `mcp` is not installed ({error.name} is missing):"
            f" {install_command('mcp')}",
            file=sys.stderr,
        )
        return 1
    if settings.listen == "stdio" and sys.stdin.isatty():
        print(
            "holdfast mcp: waiting for a client on the standard streams; an agent starts it,"
            " see `holdfast mcp --help`",
            file=sys.stderr,
        )
    chosen = _server_options(settings)

    def make(where: ListenUrl, telemetry: Telemetry | None) -> "McpServer":
        access = None if where.kind == "stdio" else _access(settings)
        server: McpServer = server_class(chosen, access)
        return server

    try:
        where = _where(settings)
        return serve_forever(
            ServeOptions(
                listen=settings.listen,
                scheme="http",
                entrance=EntranceOptions(
                    # A file of settings may name it for the times when the server listens.
                    token_file=settings.token_file if where.is_network else None,
                    makes_token=True,
                    no_auth=settings.no_auth,
                ),
                announces_token=True,
                reloads=True,
                # One client, and most of the time is the SDK's: memory counts for more.
                takes_uvloop=False,
            ),
            lifeline=lifeline,
            announce=_announce,
            make=make,
        )
    except StartFailed as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def _server_options(settings: McpSettings) -> ServerOptions:
    return ServerOptions(
        environment=settings.environment,
        cwd=settings.cwd,
        sandbox=settings.sandbox,
        ask_for_approval=settings.ask_for_approval,
        ask_after_denial=settings.ask_after_denial,
        rules=settings.rules,
        max_wait=settings.max_wait,
        on_cancel=settings.on_cancel,
        keep=settings.keep,
    )


def _check(settings: McpSettings) -> None:
    """
    Check the settings for mistakes before anything heavy is loaded.

    Raises:
        InvalidConfig: A setting is wrong.
    """
    # Any other environment may be another machine, whose directories are unknown here.
    here = settings.environment == "local" or not (
        settings.environment or is_configured(os.environ)
    )
    if here and settings.cwd is not None and not os.path.isdir(settings.cwd):
        raise InvalidConfig(f"--cwd: {settings.cwd} is no folder")
    if settings.sandbox not in PROFILES and not os.path.isfile(settings.sandbox):
        known = ", ".join(PROFILES)
        raise InvalidConfig(
            f"--sandbox: there is no profile `{settings.sandbox}`: expected {known} or a file"
        )
    for path in settings.rules:
        if not os.path.isfile(path):
            raise InvalidConfig(f"--rules: {path} is no file")


def _where(settings: McpSettings) -> ListenUrl:
    """
    Return where to listen.

    Raises:
        StartFailed: The URL is invalid, or nobody could know the token that is asked for there.
    """
    try:
        where = parse_listen_url(settings.listen, scheme="http")
    except BadListenUrl as error:
        raise StartFailed(str(error)) from error
    if where.kind == "unix":
        raise StartFailed("--listen takes stdio or http://IP:PORT")
    if not where.is_local and settings.token_file is None:
        raise StartFailed(
            f"clients that reach {where.host} over the network need a token that they know;"
            " add `--token-file FILE`"
        )
    return where


def _access(settings: McpSettings) -> "HttpAccess":
    access: HttpAccess = load("HttpAccess")(
        hosts=settings.allowed_host, origins=settings.allowed_origin
    )
    return access


def _announce(url: str) -> None:
    print(url, flush=True)
