"""
The app-server.

All commands of all connections run in one environment.
"""

import asyncio
import logging
import os
import platform
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Self

from holdfast.base.dialect import Compat
from holdfast.base.version import __version__
from holdfast.environments.config.home import codex_home
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.front.app_server.app_connection import AppConnection
from holdfast.front.app_server.app_server_kind import APP_SERVER
from holdfast.front.app_server.command_handlers import add_command_methods
from holdfast.front.app_server.process_family import add_process_methods
from holdfast.front.app_server.sandboxes import SandboxProfiles
from holdfast.server.listen import ListenUrl, listen, parse_listen_url
from holdfast.server.operate.auth import REVOKED, Check, log_revoked
from holdfast.server.state import DEFAULT_CONCURRENT_REQUESTS
from holdfast.telemetry import ServerRecord, Telemetry
from holdfast.wire.protocol.command_exec import AppClientInfo, AppInitializeResponse
from holdfast.wire.rpc.router import Router
from holdfast.wire.transports.transport import Credential, Receiver, Transport

if TYPE_CHECKING:
    from holdfast.wire.transports.tls import ServerTls

__all__ = ["AppServer"]

logger = logging.getLogger(__name__)


class AppServer:
    """
    Serves `command/exec` and `process/*` on any number of transports.

    Use it as a context manager; its exit kills all commands.
    """

    def __init__(
        self,
        environment: Environment | None = None,
        *,
        sandboxes: SandboxProfiles | None = None,
        compat: Compat | None = None,
        concurrent_requests: int = DEFAULT_CONCURRENT_REQUESTS,
        telemetry: Telemetry | None = None,
    ) -> None:
        """
        Args:
            environment: Environment of the commands, by default this machine. Closed at the
                end.
            sandboxes: The default sandbox, and profiles by name.
            compat: A server version to imitate where the default is better.
            concurrent_requests: Maximum concurrent commands of a connection.
            telemetry: Records requests, if given.
        """
        self.environment = LocalEnvironment() if environment is None else environment
        self.sandboxes = SandboxProfiles() if sandboxes is None else sandboxes
        self.compat = compat
        self.concurrent_requests = concurrent_requests
        self.telemetry = telemetry
        self._router: Router[AppConnection] = Router(APP_SERVER)
        add_command_methods(self._router)
        add_process_methods(self._router)
        self._connections: set[AppConnection] = set()
        self._record: ServerRecord | None = None
        self._stack = AsyncExitStack()
        self._tasks: asyncio.TaskGroup

    async def __aenter__(self) -> Self:
        if not self.environment.is_remote and self.environment.cwd is None:
            # Resolved now: the directory may be moved or removed later.
            with suppress(FileNotFoundError):
                self.environment.cwd = os.getcwd()
        await self._stack.enter_async_context(self.environment)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        if self.telemetry is not None:
            self._record = self.telemetry.server()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for client in list(self._connections):
            # At once: clients that do not read must not delay the end.
            client.connection.abandon("the server ends")
        # In this order: the listener, the tasks that end the connections, and the environment,
        # which those tasks need.
        await self._stack.aclose()
        if self._record is not None:
            self._record.finish()

    def accept(self, transport: Transport) -> Receiver:
        """Serve a connection; pass this method to a listener."""
        client = AppConnection(transport, self, self._router, self._tasks)
        self._connections.add(client)
        return client.connection

    async def listen(
        self,
        where: str | ListenUrl,
        check: Check | None = None,
        *,
        tls: "ServerTls | None" = None,
    ) -> str:
        """
        Accept connections at an address until the server ends.

        Args:
            where: `ws://IP:PORT` (port 0 for any free one) or `unix:///path`. Both carry one
                message per WebSocket frame.
            check: Checks tokens; by default any client that reaches the address may connect.
            tls: Certificate for `wss`.

        Returns:
            The URL with the actual port.

        Raises:
            BadListenUrl: The URL is invalid.
            OSError: The address cannot be bound.
        """
        if isinstance(where, str):
            where = parse_listen_url(where)
        listening = await listen(where, self.accept, check, unix_frames=True, tls=tls)
        self._stack.callback(listening.close)
        return listening.url

    def revoke(self, admits: Callable[[Credential], bool]) -> None:
        """
        End the connections and commands of clients that are no longer admitted.

        Args:
            admits: Returns False for a credential that is no longer valid.
        """
        transports = {client: client.connection.transport for client in self._connections}
        gone = [client for client, one in transports.items() if not admits(one.credential)]
        for client in gone:
            client.connection.abandon(REVOKED)
        for credential, count in Counter(transports[one].credential for one in gone).items():
            log_revoked(credential, connections=count)

    @property
    def is_idle(self) -> bool:
        """True without connections."""
        return not self._connections

    async def drain(self, limit: float) -> None:
        """Do nothing: commands end with their connection, as when a client disconnects."""

    def connection_ended(self, client: AppConnection) -> None:
        """Drop a connection and end its commands."""
        self._connections.discard(client)
        self._tasks.create_task(self._end(client))

    async def _end(self, client: AppConnection) -> None:
        try:
            await client.aclose()
        except Exception:
            # Only logged, so that other connections are not affected.
            logger.exception("the commands of a connection could not be ended")

    def introduce(self, client: AppClientInfo) -> AppInitializeResponse:
        """Return the description of the server for a client."""
        version = __version__ if self.compat is None else self.compat.rpartition("-")[2]
        return AppInitializeResponse(
            user_agent=f"{client.name}/{version} ({platform.system()} {platform.release()};"
            f" {platform.machine()}) holdfast/{__version__} ({client.name}; {client.version})",
            codex_home=str(codex_home(os.environ)),
            platform_family="unix",
            platform_os="linux",
        )
