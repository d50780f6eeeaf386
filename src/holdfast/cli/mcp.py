"""`holdfast mcp`: the tools for an agent, under a guardian."""

import argparse
import os
import sys

from holdfast._version import install_command
from holdfast.process.guardian import run_guarded

TYPE_CHECKING = False  # loading `typing` for it would cost the guardian more than all the rest
if TYPE_CHECKING:
    from holdfast.cli.mcp_settings import McpSettings
    from holdfast.mcp_server.http import HttpAccess
    from holdfast.mcp_server.server import McpServer
    from holdfast.server.listen import ListenUrl
    from holdfast.telemetry import Telemetry

__all__ = ["mcp"]


def mcp(options: argparse.Namespace) -> int:
    """Serve until a signal or the end of stdin."""
    # The guardian has all it needs: everything below is the server's alone.
    return run_guarded(lambda lifeline: _serve(options, lifeline))


def _serve(options: argparse.Namespace, lifeline: int) -> int:
    from holdfast.cli.mcp_settings import read_settings
    from holdfast.cli.serve import set_log_level
    from holdfast.errors import InvalidConfig
    from holdfast.server.entrance import EntranceOptions
    from holdfast.server.life import LifeOptions, StartFailed, live

    try:
        set_log_level(os.environ.get("HOLDFAST_LOG", "error"))
        settings = read_settings(options)
        _check(settings)
        from holdfast.mcp_server.server import McpServer
    except ValueError:
        print("Error: HOLDFAST_LOG must be error, warning, info or debug", file=sys.stderr)
        return 1
    except InvalidConfig as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"Error: {error.name} is not installed: {install_command('mcp')}", file=sys.stderr)
        return 1
    from holdfast.mcp_server.options import ServerOptions

    if settings.listen == "stdio" and sys.stdin.isatty():
        print(
            "holdfast mcp: waiting for a client on the standard streams; an agent starts it,"
            " see `holdfast mcp --help`",
            file=sys.stderr,
        )
    chosen = ServerOptions(
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

    def make(where: "ListenUrl", telemetry: "Telemetry | None") -> "McpServer":
        return McpServer(chosen, None if where.kind == "stdio" else _access(settings, where))

    try:
        return live(
            # Whom to let in is decided here: `--ws-auth` knows no principals.
            LifeOptions(
                listen=settings.listen,
                scheme="http",
                entrance=EntranceOptions(insecure_no_auth=True),
            ),
            lifeline=lifeline,
            announce=_announce,
            make=make,
        )
    except StartFailed as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def _check(settings: "McpSettings") -> None:
    """
    Look for what can be known to be wrong before anything is loaded.

    Raises:
        InvalidConfig: Something is.
    """
    from holdfast.environments.config.home import is_configured
    from holdfast.errors import InvalidConfig
    from holdfast.mcp_server.options import PROFILES

    # Whatever else is the default may be another machine, whose folders are not known here.
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


def _access(settings: "McpSettings", where: "ListenUrl") -> "HttpAccess":
    """
    Return who may come in over HTTP.

    Raises:
        StartFailed: Everybody on the network could, or there is no token in the file.
    """
    from holdfast.mcp_server.http import HttpAccess
    from holdfast.server.life import StartFailed

    if where.kind == "unix":
        raise StartFailed("--listen takes stdio or http://IP:PORT")
    tokens: list[str] = []
    if settings.token_file is not None:
        from holdfast.token_file import BadTokenFile, make_token_file, read_tokens

        try:
            make_token_file(settings.token_file)
            tokens = [one.token for one in read_tokens(settings.token_file)]
        except BadTokenFile as error:
            raise StartFailed(f"--token-file: {error}", errno=error.errno) from error
    elif not where.is_local:
        raise StartFailed(
            f"listening on {where.host} without a token would let anyone who can reach it run"
            " commands; add `--token-file FILE`"
        )
    return HttpAccess(tokens=tokens, hosts=settings.allowed_host, origins=settings.allowed_origin)


def _announce(url: str) -> None:
    print(url, flush=True)
