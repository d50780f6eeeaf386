"""
The app-server's `command/exec` and `process/*`: params, results, notifications.

The order of the members is the protocol's: an old client may send them as a list. A class with
another name in error texts has that name in `wire_name`.
"""

from typing import Annotated, ClassVar, Final, Literal

import msgspec

from holdfast.base.dialect import texts
from holdfast.wire.protocol.wire_types import (
    I64_MAX,
    I64_MIN,
    U64_MAX,
    Empty,
    Method,
    NotificationMethod,
    Wire,
)

__all__ = [
    "APP_INITIALIZE",
    "COMMAND_EXEC",
    "COMMAND_EXEC_OUTPUT_DELTA",
    "COMMAND_EXEC_RESIZE",
    "COMMAND_EXEC_TERMINATE",
    "COMMAND_EXEC_WRITE",
    "DEFAULT_OUTPUT_CAP",
    "DEFAULT_TIMEOUT_MS",
    "PROCESS_EXITED_NOTE",
    "PROCESS_KILL",
    "PROCESS_OUTPUT_DELTA",
    "PROCESS_RESIZE_PTY",
    "PROCESS_SPAWN",
    "PROCESS_WRITE_STDIN",
    "AppCapabilities",
    "AppClientInfo",
    "AppInitializeParams",
    "AppInitializeResponse",
    "CommandExecParams",
    "CommandExecResponse",
    "CommandExecTerminalSize",
    "CommandResizeParams",
    "CommandTerminateParams",
    "CommandWriteParams",
    "DangerFullAccess",
    "ExternalSandbox",
    "FullReadAccess",
    "LegacyPolicy",
    "ProcessExitedNote",
    "ProcessKillParams",
    "ProcessResizePtyParams",
    "ProcessSpawnParams",
    "ProcessTerminalSize",
    "ProcessWriteStdinParams",
    "ReadOnly",
    "RestrictedReadAccess",
    "WorkspaceWrite",
]

DEFAULT_TIMEOUT_MS: Final = 10_000
"""Milliseconds a command may take unless the client says otherwise."""

DEFAULT_OUTPUT_CAP: Final = 1 << 20
"""Bytes of each stream that are kept or sent unless the client says otherwise."""

# Integer types with the names that serde's error texts use for them.
_U16 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF, extra={"wire": "u16"})]
_I64 = Annotated[int, msgspec.Meta(ge=I64_MIN, le=I64_MAX, extra={"wire": "i64"})]
_Usize = Annotated[int, msgspec.Meta(ge=0, extra={"wire": "usize"})]
_PathText = Annotated[str, msgspec.Meta(extra={"wire": "path string"})]


def _check_usize(value: int | None) -> None:
    """Refuse a number beyond 64 bits; msgspec takes bounds of 63 bits at most."""
    if value is not None and value > U64_MAX:
        raise ValueError(f"invalid type: integer `{value}` as u128, expected any value")


def _check_absolute(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError(texts.NO_ABSOLUTE_PATH)


# -- handshake


class AppClientInfo(Wire, frozen=True, kw_only=True):
    wire_name: ClassVar[str] = "struct ClientInfo"

    name: str
    title: str | None = None
    version: str


class AppCapabilities(Wire, frozen=True, kw_only=True):
    wire_name: ClassVar[str] = "struct InitializeCapabilities"

    experimental_api: bool = False
    """Allows `process/*` and `permissionProfile`."""
    required_human_approval: bool = False
    """Accepted and without effect: no method of this server asks for an approval."""
    opt_out_notification_methods: tuple[str, ...] | None = None
    """Notifications that are not sent on this connection, by their exact names."""


class AppInitializeParams(Wire, frozen=True, kw_only=True):
    wire_name: ClassVar[str] = "struct InitializeParams"

    client_info: AppClientInfo
    capabilities: AppCapabilities | None = None


class AppInitializeResponse(Wire, frozen=True, kw_only=True):
    user_agent: str
    codex_home: str
    platform_family: str
    platform_os: str


# -- sandbox policies


class _LegacySandboxPolicy(Wire, frozen=True, kw_only=True, tag_field="type"):
    wire_name: ClassVar[str] = "internally tagged enum SandboxPolicyDeserialize"


class DangerFullAccess(_LegacySandboxPolicy, frozen=True, kw_only=True, tag="dangerFullAccess"):
    pass


class _LegacyReadAccess(Wire, frozen=True, kw_only=True, tag_field="type"):
    wire_name: ClassVar[str] = "internally tagged enum LegacyReadOnlyAccess"


class FullReadAccess(_LegacyReadAccess, frozen=True, kw_only=True, tag="fullAccess"):
    pass


class RestrictedReadAccess(_LegacyReadAccess, frozen=True, kw_only=True, tag="restricted"):
    pass


def _check_reads(access: object, member: str) -> None:
    """
    Refuse restricted reads, which are no longer enforced: the command could read more than
    asked.
    """
    if isinstance(access, RestrictedReadAccess):
        raise ValueError(
            f"{member} is no longer supported; use permissionProfile for restricted reads"
        )


class ReadOnly(_LegacySandboxPolicy, frozen=True, kw_only=True, tag="readOnly"):
    network_access: bool = False
    access: FullReadAccess | RestrictedReadAccess | None = None
    """Sent by even older clients; only full access is accepted."""

    def __post_init__(self) -> None:
        _check_reads(self.access, "readOnly.access")


class ExternalSandbox(_LegacySandboxPolicy, frozen=True, kw_only=True, tag="externalSandbox"):
    network_access: Literal["restricted", "enabled"] = "restricted"


class WorkspaceWrite(_LegacySandboxPolicy, frozen=True, kw_only=True, tag="workspaceWrite"):
    writable_roots: tuple[_PathText, ...] = ()
    """Native absolute paths, in addition to the project roots."""
    read_only_access: FullReadAccess | RestrictedReadAccess | None = None
    """See `ReadOnly.access`."""
    network_access: bool = False
    exclude_tmpdir_env_var: bool = False
    exclude_slash_tmp: bool = False

    def __post_init__(self) -> None:
        for root in self.writable_roots:
            _check_absolute(root)
        _check_reads(self.read_only_access, "workspaceWrite.readOnlyAccess")


LegacyPolicy = DangerFullAccess | ReadOnly | ExternalSandbox | WorkspaceWrite
"""Sandbox policies of older clients, in the order in which error texts list them."""


# -- command/exec


# Equal to `ProcessTerminalSize`, but error texts name the type.
class CommandExecTerminalSize(Wire, frozen=True, kw_only=True):
    rows: _U16
    cols: _U16


class CommandExecParams(Wire, frozen=True, kw_only=True):
    command: tuple[str, ...]
    process_id: str | None = None
    tty: bool = False
    stream_stdin: bool = False
    stream_stdout_stderr: bool = False
    output_bytes_cap: _Usize | None = None
    disable_output_cap: bool = False
    disable_timeout: bool = False
    timeout_ms: _I64 | None = None
    cwd: _PathText | None = None
    env: dict[str, str | None] | None = None
    size: CommandExecTerminalSize | None = None
    sandbox_policy: LegacyPolicy | None = None
    permission_profile: str | None = None

    def __post_init__(self) -> None:
        _check_usize(self.output_bytes_cap)


class CommandExecResponse(Wire, frozen=True, kw_only=True):
    exit_code: int
    stdout: str
    """Empty for a command whose output was streamed."""
    stderr: str


class CommandWriteParams(Wire, frozen=True, kw_only=True):
    wire_name: ClassVar[str] = "struct CommandExecWriteParams"

    process_id: str
    delta_base64: str | None = None
    """Base64, kept as a string: a fault in it is reported after all other params were checked."""
    close_stdin: bool = False


class CommandTerminateParams(Wire, frozen=True, kw_only=True):
    wire_name: ClassVar[str] = "struct CommandExecTerminateParams"

    process_id: str


class CommandResizeParams(Wire, frozen=True, kw_only=True):
    wire_name: ClassVar[str] = "struct CommandExecResizeParams"

    process_id: str
    size: CommandExecTerminalSize


# -- process/*


class ProcessTerminalSize(Wire, frozen=True, kw_only=True):
    rows: _U16
    cols: _U16


class ProcessSpawnParams(Wire, frozen=True, kw_only=True):
    command: tuple[str, ...]
    process_handle: str
    cwd: _PathText
    """Absolute."""
    tty: bool = False
    stream_stdin: bool = False
    stream_stdout_stderr: bool = False
    output_bytes_cap: _Usize | None = DEFAULT_OUTPUT_CAP
    """`null` for no limit."""
    timeout_ms: _I64 | None = DEFAULT_TIMEOUT_MS
    """`null` for no limit."""
    env: dict[str, str | None] | None = None
    size: ProcessTerminalSize | None = None

    def __post_init__(self) -> None:
        _check_absolute(self.cwd)
        _check_usize(self.output_bytes_cap)


class ProcessWriteStdinParams(Wire, frozen=True, kw_only=True):
    process_handle: str
    delta_base64: str | None = None
    """Base64, kept as a string; see `CommandWriteParams`."""
    close_stdin: bool = False


class ProcessKillParams(Wire, frozen=True, kw_only=True):
    process_handle: str


class ProcessResizePtyParams(Wire, frozen=True, kw_only=True):
    process_handle: str
    size: ProcessTerminalSize


class ProcessExitedNote(Wire, frozen=True, kw_only=True):
    process_handle: str
    exit_code: int
    output_drain_timed_out: bool
    """True if the wait for the rest of the output ended before the output did."""
    stdout: str
    stdout_cap_reached: bool
    stderr: str
    stderr_cap_reached: bool


APP_INITIALIZE = Method("initialize", AppInitializeParams, AppInitializeResponse)

COMMAND_EXEC = Method("command/exec", CommandExecParams, CommandExecResponse)
COMMAND_EXEC_WRITE = Method("command/exec/write", CommandWriteParams, Empty)
COMMAND_EXEC_TERMINATE = Method("command/exec/terminate", CommandTerminateParams, Empty)
COMMAND_EXEC_RESIZE = Method("command/exec/resize", CommandResizeParams, Empty)
# A name only: `DeltaEncoder` writes the message without a wire type.
COMMAND_EXEC_OUTPUT_DELTA: Final = "command/exec/outputDelta"

PROCESS_SPAWN = Method("process/spawn", ProcessSpawnParams, Empty)
PROCESS_WRITE_STDIN = Method("process/writeStdin", ProcessWriteStdinParams, Empty)
PROCESS_KILL = Method("process/kill", ProcessKillParams, Empty)
PROCESS_RESIZE_PTY = Method("process/resizePty", ProcessResizePtyParams, Empty)
# A name only, as above.
PROCESS_OUTPUT_DELTA: Final = "process/outputDelta"
PROCESS_EXITED_NOTE = NotificationMethod("process/exited", ProcessExitedNote)
