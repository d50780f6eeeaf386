"""`initialize` and `environment/*`."""

from holdfast.errors import InvalidParams, OperationFailed
from holdfast.protocol.base import Empty
from holdfast.protocol.environment import (
    ConfigReadParams,
    ConfigReadResponse,
)
from holdfast.protocol.handshake import (
    EnvironmentInfo,
    EnvironmentStatus,
    InitializeParams,
    InitializeResponse,
)
from holdfast.protocol.methods import (
    ENVIRONMENT_CONFIG_READ,
    ENVIRONMENT_INFO,
    ENVIRONMENT_STATUS,
    INITIALIZE,
)
from holdfast.rpc.router import Router
from holdfast.server.connection import ServerConnection

__all__ = ["add_environment_methods"]

_READY = EnvironmentStatus(status="ready")


def add_environment_methods(router: Router[ServerConnection]) -> None:
    """Serve the methods of this file."""
    router.add(INITIALIZE, _initialize)
    router.add(ENVIRONMENT_INFO, _info)
    router.add(ENVIRONMENT_STATUS, _status)


def _initialize(client: ServerConnection, params: InitializeParams) -> InitializeResponse:
    return client.initialize(params)


def _info(client: ServerConnection, params: Empty) -> EnvironmentInfo:
    return client.state.environment


def _status(client: ServerConnection, params: Empty) -> EnvironmentStatus:
    return _READY
