"""`initialize`, and the server's description of its machine (docs/protocol.md#initialize)."""

from msgspec import UNSET, UnsetType

from holdfast.wire.protocol.wire_types import Wire

__all__ = [
    "Capabilities",
    "EnvironmentInfo",
    "EnvironmentStatus",
    "InitializeParams",
    "InitializeResponse",
    "ShellInfo",
]


class InitializeParams(Wire, frozen=True, kw_only=True):
    """Params of `initialize`: opens a session, or resumes one that lost its connection."""

    client_name: str
    resume_session_id: str | None = None
    acknowledges: bool | UnsetType = UNSET
    """
    True from a Holdfast client, which acknowledges output with `process/ack`.

    A Holdfast server then retains unacknowledged output, and pauses a process if the client does
    not fetch its output. It lets the client take over its session from a dead connection, and sends
    members that the base protocol does not have. Other servers ignore it.
    """


class ShellInfo(Wire, frozen=True, kw_only=True):
    """The user's shell; the path is native and need not be absolute."""

    name: str
    path: str


class Capabilities(Wire, frozen=True, kw_only=True):
    """
    Features of a server beyond the base protocol; False unless announced.

    The first block is the protocol's, the second has Holdfast's extensions.
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
    """`permissions` in `fs/open` and in the result of `fs/getMetadata`."""
    file_rename: bool = False
    """`fs/rename`."""
    file_read_limit: bool = False
    """`maxBytes` in `fs/readFile`."""
    process_resize: bool = False
    """`process/resize`, and `terminalSize` in `process/start`."""
    process_close_stdin: bool = False
    process_list: bool = False
    process_signal_names: bool = False
    """`process/signal` takes any signal by its name, such as `SIGTERM`."""
    process_limits: bool = False
    """`limits` in `process/start`."""
    process_hold: bool = False
    """`process/hold`: pauses a single process."""
    process_ack: bool = False
    """
    `process/ack`, and the effects of `acknowledges` in `initialize`.

    Unacknowledged output survives a lost connection.
    """
    process_terminate_left: bool = False
    """`left` and `streams` of `process/terminate`."""
    process_unset: bool = False
    """`unset` in `process/start`."""
    process_end_marked: bool = False
    """`process/endMarked`: kills daemons that commands left behind."""
    process_waiting_for: bool = False
    """`process/waitingFor`: reports the input that a process on a terminal waits for."""


class EnvironmentInfo(Wire, frozen=True, kw_only=True):
    """The machine of a server. An older server sends `shell` only."""

    shell: ShellInfo
    executor_version: str | None = None
    """The version whose protocol the server speaks."""
    holdfast_version: str | UnsetType = UNSET
    """The version of a Holdfast server. An extension."""
    provider_id: str | None = None
    cwd: str | None = None
    user_home_dir: str | None = None
    platform_os: str | None = None
    prepend_path_dirs: tuple[str, ...] = ()
    temporary_directories: tuple[str, ...] = ()
    temp_dir: str | None = None
    # Shared by all instances, since it is frozen.
    capabilities: Capabilities = Capabilities()


class InitializeResponse(Wire, frozen=True, kw_only=True):
    session_id: str
    environment_info: EnvironmentInfo | None = None


class EnvironmentStatus(Wire, frozen=True, kw_only=True):
    status: str
