"""`fs/*`: files on the executor's side (filesystem spec 3 and 4)."""

from typing import Any, Literal

from holdfast.protocol.base import U64, U64_MAX, Base64, Wire
from holdfast.protocol.paths import PathUri

__all__ = [
    "CanonicalizeParams",
    "CanonicalizeResponse",
    "CloseParams",
    "CopyParams",
    "CreateDirectoryParams",
    "DirectoryEntry",
    "FileMetadata",
    "FileSandbox",
    "GetMetadataParams",
    "MissingChangedEvent",
    "OpenMode",
    "OpenParams",
    "OpenResponse",
    "ReadBlockParams",
    "ReadBlockResponse",
    "ReadDirectoryParams",
    "ReadDirectoryResponse",
    "ReadFileParams",
    "ReadFileResponse",
    "RemoveParams",
    "SandboxPolicyContext",
    "WalkEntry",
    "WalkError",
    "WalkOptions",
    "WalkParams",
    "WalkResponse",
    "WatchMissingParams",
    "WatchMissingResponse",
    "WriteBlockParams",
    "WriteFileParams",
]

OpenMode = Literal["read", "replace"]


class SandboxPolicyContext(Wire, frozen=True, kw_only=True):
    """The newer home of two members of the context."""

    cwd: PathUri | None = None
    workspace_roots: list[PathUri] | None = None


class FileSandbox(Wire, frozen=True, kw_only=True):
    """What an operation may touch. Whoever serves it without a sandbox must refuse it."""

    permissions: dict[str, Any]
    windows_sandbox_level: Literal["disabled", "restricted-token", "elevated", "mxc"]
    cwd: PathUri | None = None
    workspace_roots: tuple[PathUri, ...] = ()
    policy_context: SandboxPolicyContext | None = None
    sandbox_override: Literal[
        "noOverride", "escalatedSandboxWithRestrictions", "bypassSandboxFirstAttempt"
    ] = "noOverride"
    user_home_dir: PathUri | None = None
    temporary_directories: list[PathUri] | None = None
    windows_sandbox_proxy_settings_mode: Literal["reconcile", "preserve"] | None = None
    use_legacy_landlock: bool = False


class ReadFileParams(Wire, frozen=True, kw_only=True):
    path: PathUri
    follow_symlinks: bool | None = None
    sandbox: FileSandbox | None = None


class ReadFileResponse(Wire, frozen=True, kw_only=True):
    data_base64: bytes
    """Raw bytes; base64 on the wire."""


class OpenParams(Wire, frozen=True, kw_only=True):
    handle_id: str
    path: PathUri
    mode: OpenMode = "read"
    sandbox: FileSandbox | None = None


class OpenResponse(Wire, frozen=True, kw_only=True):
    handle_id: str


class ReadBlockParams(Wire, frozen=True, kw_only=True):
    handle_id: str
    offset: U64
    len: U64

    def __post_init__(self) -> None:
        if self.offset > U64_MAX or self.len > U64_MAX:
            raise ValueError("invalid number")


class ReadBlockResponse(Wire, frozen=True, kw_only=True):
    chunk: bytes
    eof: bool


class WriteBlockParams(Wire, frozen=True, kw_only=True):
    handle_id: str
    offset: U64
    chunk: Base64

    def __post_init__(self) -> None:
        if self.offset > U64_MAX:
            raise ValueError("invalid number")


class CloseParams(Wire, frozen=True, kw_only=True):
    handle_id: str


class WriteFileParams(Wire, frozen=True, kw_only=True):
    path: PathUri
    data_base64: str
    """Base64, kept as text."""
    follow_symlinks: bool | None = None
    sandbox: FileSandbox | None = None


class CreateDirectoryParams(Wire, frozen=True, kw_only=True):
    path: PathUri
    recursive: bool | None = None
    """True unless given."""
    follow_symlinks: bool | None = None
    sandbox: FileSandbox | None = None


class GetMetadataParams(Wire, frozen=True, kw_only=True):
    path: PathUri
    follow_symlinks: bool | None = None
    sandbox: FileSandbox | None = None


class FileMetadata(Wire, frozen=True, kw_only=True):
    """Times are Unix milliseconds, 0 if unknown."""

    is_directory: bool
    is_file: bool
    is_symlink: bool
    """Tells about the path itself; all else about what it leads to."""
    size: int
    created_at_ms: int
    modified_at_ms: int


class CanonicalizeParams(Wire, frozen=True, kw_only=True):
    path: PathUri
    sandbox: FileSandbox | None = None


class CanonicalizeResponse(Wire, frozen=True, kw_only=True):
    path: PathUri


class ReadDirectoryParams(Wire, frozen=True, kw_only=True):
    path: PathUri
    sandbox: FileSandbox | None = None


class DirectoryEntry(Wire, frozen=True, kw_only=True):
    file_name: str
    is_directory: bool
    is_file: bool


class ReadDirectoryResponse(Wire, frozen=True, kw_only=True):
    entries: list[DirectoryEntry]


class WalkOptions(Wire, frozen=True, kw_only=True):
    max_depth: U64
    max_directories: U64
    max_entries: U64
    follow_directory_symlinks: bool
    prune_hidden_directories: bool = False


class WalkParams(Wire, frozen=True, kw_only=True):
    path: PathUri
    options: WalkOptions
    sandbox: FileSandbox | None = None


class WalkEntry(Wire, frozen=True, kw_only=True):
    path: PathUri
    kind: Literal["file", "directory"]


class WalkError(Wire, frozen=True, kw_only=True):
    path: PathUri
    message: str


class WalkResponse(Wire, frozen=True, kw_only=True):
    entries: list[WalkEntry]
    errors: list[WalkError]
    truncated: bool


class RemoveParams(Wire, frozen=True, kw_only=True):
    path: PathUri
    recursive: bool | None = None
    """True unless given."""
    force: bool | None = None
    """True unless given."""
    follow_symlinks: bool | None = None
    sandbox: FileSandbox | None = None


class CopyParams(Wire, frozen=True, kw_only=True):
    source_path: PathUri
    destination_path: PathUri
    recursive: bool
    sandbox: FileSandbox | None = None


class WatchMissingParams(Wire, frozen=True, kw_only=True):
    watch_id: U64
    missing: list[PathUri]
    present: PathUri | None = None


class WatchMissingResponse(Wire, frozen=True, kw_only=True):
    watching: bool


class MissingChangedEvent(Wire, frozen=True, kw_only=True):
    watch_id: int
