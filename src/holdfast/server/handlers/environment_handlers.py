"""Handlers of `initialize`, `environment/*` and `environmentConfig/read`."""

import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from holdfast.base.errors import InvalidParams
from holdfast.base.late_import import late_module
from holdfast.base.own_files import database_home
from holdfast.server.server_connection import ServerConnection
from holdfast.wire.protocol.environment import (
    ConfigReadParams,
    ConfigReadResponse,
)
from holdfast.wire.protocol.handshake import (
    EnvironmentInfo,
    EnvironmentStatus,
    InitializeParams,
    InitializeResponse,
)
from holdfast.wire.protocol.methods import (
    ENVIRONMENT_CONFIG_READ,
    ENVIRONMENT_INFO,
    ENVIRONMENT_STATUS,
    INITIALIZE,
)
from holdfast.wire.protocol.paths import ForeignPathUri
from holdfast.wire.protocol.wire_types import Empty
from holdfast.wire.rpc.router import Router

if TYPE_CHECKING:
    from holdfast.codex import executor_config
else:
    # `tomllib` takes 20 ms to import, and few clients call the method.
    executor_config = late_module("holdfast.codex.executor_config")

__all__ = ["add_environment_methods"]

_READY = EnvironmentStatus(status="ready")


def add_environment_methods(router: Router[ServerConnection]) -> None:
    """Add the handlers of this module to a router."""
    router.add(INITIALIZE, _initialize)
    router.add(ENVIRONMENT_INFO, _info)
    router.add(ENVIRONMENT_STATUS, _status)
    router.add(ENVIRONMENT_CONFIG_READ, _read_config)


def _initialize(client: ServerConnection, params: InitializeParams) -> InitializeResponse:
    return client.initialize(params)


def _info(client: ServerConnection, params: Empty) -> EnvironmentInfo:
    return client.state.environment


def _status(client: ServerConnection, params: Empty) -> EnvironmentStatus:
    return _READY


def _read_config(
    client: ServerConnection, params: ConfigReadParams
) -> Awaitable[ConfigReadResponse]:
    executor_config.check_selectors(params.config_paths, params.requirements_paths)
    try:
        cwd = params.cwd.native
    except ForeignPathUri as error:
        raise InvalidParams(str(error)) from None

    def load() -> ConfigReadResponse:
        """Read the configuration; blocks on files, the user database and the resolver."""
        return executor_config.read_executor_config(
            cwd,
            params.config_paths,
            params.requirements_paths,
            environ=os.environ,
            home=database_home() or None,
            hostname=executor_config.executor_hostname(),
        )

    return client.threads.run(load)
