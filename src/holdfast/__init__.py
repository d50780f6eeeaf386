"""
Holdfast: the process runtime for agents.

Names are loaded on first use, so `import holdfast` costs next to nothing, and a program
only pays for the side of the wire it is on.
"""

from holdfast.base.late_import import late_names
from holdfast.base.version import __version__

# Type checkers recognize the name; importing `typing` for it would cost more than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.unified_exec import UnifiedExec
    from holdfast.backends import ExecBackend, ExecProcess, FileSystem, HttpClient
    from holdfast.base.errors import (
        CommandFailed,
        ConnectFailed,
        ConnectionLost,
        DuplicateProcess,
        EnvironmentClosed,
        HoldfastError,
        InvalidConfig,
        InvalidParams,
        InvalidRequest,
        NotFound,
        OperationFailed,
        OutputLost,
        PatternNotFound,
        PatternTimedOut,
        ProtocolError,
        Refused,
        RemoteError,
        SpawnFailed,
        StdinClosed,
        UnknownProcess,
        Unsupported,
    )
    from holdfast.client import ExecServerClient
    from holdfast.client.target import MemoryTarget
    from holdfast.engine.files.local_files import LocalFileSystem
    from holdfast.engine.http.local_http import LocalHttpClient
    from holdfast.engine.process.registry import LocalBackend
    from holdfast.environments.collect.head_tail import Captured
    from holdfast.environments.commands.chunks import Chunk
    from holdfast.environments.commands.completed import Completed
    from holdfast.environments.commands.running import ExpectMatch, Running
    from holdfast.environments.connect import connect
    from holdfast.environments.environment import Environment, Status
    from holdfast.environments.environment_manager import EnvironmentManager
    from holdfast.environments.files import Files
    from holdfast.environments.limits import Limits
    from holdfast.environments.sandbox import SandboxProfile
    from holdfast.environments.tree_transfer import TransferProgress, Transferred
    from holdfast.events import (
        Closed,
        Denial,
        DenialKind,
        Exited,
        Gap,
        ProcessEvent,
        Reason,
        StreamEnded,
        Verdict,
        WaitingFor,
    )
    from holdfast.front import sync
    from holdfast.server.app import Server
    from holdfast.wire.protocol.fs import DirectoryEntry, FileMetadata, WalkOptions
    from holdfast.wire.protocol.http import HttpHeader, HttpRequestParams, HttpResponse
    from holdfast.wire.protocol.paths import PathUri
    from holdfast.wire.protocol.process import (
        Enforcement,
        EnvPolicy,
        NetworkAttempt,
        OutputChunk,
        StartParams,
        TerminalSize,
        WriteStatus,
    )
    from holdfast.wire.protocol.wire_types import Base64

__all__ = [
    "Base64",
    "Captured",
    "Chunk",
    "Closed",
    "CommandFailed",
    "Completed",
    "ConnectFailed",
    "ConnectionLost",
    "Denial",
    "DenialKind",
    "DirectoryEntry",
    "DuplicateProcess",
    "Enforcement",
    "EnvPolicy",
    "Environment",
    "EnvironmentClosed",
    "EnvironmentManager",
    "ExecBackend",
    "ExecProcess",
    "ExecServerClient",
    "Exited",
    "ExpectMatch",
    "FileMetadata",
    "FileSystem",
    "Files",
    "Gap",
    "HoldfastError",
    "HttpClient",
    "HttpHeader",
    "HttpRequestParams",
    "HttpResponse",
    "InvalidConfig",
    "InvalidParams",
    "InvalidRequest",
    "Limits",
    "LocalBackend",
    "LocalFileSystem",
    "LocalHttpClient",
    "MemoryTarget",
    "NetworkAttempt",
    "NotFound",
    "OperationFailed",
    "OutputChunk",
    "OutputLost",
    "PathUri",
    "PatternNotFound",
    "PatternTimedOut",
    "ProcessEvent",
    "ProtocolError",
    "Reason",
    "Refused",
    "RemoteError",
    "Running",
    "SandboxProfile",
    "Server",
    "SpawnFailed",
    "StartParams",
    "Status",
    "StdinClosed",
    "StreamEnded",
    "TerminalSize",
    "TransferProgress",
    "Transferred",
    "UnifiedExec",
    "UnknownProcess",
    "Unsupported",
    "Verdict",
    "WaitingFor",
    "WalkOptions",
    "WriteStatus",
    "__version__",
    "connect",
    "sync",
]

_HOMES = {
    "holdfast.backends": ("ExecBackend", "ExecProcess", "FileSystem", "HttpClient"),
    "holdfast.client": ("ExecServerClient",),
    "holdfast.client.target": ("MemoryTarget",),
    "holdfast.environments.collect.head_tail": ("Captured",),
    "holdfast.environments.commands.chunks": ("Chunk",),
    "holdfast.environments.commands.completed": ("Completed",),
    "holdfast.environments.connect": ("connect",),
    "holdfast.environments.environment": ("Environment", "Status"),
    "holdfast.environments.environment_manager": ("EnvironmentManager",),
    "holdfast.environments.files": ("Files",),
    "holdfast.environments.limits": ("Limits",),
    "holdfast.environments.sandbox": ("SandboxProfile",),
    "holdfast.environments.tree_transfer": ("TransferProgress", "Transferred"),
    "holdfast.environments.commands.running": ("ExpectMatch", "Running"),
    "holdfast.base.errors": (
        "CommandFailed",
        "ConnectFailed",
        "ConnectionLost",
        "DuplicateProcess",
        "EnvironmentClosed",
        "HoldfastError",
        "InvalidConfig",
        "InvalidParams",
        "InvalidRequest",
        "NotFound",
        "OperationFailed",
        "OutputLost",
        "PatternNotFound",
        "PatternTimedOut",
        "ProtocolError",
        "Refused",
        "RemoteError",
        "SpawnFailed",
        "StdinClosed",
        "UnknownProcess",
        "Unsupported",
    ),
    "holdfast.events": (
        "Closed",
        "Denial",
        "DenialKind",
        "Exited",
        "Gap",
        "ProcessEvent",
        "Reason",
        "StreamEnded",
        "Verdict",
        "WaitingFor",
    ),
    "holdfast.engine.files.local_files": ("LocalFileSystem",),
    "holdfast.engine.http.local_http": ("LocalHttpClient",),
    "holdfast.engine.process.registry": ("LocalBackend",),
    "holdfast.wire.protocol.wire_types": ("Base64",),
    "holdfast.wire.protocol.fs": ("DirectoryEntry", "FileMetadata", "WalkOptions"),
    "holdfast.wire.protocol.http": ("HttpHeader", "HttpRequestParams", "HttpResponse"),
    "holdfast.wire.protocol.paths": ("PathUri",),
    "holdfast.wire.protocol.process": (
        "Enforcement",
        "EnvPolicy",
        "NetworkAttempt",
        "OutputChunk",
        "StartParams",
        "TerminalSize",
        "WriteStatus",
    ),
    "holdfast.server.app": ("Server",),
    "holdfast.agent.unified_exec": ("UnifiedExec",),
}

__getattr__ = late_names(
    globals(),
    {"sync": "holdfast.front.sync"}
    | {name: f"{home}:{name}" for home, names in _HOMES.items() for name in names},
)


def __dir__() -> list[str]:
    return __all__
