"""The worker of `holdfast mcp`: the tools for an agent."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from holdfast.agent.approvals.write_access import writable_roots
from holdfast.base.errors import InvalidConfig, InvalidParams
from holdfast.base.late_import import load
from holdfast.base.version import install_command
from holdfast.environments.config.home import is_configured
from holdfast.environments.sandbox import AnySandbox, ProfileContext, home_here, resolve_sandbox
from holdfast.environments.wide_workspace import unnamed_text, wide_workspace
from holdfast.front.cli.mcp_settings import McpSettings, read_settings
from holdfast.front.cli.server_worker import set_log_level
from holdfast.front.mcp.mcp_options import PROFILES, ServerOptions, environment_profile
from holdfast.server.listen import BadListenUrl, ListenUrl, parse_listen_url
from holdfast.server.operate.listener_auth import EntranceOptions
from holdfast.server.operate.run_server import ServeOptions, StartFailed, serve_forever
from holdfast.telemetry import Telemetry
from holdfast.wire.protocol.paths import PathUri

if TYPE_CHECKING:
    from holdfast.front.mcp.mcp_server import McpServer
    from holdfast.front.mcp.streamable_http import HttpAccess

__all__ = ["run_mcp"]


def run_mcp(options: argparse.Namespace, lifeline: int) -> int:
    """Serve in this process, which has a guardian, and return the exit status."""
    try:
        set_log_level(os.environ.get("HOLDFAST_LOG", "error"))
        settings = read_settings(options)
        wide = _check(settings)
        # Loaded after the checks, which answer at once; it may not be installed.
        server_class = load("holdfast.front.mcp.mcp_server:McpServer")
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
    _tell_user(settings, wide)
    chosen = _server_options(settings, wide)

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


def _tell_user(settings: McpSettings, wide: str | None) -> None:
    """Print what a person should know before the server starts."""
    said = []
    if wide is not None:
        said.append(f"warning: commands may write {wide}")
    if settings.rules_leave_sandbox:
        said.append(
            "warning: what rules allow runs without a sandbox (--rules-leave-sandbox); an allowed"
            " program that the agent can replace or configure gives it everything"
        )
    if settings.listen == "stdio" and sys.stdin.isatty():
        said.append(
            "waiting for a client on the standard streams; an agent starts it,"
            " see `holdfast mcp --help`"
        )
    for line in said:
        print(f"holdfast mcp: {line}", file=sys.stderr)


def _server_options(settings: McpSettings, wide: str | None) -> ServerOptions:
    return ServerOptions(
        environment=settings.environment,
        cwd=settings.cwd,
        wide_workspace=wide,
        sandbox=settings.sandbox,
        sandbox_write=settings.sandbox_write,
        ask_for_approval=settings.ask_for_approval,
        ask_after_denial=settings.ask_after_denial,
        rules=settings.rules,
        rules_leave_sandbox=settings.rules_leave_sandbox,
        max_wait=settings.max_wait,
        on_cancel=settings.on_cancel,
        notes=not settings.no_notes,
        keep=settings.keep,
    )


def _check(settings: McpSettings) -> str | None:
    """
    Check the settings for mistakes before large modules are loaded.

    Returns:
        The workspace and what it is, if it is named and more than a project; see
        `wide_workspace`.

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
    try:
        profile = environment_profile(settings.sandbox, settings.sandbox_write)
    except InvalidParams as error:
        raise InvalidConfig(str(error)) from error
    return _wide(settings, profile) if here else None


def _wide(settings: McpSettings, profile: AnySandbox) -> str | None:
    """
    Return the workspace and what it is, if it is more than a project and can be written.

    Args:
        settings: Name the workspace, or do not.
        profile: The sandbox of commands.

    Raises:
        InvalidConfig: It is, and was not named; or the profile is invalid.
    """
    try:
        folder = os.path.realpath(os.getcwd() if settings.cwd is None else settings.cwd)
    except FileNotFoundError:
        raise InvalidConfig("the working directory is gone; name one: --cwd DIR") from None
    place = ProfileContext(folder=PathUri.from_path(folder), home=home_here())
    try:
        sandbox = resolve_sandbox(profile, place)
    except InvalidParams as error:
        raise InvalidConfig(f"--sandbox: {error}") from error
    said = wide_workspace(folder, os.environ)
    # Without a sandbox, the workspace makes no difference.
    if said is None or folder not in (writable_roots(sandbox) or ()):
        return None
    if settings.cwd is None:
        raise InvalidConfig(unnamed_text(folder, said))
    return f"{folder}, {said}"


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
    access: HttpAccess = load("holdfast.front.mcp.streamable_http:HttpAccess")(
        hosts=settings.allowed_host, origins=settings.allowed_origin
    )
    return access


def _announce(url: str) -> None:
    print(url, flush=True)
