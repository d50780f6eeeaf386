"""Handlers of `capabilityRoots/discoverV1` and `capabilities/discoverV2`."""

import os
from functools import partial
from typing import TYPE_CHECKING

from holdfast.base.errors import OperationFailed
from holdfast.base.late_import import late_module
from holdfast.base.own_files import database_home
from holdfast.server.server_connection import ServerConnection
from holdfast.wire.protocol.discovery import (
    DiscoverInstalledParams,
    DiscoverInstalledResponse,
    DiscoverRootsParams,
    DiscoverRootsResponse,
)
from holdfast.wire.protocol.methods import CAPABILITIES_DISCOVER, CAPABILITY_ROOTS_DISCOVER
from holdfast.wire.rpc.router import Router

if TYPE_CHECKING:
    from holdfast.codex import executor_config
    from holdfast.codex.discovery import installed, roots
else:
    # The imports take up to 50 ms, and few clients call these methods.
    executor_config = late_module("holdfast.codex.executor_config")
    installed = late_module("holdfast.codex.discovery.installed")
    roots = late_module("holdfast.codex.discovery.roots")

__all__ = ["add_discovery_methods"]


def add_discovery_methods(router: Router[ServerConnection]) -> None:
    """Add the handlers of this module to a router."""
    router.add(CAPABILITY_ROOTS_DISCOVER, _discover_roots)
    router.add(CAPABILITIES_DISCOVER, _discover_installed)


async def _discover_roots(
    client: ServerConnection, params: DiscoverRootsParams
) -> DiscoverRootsResponse:
    return DiscoverRootsResponse(roots=await roots.discover_roots(client.filesystem, params.roots))


async def _discover_installed(
    client: ServerConnection, params: DiscoverInstalledParams
) -> DiscoverInstalledResponse:
    # In threads: the user database may be a directory service, and the home a network mount.
    home = os.environ.get("HOME") or await client.threads.run(database_home) or None
    try:
        settings = await client.threads.run(partial(executor_config.codex_home, os.environ, home))
    except OperationFailed:
        # Without a home there is nothing to discover, which is not an error.
        return DiscoverInstalledResponse(plugins=[], skills=[], warnings=[])
    return await installed.discover_installed(
        client.filesystem,
        codex_home=settings,
        user_home=home if home and os.path.isabs(home) else None,
        system_directory=executor_config.SYSTEM_DIRECTORY,
        sandbox=params.sandbox,
    )
