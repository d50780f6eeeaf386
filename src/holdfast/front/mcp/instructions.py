"""The instructions of the server: what the tools do, and what commands may access."""

import os
from collections.abc import Iterator

from holdfast.base.errors import InvalidParams
from holdfast.environments.config.home import is_configured
from holdfast.environments.config.snapshot import LOCAL
from holdfast.environments.sandbox import (
    ProfileContext,
    SandboxProfile,
    as_profile,
    home_here,
)
from holdfast.front.mcp.mcp_options import ServerOptions
from holdfast.wire.protocol.paths import InvalidPathUri, PathUri
from holdfast.wire.protocol.sandbox import (
    EntryPath,
    ManagedProfile,
    PermissionProfile,
    PlainPath,
    RestrictedFiles,
    SpecialPath,
)

__all__ = ["instructions"]

_TOOLS = """\
Runs commands and works on files. `exec_command` waits for a command as long as `yield_time_ms`\
 says; one that goes on has a session ID, by which `write_stdin` polls it and sends input. Give\
 `tty: true` to a program that asks for input. `read_output` shows what was cut, `view_image` an\
 image.\
"""


def instructions(options: ServerOptions) -> str:
    """Return the text for the model: tools, workspace, sandbox and network."""
    return f"{_TOOLS} {_workplace(options)}"


def _workplace(options: ServerOptions) -> str:
    workspace = _workspace(options)
    where = "" if workspace is None else f" in `{workspace}`"
    profile = _profile(options, workspace)
    if profile is None:
        # An invalid file; the first command reports the error.
        return f"Commands run{where} in the sandbox `{options.sandbox}`.{_escape(options)}"
    if not isinstance(profile, ManagedProfile):
        return f"Commands run{where} without a sandbox and may use the network."
    network = "no network" if profile.network == "restricted" else "the network"
    wide = ""
    if options.wide_workspace is not None:
        wide = f" They may write {options.wide_workspace}: change nothing there unasked."
    return (
        f"Commands run{where} in the sandbox `{options.sandbox}`: they may write"
        f" {_writable(profile, workspace)}, and have {network}.{wide}{_escape(options)}"
    )


def _escape(options: ServerOptions) -> str:
    if options.asks_nobody:
        return " What it denies is refused."
    return " What it denies can be asked for with `sandbox_permissions: require_escalated`."


def _workspace(options: ServerOptions) -> str | None:
    """Return the directory of the commands; None if only the environment knows it."""
    here = options.environment == LOCAL or not (options.environment or is_configured(os.environ))
    if not here:
        return options.cwd
    try:
        return os.path.abspath(options.cwd or ".")
    except FileNotFoundError:
        # The directory of the server was removed; the first command reports it.
        return options.cwd


def _profile(options: ServerOptions, workspace: str | None) -> PermissionProfile | None:
    # Only for relative paths and `~`; the workspace itself has a name in profiles.
    folder = workspace if workspace is not None and os.path.isabs(workspace) else "/"
    context = ProfileContext(folder=PathUri.from_path(folder), home=home_here())
    try:
        profile = as_profile(options.profile)
        return profile.permissions(context) if isinstance(profile, SandboxProfile) else None
    except (InvalidParams, InvalidPathUri):
        return None


def _writable(profile: ManagedProfile, workspace: str | None) -> str:
    files = profile.file_system
    if not isinstance(files, RestrictedFiles):
        return "everywhere"
    entries = (entry for entry in files.entries if entry.access == "write")
    # A dictionary removes duplicates: the temporary directory may be `/tmp`.
    paths = {path: None for entry in entries for path in _paths(entry.path, workspace)}
    whole = _shown(workspace)
    if whole in paths and _shown(workspace, "/.git") not in paths:
        paths = {
            f"{path} (but not `.git` in it)" if path == whole else path: None for path in paths
        }
    return ", ".join(paths) or "nothing"


def _paths(path: EntryPath, workspace: str | None) -> Iterator[str]:
    """Yield the path of an entry for display; nothing for a pattern."""
    if isinstance(path, PlainPath):
        yield f"`{path.path.shown}`"
    elif isinstance(path, SpecialPath):
        below = "" if path.value.subpath is None else f"/{path.value.subpath}"
        match path.value.kind:
            case "project_roots":
                yield _shown(workspace, below)
            case "slash_tmp":
                yield "`/tmp`"
            case "tmpdir":
                yield "the temporary directory"
            case kind:
                yield f"`:{kind}{below}`"


def _shown(workspace: str | None, below: str = "") -> str:
    """Return a path in the workspace for display."""
    if workspace is None:
        return f"`{below[1:]}` in the workspace" if below else "the workspace"
    return f"`{workspace}{below}`"
