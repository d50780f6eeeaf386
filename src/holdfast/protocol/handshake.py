"""`initialize` and what a server tells about its machine (docs/protocol.md#initialize)."""

from msgspec import UNSET, UnsetType

from holdfast.protocol.base import Wire

__all__ = [
    "Capabilities",
    "EnvironmentInfo",
    "EnvironmentStatus",
    "InitializeParams",
    "InitializeResponse",
    "ShellInfo",
]


class InitializeParams(Wire, frozen=True, kw_only=True):
    """Opens a session, or asks for one that lost its connection."""

    client_name: str
    resume_session_id: str | None = None
    acknowledges: bool | UnsetType = UNSET
    """
    True from a Holdfast client: it acknowledges output with `process/ack`.

    A Holdfast server then keeps what was not acknowledged, holds a process whose output
    nobody fetches, lets the client take its session over from a connection that is dead
    for the client only, and adds what Codex has no field for. A Codex server ignores it.
    """


class ShellInfo(Wire, frozen=True, kw_only=True):
    """The user's shell; the path is native and need not be absolute."""

    name: str
    path: str


class Capabilities(Wire, frozen=True, kw_only=True):
    """
    What a server can do beyond the base; what it does not name it cannot.

    The first block is the protocol's own; a server says `true` only for what it
    really has. The second are Holdfast's extensions.
    """

    network_proxy_launch: bool = False
    network_proxy_review_domains: bool = False
    credential_masking: bool = False
    credential_masking_custom_providers: bool = False
    capability_discovery_sandbox: bool = False
    fs_watch_missing: bool = False
    capability_discovery_v2: bool = False
    environment_config_read: bool = False
    http_header_env_vars: bool = False
    sandboxed_file_streaming: bool = False
    file_write_streaming: bool = False
    shell_snapshot_v2: bool = False
    windows_mxc: bool = False
    linux_root_write_preserves_devices: bool = False
    linux_approved_root_write_preserves_restrictions: bool = False

    file_permissions: bool = False
    """`permissions` of `fs/open`, and in what `fs/getMetadata` tells."""
    file_rename: bool = False
    """`fs/rename`."""
    process_resize: bool = False
    """`process/resize`, and `terminalSize` at the start."""
    process_close_stdin: bool = False
    process_list: bool = False
    process_signal_names: bool = False
    """`process/signal` takes any signal by its name, such as `SIGTERM`."""
    process_limits: bool = False
    """`limits` at the start of a process."""
    process_hold: bool = False
    """`process/hold`: one process waits for its reader, and no other does."""
    process_ack: bool = False
    """
    `process/ack`, and what `acknowledges` in `initialize` brings.

    Output that was not acknowledged outlives a lost connection.
    """
    process_terminate_left: bool = False
    """`left` and `streams` of `process/terminate`."""
    process_unset: bool = False
    """`unset` at the start of a process."""
    process_end_marked: bool = False
    """`process/endMarked`: daemons that commands left behind can be ended."""
    process_waiting_for: bool = False
    """`process/waitingFor`: whether a process on a terminal waits for input."""


class EnvironmentInfo(Wire, frozen=True, kw_only=True):
    """Where the server runs. Only `shell` is sure to be there on an older server."""

    shell: ShellInfo
    executor_version: str | None = None
    """The version of Codex whose protocol the server speaks."""
    holdfast_version: str | UnsetType = UNSET
    """The version of the server itself, if that is Holdfast. An extension."""
    provider_id: str | None = None
    cwd: str | None = None
    user_home_dir: str | None = None
    platform_os: str | None = None
    prepend_path_dirs: tuple[str, ...] = ()
    temporary_directories: tuple[str, ...] = ()
    temp_dir: str | None = None
    capabilities: Capabilities = Capabilities()


class InitializeResponse(Wire, frozen=True, kw_only=True):
    session_id: str
    environment_info: EnvironmentInfo | None = None


class EnvironmentStatus(Wire, frozen=True, kw_only=True):
    status: str
