"""`fs/*`: files on the executor (docs/protocol.md#fs)."""

from typing import Literal

from msgspec import UNSET, UnsetType

from holdfast.base.errors import RemoteProtocolError
from holdfast.wire.protocol.paths import InvalidPathUri, PathUri
from holdfast.wire.protocol.sandbox import SandboxContext
from holdfast.wire.protocol.wire_types import U64, U64_MAX, Base64, Wire

__all__ = [
    "CanonicalizeParams",
    "CanonicalizeResponse",
    "CloseParams",
    "CopyParams",
    "CreateDirectoryParams",
    "DirectoryEntry",
    "FileContent",
    "FileMetadata",
    "GetMetadataParams",
    "MissingChangedEvent",
    "OpenMode",
    "OpenParams",
    "OpenResponse",
    "PathParams",
    "ReadBlockParams",
    "ReadBlockResponse",
    "ReadDirectoryParams",
    "ReadDirectoryResponse",
    "ReadFileParams",
    "ReadFileResponse",
    "RemoveParams",
    "RenameParams",
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

# `replace` is atomic: readers see the old or the new file.
OpenMode = Literal["read", "replace"]

# Without setuid, setgid and sticky, which must not be copied with a file.
_ALL_PERMISSIONS = 0o777


class FileContent:
    """
    The content of a file in the params of a request, base64 on the wire.

    It holds its source: bytes, or the string of a request. So a large string is decoded by the
    thread that writes the file, and one that is only passed on is not decoded.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes | str) -> None:
        self.data = data

    @property
    def size(self) -> int:
        """Bytes of the content; for a string up to two more, since its padding is ignored."""
        return len(self.data) if isinstance(self.data, bytes) else len(self.data) * 3 // 4


class PathParams(Wire, frozen=True):
    """The params of an operation on one path, the first of them."""

    path: PathUri


class ReadFileParams(PathParams, frozen=True, kw_only=True):
    follow_symlinks: bool | None = None
    sandbox: SandboxContext | None = None
    max_bytes: U64 | UnsetType = UNSET
    """
    Refuse a larger file, with `EFBIG` as the `errno`. An extension of Holdfast.

    So a client need not ask for the size first.
    """

    def __post_init__(self) -> None:
        # msgspec takes bounds of 63 bits at most.
        if self.max_bytes is not UNSET and self.max_bytes > U64_MAX:
            raise ValueError("invalid number")


class ReadFileResponse(Wire, frozen=True, kw_only=True):
    # A string: the client decodes it with `pybase64`, which is faster than msgspec.
    data_base64: str


class OpenParams(Wire, frozen=True, kw_only=True):
    handle_id: str
    """The name of the file on one connection; `FileSystem.open` makes its own, or needs none."""
    path: PathUri
    mode: OpenMode = "read"
    sandbox: SandboxContext | None = None
    permissions: U64 | UnsetType = UNSET
    """
    With `replace`, the new permission bits, such as 0o755.

    Unset keeps those of the file, or the default of a new one. An extension of Holdfast.
    """

    def __post_init__(self) -> None:
        # Checked here and not by msgspec, whose text would not name the member.
        if self.permissions is not UNSET and self.permissions > _ALL_PERMISSIONS:
            raise ValueError("permissions must be between 0 and 511")


class OpenResponse(Wire, frozen=True, kw_only=True):
    handle_id: str


class ReadBlockParams(Wire, frozen=True, kw_only=True):
    handle_id: str
    offset: U64
    len: U64

    def __post_init__(self) -> None:
        # msgspec takes bounds of 63 bits at most.
        if self.offset > U64_MAX or self.len > U64_MAX:
            raise ValueError("invalid number")


class ReadBlockResponse(Wire, frozen=True, kw_only=True):
    chunk: str
    """Base64, as in `ReadFileResponse`."""
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


class WriteFileParams(PathParams, frozen=True, kw_only=True):
    data_base64: FileContent
    follow_symlinks: bool | None = None
    sandbox: SandboxContext | None = None


class CreateDirectoryParams(PathParams, frozen=True, kw_only=True):
    recursive: bool | None = None
    """True unless given."""
    follow_symlinks: bool | None = None
    sandbox: SandboxContext | None = None


class GetMetadataParams(PathParams, frozen=True, kw_only=True):
    follow_symlinks: bool | None = None
    sandbox: SandboxContext | None = None


class FileMetadata(Wire, frozen=True, kw_only=True):
    """Times are Unix milliseconds, 0 if unknown."""

    is_directory: bool
    is_file: bool
    is_symlink: bool
    """About the path itself; the other members are about the file it leads to."""
    size: int
    created_at_ms: int
    modified_at_ms: int
    permissions: int | UnsetType = UNSET
    """The permission bits, such as 0o755. An extension of Holdfast, for its own clients."""


class CanonicalizeParams(PathParams, frozen=True, kw_only=True):
    sandbox: SandboxContext | None = None


class CanonicalizeResponse(Wire, frozen=True, kw_only=True):
    path: PathUri


class ReadDirectoryParams(PathParams, frozen=True, kw_only=True):
    sandbox: SandboxContext | None = None


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


class WalkParams(PathParams, frozen=True, kw_only=True):
    options: WalkOptions
    sandbox: SandboxContext | None = None


class WalkEntry(Wire, frozen=True, kw_only=True, rename={"uri": "path"}):
    # A string, since most of tens of thousands are only passed on.
    uri: str
    """The path as a string."""
    kind: Literal["file", "directory"]

    @property
    def path(self) -> PathUri:
        """
        Its path.

        Raises:
            RemoteProtocolError: The server sent an invalid path.
        """
        try:
            return PathUri.parse(self.uri)
        except InvalidPathUri as error:
            raise RemoteProtocolError(f"fs/walk returned a path that is invalid: {error}") from None


class WalkError(Wire, frozen=True, kw_only=True):
    path: PathUri
    message: str


class WalkResponse(Wire, frozen=True, kw_only=True):
    entries: list[WalkEntry]
    errors: list[WalkError]
    truncated: bool


class RemoveParams(PathParams, frozen=True, kw_only=True):
    recursive: bool | None = None
    """True unless given."""
    force: bool | None = None
    """True unless given."""
    follow_symlinks: bool | None = None
    sandbox: SandboxContext | None = None


class CopyParams(Wire, frozen=True, kw_only=True):
    source_path: PathUri
    destination_path: PathUri
    recursive: bool
    sandbox: SandboxContext | None = None


class RenameParams(Wire, frozen=True, kw_only=True):
    """Params of `fs/rename`, an atomic rename. An extension of Holdfast."""

    source_path: PathUri
    destination_path: PathUri


class WatchMissingParams(Wire, frozen=True, kw_only=True):
    watch_id: U64
    """The name of the watch on one connection; see `OpenParams.handle_id`."""
    missing: list[PathUri]
    present: PathUri | None = None


class WatchMissingResponse(Wire, frozen=True, kw_only=True):
    watching: bool


class MissingChangedEvent(Wire, frozen=True, kw_only=True):
    watch_id: int
