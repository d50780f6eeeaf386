"""`initialize`, `environment/*` and `environmentConfig/read`."""

import os
import pwd
from collections.abc import Awaitable
from functools import partial

from holdfast.errors import InvalidParams
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
from holdfast.protocol.paths import ForeignPathUri
from holdfast.rpc.router import Router
from holdfast.server.connection import ServerConnection

__all__ = ["add_environment_methods"]

_READY = EnvironmentStatus(status="ready")


def add_environment_methods(router: Router[ServerConnection]) -> None:
    """Serve the methods of this file."""
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
    from holdfast.server.executor_config import check_selectors

    check_selectors(params.config_paths, params.requirements_paths)
    try:
        cwd = params.cwd.native
    except ForeignPathUri as error:
        raise InvalidParams(str(error)) from None
    return client.filesystem.run(partial(_load_config, cwd, params))


def _load_config(cwd: str, params: ConfigReadParams) -> ConfigReadResponse:
    """Off the event loop: it reads files, and asks for the name of this host."""
    from holdfast.server.executor_config import (
        executor_hostname,
        read_executor_config,
    )

    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = None
    return read_executor_config(
        cwd,
        params.config_paths,
        params.requirements_paths,
        environ=os.environ,
        home=home,
        hostname=executor_hostname(),
    )
