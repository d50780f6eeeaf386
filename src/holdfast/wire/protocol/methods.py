"""
One table that ties each method to its types and its family, for both sides of the wire.

Each method is one row, only here: `METHODS` and `__all__` follow from the rows. Error texts about
the handshake name its family [session.before-initialize].
"""

from typing import Any

from holdfast.wire.protocol.discovery import (
    DiscoverInstalledParams,
    DiscoverInstalledResponse,
    DiscoverRootsParams,
    DiscoverRootsResponse,
)
from holdfast.wire.protocol.environment import ConfigReadParams, ConfigReadResponse
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CanonicalizeResponse,
    CloseParams,
    CopyParams,
    CreateDirectoryParams,
    FileMetadata,
    GetMetadataParams,
    MissingChangedEvent,
    OpenParams,
    OpenResponse,
    ReadBlockParams,
    ReadBlockResponse,
    ReadDirectoryParams,
    ReadDirectoryResponse,
    ReadFileParams,
    ReadFileResponse,
    RemoveParams,
    RenameParams,
    WalkParams,
    WalkResponse,
    WatchMissingParams,
    WatchMissingResponse,
    WriteBlockParams,
    WriteFileParams,
)
from holdfast.wire.protocol.handshake import (
    EnvironmentInfo,
    EnvironmentStatus,
    InitializeParams,
    InitializeResponse,
)
from holdfast.wire.protocol.http import BodyDeltaEvent, HttpRequestParams, HttpResponse
from holdfast.wire.protocol.process import (
    AckParams,
    ClosedEvent,
    CloseStdinParams,
    EndMarkedParams,
    EndMarkedResponse,
    ExitedEvent,
    HoldParams,
    ListResponse,
    OutputEvent,
    ReadParams,
    ReadResponse,
    ResizeParams,
    SignalParams,
    StartParams,
    StartResponse,
    StreamEndedEvent,
    TerminateParams,
    TerminateResponse,
    WaitingForParams,
    WaitingForResponse,
    WriteParams,
    WriteResponse,
)
from holdfast.wire.protocol.wire_types import Empty, Method, NotificationMethod

# The handshake; methods with a family are refused before it.
INITIALIZE = Method("initialize", InitializeParams, InitializeResponse)
INITIALIZED = NotificationMethod("initialized", Empty)

ENVIRONMENT_INFO = Method("environment/info", Empty, EnvironmentInfo, "environment info")
ENVIRONMENT_STATUS = Method("environment/status", Empty, EnvironmentStatus, "environment status")
ENVIRONMENT_CONFIG_READ = Method(
    "environmentConfig/read", ConfigReadParams, ConfigReadResponse, "environment config"
)

PROCESS_START = Method("process/start", StartParams, StartResponse, "exec")
PROCESS_READ = Method("process/read", ReadParams, ReadResponse, "exec")
PROCESS_WRITE = Method("process/write", WriteParams, WriteResponse, "exec")
PROCESS_SIGNAL = Method("process/signal", SignalParams, Empty, "exec")
PROCESS_TERMINATE = Method("process/terminate", TerminateParams, TerminateResponse, "exec")
# Extensions of Holdfast; other servers answer "method not found".
PROCESS_RESIZE = Method("process/resize", ResizeParams, Empty, "exec")
PROCESS_CLOSE_STDIN = Method("process/closeStdin", CloseStdinParams, Empty, "exec")
PROCESS_LIST = Method("process/list", Empty, ListResponse, "exec")
PROCESS_HOLD = Method("process/hold", HoldParams, Empty, "exec")
PROCESS_WAITING_FOR = Method("process/waitingFor", WaitingForParams, WaitingForResponse, "exec")
PROCESS_END_MARKED = Method("process/endMarked", EndMarkedParams, EndMarkedResponse, "exec")
PROCESS_ACK = NotificationMethod("process/ack", AckParams)

# Notifications of a server about its processes.
PROCESS_OUTPUT = NotificationMethod("process/output", OutputEvent)
PROCESS_EXITED = NotificationMethod("process/exited", ExitedEvent)
PROCESS_CLOSED = NotificationMethod("process/closed", ClosedEvent)
PROCESS_STREAM_ENDED = NotificationMethod("process/streamEnded", StreamEndedEvent)

# An extension, sent to Holdfast clients: the last message of a server that ends.
SERVER_STOPPING = NotificationMethod("server/stopping", Empty)

FS_READ_FILE = Method("fs/readFile", ReadFileParams, ReadFileResponse, "filesystem")
FS_OPEN = Method("fs/open", OpenParams, OpenResponse, "filesystem")
FS_READ_BLOCK = Method("fs/readBlock", ReadBlockParams, ReadBlockResponse, "filesystem")
FS_WRITE_BLOCK = Method("fs/writeBlock", WriteBlockParams, Empty, "filesystem")
FS_CLOSE = Method("fs/close", CloseParams, Empty, "filesystem")
FS_WRITE_FILE = Method("fs/writeFile", WriteFileParams, Empty, "filesystem")
FS_CREATE_DIRECTORY = Method("fs/createDirectory", CreateDirectoryParams, Empty, "filesystem")
FS_GET_METADATA = Method("fs/getMetadata", GetMetadataParams, FileMetadata, "filesystem")
FS_CANONICALIZE = Method("fs/canonicalize", CanonicalizeParams, CanonicalizeResponse, "filesystem")
FS_READ_DIRECTORY = Method(
    "fs/readDirectory", ReadDirectoryParams, ReadDirectoryResponse, "filesystem"
)
FS_WALK = Method("fs/walk", WalkParams, WalkResponse, "filesystem")
FS_REMOVE = Method("fs/remove", RemoveParams, Empty, "filesystem")
FS_COPY = Method("fs/copy", CopyParams, Empty, "filesystem")
# An extension of Holdfast.
FS_RENAME = Method("fs/rename", RenameParams, Empty, "filesystem")
FS_WATCH_MISSING = Method("fs/watchMissing", WatchMissingParams, WatchMissingResponse, "filesystem")

# Sent once for a watch; the client then checks itself.
FS_MISSING_CHANGED = NotificationMethod("fs/missingChanged", MissingChangedEvent)

HTTP_REQUEST = Method("http/request", HttpRequestParams, HttpResponse, "http")

# Pieces of a streamed body, numbered from 1.
HTTP_BODY_DELTA = NotificationMethod("http/request/bodyDelta", BodyDeltaEvent)

CAPABILITY_ROOTS_DISCOVER = Method(
    "capabilityRoots/discoverV1", DiscoverRootsParams, DiscoverRootsResponse, "capability discovery"
)
CAPABILITIES_DISCOVER = Method(
    "capabilities/discoverV2",
    DiscoverInstalledParams,
    DiscoverInstalledResponse,
    "capability discovery",
)

METHODS: tuple[Method[Any, Any], ...] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Method)
)
"""All requests, in the order above. Notifications have no answer and no handler."""

__all__ = sorted(name for name in globals() if name.isupper())
