"""The worker of `holdfast mcp`: the tools for an agent."""

import argparse
import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from holdfast.agent.approvals.write_access import writable_roots
from holdfast.base.errors import InvalidConfig, InvalidParams
from holdfast.base.late_import import load
from holdfast.base.own_files import keep_unchanged
from holdfast.base.version import install_command
from holdfast.environments.config.home import holdfast_home, is_configured
from holdfast.environments.sandbox import AnySandbox, ProfileContext, home_here, resolve_sandbox
from holdfast.environments.wide_workspace import unnamed_text, wide_workspace
from holdfast.front.cli.server_worker import set_log_level
from holdfast.front.mcp.mcp_options import (
    KEEP,
    MAX_WAIT,
    PROFILES,
    ServerOptions,
    environment_profile,
)
from holdfast.server.listen import BadListenUrl, ListenUrl, parse_listen_url
from holdfast.server.operate.listener_auth import ListenerAuthOptions
from holdfast.server.operate.run_server import ServeOptions, StartFailed, serve_forever
from holdfast.telemetry import Telemetry
from holdfast.wire.protocol.paths import PathUri

if TYPE_CHECKING:
    from holdfast.front.mcp.mcp_server import McpServer
    from holdfast.front.mcp.streamable_http import HttpAccess

__all__ = ["read_settings", "run_mcp"]


def run_mcp(options: argparse.Namespace, lifeline: int) -> int:
    """Serve in this process, which has a guardian, and return the exit status."""
    try:
        set_log_level(os.environ.get("HOLDFAST_LOG", "error"))
        settings = read_settings(options)
        wide = _check(settings)
        # Imported after the checks, which are fast; it may not be installed.
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
                listener_auth=ListenerAuthOptions(
                    # A settings file may name it for when the server listens.
                    token_file=settings.token_file if where.is_network else None,
                    makes_token=True,
                    no_auth=settings.no_auth,
                ),
                announces_token=True,
                reloads=True,
                # With one client and most of the time spent in the SDK, memory matters more.
                takes_uvloop=False,
            ),
            lifeline=lifeline,
            announce=_announce,
            make=make,
        )
    except StartFailed as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def _tell_user(settings: "_McpSettings", wide: str | None) -> None:
    """Print warnings to the user before the server starts."""
    said = []
    if wide is not None:
        said.append(f"warning: commands may write {wide}")
    if settings.rules_leave_sandbox:
        said.append(
            "warning: commands that rules allow run without a sandbox (--rules-leave-sandbox); an"
            " allowed program that the agent can replace or configure gives it full access"
        )
    if settings.listen == "stdio" and sys.stdin.isatty():
        said.append(
            "waiting for a client on the standard streams; agents start this command,"
            " see `holdfast mcp --help`"
        )
    for line in said:
        print(f"holdfast mcp: {line}", file=sys.stderr)


def _server_options(settings: "_McpSettings", wide: str | None) -> ServerOptions:
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


def _check(settings: "_McpSettings") -> str | None:
    """
    Check the settings for mistakes before large modules are imported.

    Returns:
        The workspace and what it is, if it is named and wider than a project; see
        `wide_workspace`.

    Raises:
        InvalidConfig: A setting is invalid.
    """
    # The directories of other environments, possibly on other machines, are unknown here.
    here = settings.environment == "local" or not (
        settings.environment or is_configured(os.environ)
    )
    if here and settings.cwd is not None and not os.path.isdir(settings.cwd):
        raise InvalidConfig(f"--cwd: {settings.cwd} is not a directory")
    if settings.sandbox not in PROFILES and not os.path.isfile(settings.sandbox):
        known = ", ".join(PROFILES)
        raise InvalidConfig(
            f"--sandbox: unknown profile `{settings.sandbox}`: expected {known} or a file"
        )
    for path in settings.rules:
        if not os.path.isfile(path):
            raise InvalidConfig(f"--rules: {path} is not a file")
    try:
        profile = environment_profile(settings.sandbox, settings.sandbox_write)
    except InvalidParams as error:
        raise InvalidConfig(str(error)) from error
    return _wide(settings, profile) if here else None


def _wide(settings: "_McpSettings", profile: AnySandbox) -> str | None:
    """
    Return the workspace and what it is, if it is wider than a project and writable.

    Args:
        settings: Settings, which may name the workspace.
        profile: Sandbox of commands.

    Raises:
        InvalidConfig: It is, but was not named; or the profile is invalid.
    """
    try:
        folder = os.path.realpath(os.getcwd() if settings.cwd is None else settings.cwd)
    except FileNotFoundError:
        raise InvalidConfig("the working directory was removed; use --cwd DIR") from None
    place = ProfileContext(folder=PathUri.from_path(folder), home=home_here())
    try:
        sandbox = resolve_sandbox(profile, place)
    except InvalidParams as error:
        raise InvalidConfig(f"--sandbox: {error}") from error
    said = wide_workspace(folder, os.environ)
    # Without a sandbox, the workspace does not matter.
    if said is None or folder not in (writable_roots(sandbox) or ()):
        return None
    if settings.cwd is None:
        raise InvalidConfig(unnamed_text(folder, said))
    return f"{folder}, {said}"


def _where(settings: "_McpSettings") -> ListenUrl:
    """
    Return where to listen.

    Raises:
        StartFailed: The URL is invalid, or clients there could not know the token.
    """
    try:
        where = parse_listen_url(settings.listen, scheme="http")
    except BadListenUrl as error:
        raise StartFailed(str(error)) from error
    if where.kind == "unix":
        raise StartFailed("--listen must be stdio or http://IP:PORT")
    if not where.is_local and settings.token_file is None:
        raise StartFailed(
            f"clients that reach {where.host} over the network need a token that they know;"
            " add `--token-file FILE`"
        )
    return where


def _access(settings: "_McpSettings") -> "HttpAccess":
    access: HttpAccess = load("holdfast.front.mcp.streamable_http:HttpAccess")(
        hosts=settings.allowed_host, origins=settings.allowed_origin
    )
    return access


def _announce(url: str) -> None:
    print(url, flush=True)


_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e7)]

_FILE = "mcp.toml"


class _McpSettings(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """
    All settings, named like their options.

    Paths are relative to the file's directory, but those of `sandbox_write` to the workspace.
    """

    listen: str = "stdio"
    environment: str | None = None
    cwd: str | None = None
    sandbox: str = "workspace-write"
    sandbox_write: list[str] = []
    ask_for_approval: Literal["never", "on-request"] = "on-request"
    ask_after_denial: bool = False
    rules: list[str] = []
    rules_leave_sandbox: bool = False
    max_wait: _Seconds = MAX_WAIT
    on_cancel: Literal["stop", "keep"] = "stop"
    no_notes: bool = False
    keep: _Seconds = KEEP
    token_file: str | None = None
    no_auth: bool = False
    allowed_host: list[str] = []
    allowed_origin: list[str] = []


_PATHS = ("cwd", "token_file")


def read_settings(options: argparse.Namespace) -> _McpSettings:
    """
    Return the settings; options override the file.

    Args:
        options: `config` names the file; by default `mcp.toml` in Holdfast's home, if it
            exists.

    Raises:
        InvalidConfig: The file cannot be read, or a setting is invalid.
    """
    file = None if options.config is None else Path(options.config)
    found = _from_file(holdfast_home(os.environ) / _FILE if file is None else file, file is None)
    given = {name: getattr(options, name) for name in _McpSettings.__struct_fields__}
    # These are argparse's defaults for missing options.
    chosen = {name: value for name, value in given.items() if value not in (None, [], False)}
    merged = msgspec.to_builtins(msgspec.structs.replace(found, **chosen))
    try:
        # Converted again for validation, which `replace` does not do.
        return msgspec.convert(merged, _McpSettings)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"invalid option: {error}") from error


def _from_file(path: Path, may_be_missing: bool) -> _McpSettings:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
        found = msgspec.convert(content, _McpSettings)
    except FileNotFoundError as error:
        if may_be_missing:
            return _McpSettings()
        raise InvalidConfig(f"{path} does not exist") from error
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidConfig(f"{path}: {error}") from error
    keep_unchanged(path)
    # Relative to the file, not to the cwd, which the agent chooses.
    below: dict[str, Any] = {
        name: str(path.parent / value)
        for name in _PATHS
        if (value := getattr(found, name)) is not None
    }
    if found.sandbox not in PROFILES:
        below["sandbox"] = str(path.parent / found.sandbox)
    below["rules"] = [str(path.parent / rules) for rules in found.rules]
    return msgspec.structs.replace(found, **below)
