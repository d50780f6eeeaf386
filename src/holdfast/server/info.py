"""Description of this machine for clients [environment.info]."""

import hashlib
import os
import sys
from collections.abc import Mapping

import msgspec

from holdfast.backends import ReportsCapabilities
from holdfast.base.dialect import versions
from holdfast.base.version import __version__
from holdfast.engine.process.variables import login_shell
from holdfast.wire.protocol.handshake import Capabilities, EnvironmentInfo, ShellInfo
from holdfast.wire.protocol.paths import PathUri

__all__ = [
    "CAPABILITIES",
    "environment_info",
    "login_shell",
    "served_capabilities",
]

# Features of this server; a client does not use any that are missing.
CAPABILITIES = Capabilities(
    capability_discovery_sandbox=True,
    capability_discovery_v2=True,
    environment_config_read=True,
    fs_watch_missing=True,
    http_header_env_vars=True,
    file_write_streaming=True,
    sandboxed_file_streaming=True,
    shell_snapshot_v2=True,
    file_permissions=True,
    file_rename=True,
    file_read_limit=True,
    process_resize=True,
    process_close_stdin=True,
    process_list=True,
    process_signal_names=True,
    process_limits=True,
    process_hold=True,
    process_ack=True,
    process_terminate_left=True,
    process_unset=True,
    process_end_marked=True,
    process_waiting_for=True,
)

# Features that depend on the backend; the server implements all others.
_OF_BACKEND = (
    "process_close_stdin",
    "process_limits",
    "process_resize",
    "process_signal_names",
    "process_terminate_left",
    "process_unset",
    "process_waiting_for",
    "shell_snapshot_v2",
)

# Shells whose options clients know.
_SHELLS = ("bash", "zsh", "sh")


def served_capabilities(processes: object, files: object) -> Capabilities:
    """
    Return the features of a server with these backends in place of the local ones.

    Args:
        processes: Its `ExecBackend`, or None for this machine.
        files: Its `FileSystem`, or None for this machine.
    """
    # Local backends keep their features.
    changes: dict[str, bool] = {}
    if processes is not None:
        if isinstance(processes, ReportsCapabilities):
            offered = processes.capabilities
            changes.update({name: getattr(offered, name) for name in _OF_BACKEND})
        # Daemons are only searched for on this machine.
        changes["process_end_marked"] = False
    if files is not None:
        # Both read the configuration of this machine, where the files are not.
        changes.update(
            capability_discovery_sandbox=False,
            capability_discovery_v2=False,
            environment_config_read=False,
        )
    return msgspec.structs.replace(CAPABILITIES, **changes)


def environment_info(
    environ: Mapping[str, str] | None = None, *, capabilities: Capabilities = CAPABILITIES
) -> EnvironmentInfo:
    """Return the description of this machine, which does not change while the server runs."""
    environ = os.environ if environ is None else environ
    cwd = _working_folder()
    # Resolve a relative TMPDIR from the server's cwd, as a child would.
    temporary = environ.get("TMPDIR")
    temporary_uri = _uri(os.path.join(cwd, temporary)) if temporary else None
    return EnvironmentInfo(
        shell=_shell(),
        executor_version=versions.FOLLOWED,
        holdfast_version=__version__,
        provider_id=_provider_id(),
        cwd=_uri(cwd),
        user_home_dir=_uri(environ.get("HOME") or os.path.expanduser("~")),
        platform_os="macos" if sys.platform == "darwin" else "linux",
        prepend_path_dirs=(),
        temporary_directories=(temporary_uri,) if temporary_uri else (),
        temp_dir=temporary_uri or _uri("/tmp"),  # noqa: S108 - a name to tell
        capabilities=capabilities,
    )


def _shell() -> ShellInfo:
    path = login_shell()
    name = os.path.basename(path)
    if name in _SHELLS and os.access(path, os.X_OK):
        return ShellInfo(name=name, path=path)
    # Given the name of an unknown shell, a client would guess its path.
    fallback = next((p for p in ("/bin/bash", "/bin/sh") if os.access(p, os.X_OK)), "/bin/sh")
    return ShellInfo(name=os.path.basename(fallback), path=fallback)


def _provider_id() -> str:
    """Return an id for this user on this machine, the same for all servers."""
    # A hash, so that it reveals neither the machine id nor the user.
    try:
        with open("/etc/machine-id", "rb") as file:
            machine = file.read().strip()
    except OSError:
        machine = os.uname().nodename.encode()
    digest = hashlib.sha256(b"holdfast\0" + machine + b"\0" + str(os.getuid()).encode())
    return f"sha256:{digest.hexdigest()}"


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        # The directory was removed after this process was started in it.
        return ""


def _uri(path: str) -> str | None:
    return str(PathUri.from_path(path)) if path.startswith("/") else None
