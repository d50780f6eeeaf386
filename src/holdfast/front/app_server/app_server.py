"""
The app-server from its start to its end.

Any number of connections share one environment, in which all commands run.
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

    Use it as a context manager; at its end every command is killed.
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
            environment: Environment of the commands; this machine by default. Closed at the
                end.
            sandboxes: The default sandbox, and profiles by name.
            compat: A server version to imitate, where the default behaves better.
            concurrent_requests: Commands of one connection that may run at once.
            telemetry: Recorder of requests, if there is one.
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
            # Fixed at the start: the directory may be moved or removed later.
            with suppress(FileNotFoundError):
                self.environment.cwd = os.getcwd()
        await self._stack.enter_async_context(self.environment)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        if self.telemetry is not None:
            self._record = self.telemetry.server()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for client in list(self._connections):
            # At once: a client that does not read must not delay the end.
            client.connection.abandon("the server ends")
        # In reverse order of entering: the listener, the tasks that end the connections, and
        # last the environment, which those tasks still need.
        await self._stack.aclose()
        if self._record is not None:
            self._record.finish()

    def accept(self, transport: Transport) -> Receiver:
        """Serve a connection; hand this to a listener."""
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
        Accept connections at an address, until the end.

        Args:
            where: `ws://IP:PORT` (port 0: any free one) or `unix:///path`. Either carries one
                message per WebSocket frame.
            check: Decides who may connect; by default everybody who can reach it.
            tls: The certificate, for `wss`.

        Returns:
            The URL with the actual port.

        Raises:
            BadListenUrl: It is no such address.
            OSError: The address is not available.
        """
        if isinstance(where, str):
            where = parse_listen_url(where)
        listening = await listen(where, self.accept, check, unix_frames=True, tls=tls)
        self._stack.callback(listening.close)
        return listening.url

    def revoke(self, admits: Callable[[Credential], bool]) -> None:
        """
        End the connections, and their commands, of clients that are not admitted any more.

        Args:
            admits: Returns False for a credential that is not valid any more.
        """
        transports = {client: client.connection.transport for client in self._connections}
        gone = [client for client, one in transports.items() if not admits(one.credential)]
        for client in gone:
            client.connection.abandon(REVOKED)
        for credential, count in Counter(transports[one].credential for one in gone).items():
            log_revoked(credential, connections=count)

    @property
    def is_idle(self) -> bool:
        """True if there is no connection."""
        return not self._connections

    async def drain(self, limit: float) -> None:
        """Do nothing: commands end with their connection, as if the client had left."""

    def connection_ended(self, client: AppConnection) -> None:
        """Drop a connection and end its commands."""
        self._connections.discard(client)
        self._tasks.create_task(self._end(client))

    async def _end(self, client: AppConnection) -> None:
        try:
            await client.aclose()
        except Exception:
            # Logged only: the other connections must go on.
            logger.exception("the commands of a connection could not be ended")

    def introduce(self, client: AppClientInfo) -> AppInitializeResponse:
        """Return the server's description for a client."""
        version = __version__ if self.compat is None else self.compat.rpartition("-")[2]
        return AppInitializeResponse(
            user_agent=f"{client.name}/{version} ({platform.system()} {platform.release()};"
            f" {platform.machine()}) holdfast/{__version__} ({client.name}; {client.version})",
            codex_home=str(codex_home(os.environ)),
            platform_family="unix",
            platform_os="linux",
        )
