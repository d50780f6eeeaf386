"""
One table that ties each method to its types, for both sides of the wire.

`FAMILIES` names the group a method belongs to in the texts about the handshake
(exec-server spec 4.1). A method without a family is allowed at any time.
"""

from typing import Any

from holdfast.protocol.base import Empty, Method, NotificationMethod
from holdfast.protocol.environment import ConfigReadParams, ConfigReadResponse
from holdfast.protocol.handshake import (
    EnvironmentInfo,
    EnvironmentStatus,
    InitializeParams,
    InitializeResponse,
)
from holdfast.protocol.process import (
    ClosedEvent,
    CloseStdinParams,
    ExitedEvent,
    ListResponse,
    OutputEvent,
    ReadParams,
    ReadResponse,
    ResizeParams,
    SignalParams,
    StartParams,
    StartResponse,
    TerminateParams,
    TerminateResponse,
    WriteParams,
    WriteResponse,
)

__all__ = [
    "ENVIRONMENT_CONFIG_READ",
    "ENVIRONMENT_INFO",
    "ENVIRONMENT_STATUS",
    "FAMILIES",
    "INITIALIZE",
    "INITIALIZED",
    "METHODS",
    "PROCESS_CLOSED",
    "PROCESS_CLOSE_STDIN",
    "PROCESS_EXITED",
    "PROCESS_LIST",
    "PROCESS_OUTPUT",
    "PROCESS_READ",
    "PROCESS_RESIZE",
    "PROCESS_SIGNAL",
    "PROCESS_START",
    "PROCESS_TERMINATE",
    "PROCESS_WRITE",
]

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
# Extensions of Holdfast: a real server answers that it does not know them.
PROCESS_RESIZE = Method("process/resize", ResizeParams, Empty)
PROCESS_CLOSE_STDIN = Method("process/closeStdin", CloseStdinParams, Empty)
PROCESS_LIST = Method("process/list", Empty, ListResponse)

PROCESS_OUTPUT = NotificationMethod("process/output", OutputEvent)
PROCESS_EXITED = NotificationMethod("process/exited", ExitedEvent)
PROCESS_CLOSED = NotificationMethod("process/closed", ClosedEvent)

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
)

FAMILIES: dict[str, str] = {
    ENVIRONMENT_INFO.name: "environment info",
    ENVIRONMENT_STATUS.name: "environment status",
    ENVIRONMENT_CONFIG_READ.name: "environment config",
    **{method.name: "exec" for method in METHODS if method.name.startswith("process/")},
}
