"""
One table that ties each method to its types, for both sides of the wire.

`FAMILIES` names the group of a method in error texts about the handshake
[session.before-initialize]. A method without a family is allowed at any time.
"""

from typing import Any

from holdfast.protocol.base import Empty, Method, NotificationMethod
from holdfast.protocol.discovery import (
    DiscoverInstalledParams,
    DiscoverInstalledResponse,
    DiscoverRootsParams,
    DiscoverRootsResponse,
)
from holdfast.protocol.environment import ConfigReadParams, ConfigReadResponse
from holdfast.protocol.fs import (
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
from holdfast.protocol.handshake import (
    EnvironmentInfo,
    EnvironmentStatus,
    InitializeParams,
    InitializeResponse,
)
from holdfast.protocol.http import BodyDeltaEvent, HttpRequestParams, HttpResponse
from holdfast.protocol.process import (
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

__all__ = [
    "CAPABILITIES_DISCOVER",
    "CAPABILITY_ROOTS_DISCOVER",
    "ENVIRONMENT_CONFIG_READ",
    "ENVIRONMENT_INFO",
    "ENVIRONMENT_STATUS",
    "FAMILIES",
    "FS_CANONICALIZE",
    "FS_CLOSE",
    "FS_COPY",
    "FS_CREATE_DIRECTORY",
    "FS_GET_METADATA",
    "FS_MISSING_CHANGED",
    "FS_OPEN",
    "FS_READ_BLOCK",
    "FS_READ_DIRECTORY",
    "FS_READ_FILE",
    "FS_REMOVE",
    "FS_RENAME",
    "FS_WALK",
    "FS_WATCH_MISSING",
    "FS_WRITE_BLOCK",
    "FS_WRITE_FILE",
    "HTTP_BODY_DELTA",
    "HTTP_REQUEST",
    "INITIALIZE",
    "INITIALIZED",
    "METHODS",
    "PROCESS_ACK",
    "PROCESS_CLOSED",
    "PROCESS_CLOSE_STDIN",
    "PROCESS_END_MARKED",
    "PROCESS_EXITED",
    "PROCESS_HOLD",
    "PROCESS_LIST",
    "PROCESS_OUTPUT",
    "PROCESS_READ",
    "PROCESS_RESIZE",
    "PROCESS_SIGNAL",
    "PROCESS_START",
    "PROCESS_STREAM_ENDED",
    "PROCESS_TERMINATE",
    "PROCESS_WAITING_FOR",
    "PROCESS_WRITE",
    "SERVER_STOPPING",
]

# The handshake; methods with a family are refused before it.
INITIALIZE = Method("initialize", InitializeParams, InitializeResponse)
INITIALIZED = NotificationMethod("initialized", Empty)

ENVIRONMENT_INFO = Method("environment/info", Empty, EnvironmentInfo)
ENVIRONMENT_STATUS = Method("environment/status", Empty, EnvironmentStatus)
ENVIRONMENT_CONFIG_READ = Method("environmentConfig/read", ConfigReadParams, ConfigReadResponse)

PROCESS_START = Method("process/start", StartParams, StartResponse)
PROCESS_READ = Method("process/read", ReadParams, ReadResponse)
PROCESS_WRITE = Method("process/write", WriteParams, WriteResponse)
PROCESS_SIGNAL = Method("process/signal", SignalParams, Empty)
PROCESS_TERMINATE = Method("process/terminate", TerminateParams, TerminateResponse)
# Extensions of Holdfast; a Codex server answers "method not found".
PROCESS_RESIZE = Method("process/resize", ResizeParams, Empty)
PROCESS_CLOSE_STDIN = Method("process/closeStdin", CloseStdinParams, Empty)
PROCESS_LIST = Method("process/list", Empty, ListResponse)
PROCESS_HOLD = Method("process/hold", HoldParams, Empty)
PROCESS_WAITING_FOR = Method("process/waitingFor", WaitingForParams, WaitingForResponse)
PROCESS_END_MARKED = Method("process/endMarked", EndMarkedParams, EndMarkedResponse)
PROCESS_ACK = NotificationMethod("process/ack", AckParams)

# Notifications of a server about its processes.
PROCESS_OUTPUT = NotificationMethod("process/output", OutputEvent)
PROCESS_EXITED = NotificationMethod("process/exited", ExitedEvent)
PROCESS_CLOSED = NotificationMethod("process/closed", ClosedEvent)
PROCESS_STREAM_ENDED = NotificationMethod("process/streamEnded", StreamEndedEvent)

# An extension, sent to Holdfast clients: the last message of a server that ends.
SERVER_STOPPING = NotificationMethod("server/stopping", Empty)

FS_READ_FILE = Method("fs/readFile", ReadFileParams, ReadFileResponse)
FS_OPEN = Method("fs/open", OpenParams, OpenResponse)
FS_READ_BLOCK = Method("fs/readBlock", ReadBlockParams, ReadBlockResponse)
FS_WRITE_BLOCK = Method("fs/writeBlock", WriteBlockParams, Empty)
FS_CLOSE = Method("fs/close", CloseParams, Empty)
FS_WRITE_FILE = Method("fs/writeFile", WriteFileParams, Empty)
FS_CREATE_DIRECTORY = Method("fs/createDirectory", CreateDirectoryParams, Empty)
FS_GET_METADATA = Method("fs/getMetadata", GetMetadataParams, FileMetadata)
FS_CANONICALIZE = Method("fs/canonicalize", CanonicalizeParams, CanonicalizeResponse)
FS_READ_DIRECTORY = Method("fs/readDirectory", ReadDirectoryParams, ReadDirectoryResponse)
FS_WALK = Method("fs/walk", WalkParams, WalkResponse)
FS_REMOVE = Method("fs/remove", RemoveParams, Empty)
FS_COPY = Method("fs/copy", CopyParams, Empty)
# An extension of Holdfast.
FS_RENAME = Method("fs/rename", RenameParams, Empty)
FS_WATCH_MISSING = Method("fs/watchMissing", WatchMissingParams, WatchMissingResponse)

# Sent once for a watch; the client then looks for itself.
FS_MISSING_CHANGED = NotificationMethod("fs/missingChanged", MissingChangedEvent)

HTTP_REQUEST = Method("http/request", HttpRequestParams, HttpResponse)

# Pieces of a streamed body, numbered from 1.
HTTP_BODY_DELTA = NotificationMethod("http/request/bodyDelta", BodyDeltaEvent)

CAPABILITY_ROOTS_DISCOVER = Method(
    "capabilityRoots/discoverV1", DiscoverRootsParams, DiscoverRootsResponse
)
CAPABILITIES_DISCOVER = Method(
    "capabilities/discoverV2", DiscoverInstalledParams, DiscoverInstalledResponse
)

# Requests only: notifications have no answer and need no handler table.
METHODS: tuple[Method[Any, Any], ...] = (
    INITIALIZE,
    ENVIRONMENT_INFO,
    ENVIRONMENT_STATUS,
    ENVIRONMENT_CONFIG_READ,
    PROCESS_START,
    PROCESS_READ,
    PROCESS_WRITE,
    PROCESS_SIGNAL,
    PROCESS_TERMINATE,
    PROCESS_RESIZE,
    PROCESS_CLOSE_STDIN,
    PROCESS_LIST,
    PROCESS_HOLD,
    PROCESS_WAITING_FOR,
    PROCESS_END_MARKED,
    FS_READ_FILE,
    FS_OPEN,
    FS_READ_BLOCK,
    FS_WRITE_BLOCK,
    FS_CLOSE,
    FS_WRITE_FILE,
    FS_CREATE_DIRECTORY,
    FS_GET_METADATA,
    FS_CANONICALIZE,
    FS_READ_DIRECTORY,
    FS_WALK,
    FS_REMOVE,
    FS_COPY,
    FS_RENAME,
    FS_WATCH_MISSING,
    HTTP_REQUEST,
    CAPABILITY_ROOTS_DISCOVER,
    CAPABILITIES_DISCOVER,
)

# The words are those of the real server's error texts.
FAMILIES: dict[str, str] = {
    ENVIRONMENT_INFO.name: "environment info",
    ENVIRONMENT_STATUS.name: "environment status",
    ENVIRONMENT_CONFIG_READ.name: "environment config",
    **{method.name: "exec" for method in METHODS if method.name.startswith("process/")},
    **{method.name: "filesystem" for method in METHODS if method.name.startswith("fs/")},
    HTTP_REQUEST.name: "http",
    CAPABILITY_ROOTS_DISCOVER.name: "capability discovery",
    CAPABILITIES_DISCOVER.name: "capability discovery",
}
