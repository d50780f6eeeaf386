"""A client's connection to the app-server: handshake and commands."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.base.dialect import texts
from holdfast.base.errors import HoldfastError, InvalidRequest, MalformedMessage
from holdfast.base.tasks import OwnedTasks
from holdfast.front.app_server.app_server_kind import APP_SERVER
from holdfast.front.app_server.command_exec.command_manager import CommandExec
from holdfast.front.app_server.command_handlers import command_family
from holdfast.front.app_server.family import MAX_WAITING_INPUT
from holdfast.front.app_server.process_family import process_family
from holdfast.server.dispatch import Dispatcher
from holdfast.wire.connection import Connection
from holdfast.wire.protocol.command_exec import (
    APP_INITIALIZE,
    AppInitializeParams,
    AppInitializeResponse,
)
from holdfast.wire.protocol.envelope import Notification, Request
from holdfast.wire.protocol.wire_types import NotificationMethod
from holdfast.wire.rpc.router import Route, Router
from holdfast.wire.transports.transport import Transport

if TYPE_CHECKING:
    from holdfast.front.app_server.app_server import AppServer

__all__ = ["AppConnection"]

logger = logging.getLogger(__name__)

P = TypeVar("P")


class AppConnection:
    """
    Handles the messages of a client; the context of all method handlers.

    Ids belong to the connection, and its commands are killed when it ends.
    """

    def __init__(
        self,
        transport: Transport,
        server: "AppServer",
        router: Router["AppConnection"],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.server = server
        self.connection = Connection(transport, self, APP_SERVER)
        self.tasks = OwnedTasks()
        """
        Tasks that outlive the response to their request, such as `process/spawn`, and end with
        the connection.
        """
        self.commands = command_family(
            self,
            CommandExec(server.environment, compat=server.compat),
            refuse_late=server.compat is None,
        )
        """The commands of `command/exec`."""
        self.processes = process_family(self, CommandExec(server.environment, compat=server.compat))
        """The commands of `process/spawn`."""
        self.spawned = 0
        """
        Number of running `process/spawn` processes, whose requests have already been answered.
        """
        self.experimental = False
        """True if the client has requested experimental methods."""
        self._initialized = False
        self._unwanted: frozenset[str] = frozenset()
        self._writable = asyncio.Event()
        self._writable.set()
        # Bytes of stdin that commands have not read yet.
        self._waiting_input = 0
        self._dispatcher = Dispatcher(
            self.connection,
            router,
            self,
            limit=server.concurrent_requests,
            tasks=tasks,
            admit=self._admit,
            telemetry=server.telemetry,
            server_kind=APP_SERVER,
        )
        if server.telemetry is not None:
            server.telemetry.connection_opened(transport.kind)

    def initialize(self, params: AppInitializeParams) -> AppInitializeResponse:
        """
        Store the client's description.

        Raises:
            InvalidRequest: The connection is already initialized, or the name is invalid in a
                header.
        """
        if self._initialized:
            raise InvalidRequest(texts.ALREADY_INITIALIZED)
        name = params.client_info.name
        # The name becomes part of the user agent header.
        if any((char < " " and char != "\t") or char == "\x7f" for char in name):
            text = f"Invalid clientInfo.name: '{name}'. Must be a valid HTTP header value."
            raise InvalidRequest(text)
        self._initialized = True
        if params.capabilities is not None:
            self.experimental = params.capabilities.experimental_api
            self._unwanted = frozenset(params.capabilities.opt_out_notification_methods or ())
        return self.server.introduce(params.client_info)

    def _admit(self, route: Route["AppConnection"]) -> None:
        if not self._initialized and route.name != APP_INITIALIZE.name:
            raise InvalidRequest(texts.NOT_INITIALIZED)

    # -- what handlers send

    def wants(self, method: str) -> bool:
        """Return True if the client wants this notification."""
        return method not in self._unwanted

    def notify(self, method: NotificationMethod[P], params: P) -> None:
        """Send a notification if the client wants it."""
        if self.wants(method.name):
            self.connection.notify(method, params)

    def send_parts(self, parts: Sequence[bytes]) -> None:
        self.connection.send_parts(parts)

    async def writable(self) -> None:
        """Wait until the client has read what was sent."""
        # In a loop, because another waiter may have filled the buffer again.
        while not self._writable.is_set():
            await self._writable.wait()

    def input_waits(self, change: int) -> None:
        """Add `change` bytes of pending stdin; above the limit, stop reading the connection."""
        self._waiting_input += change
        if self._waiting_input > MAX_WAITING_INPUT:
            self.connection.hold_receiving("input")
        # At half of the limit, so that reading is not stopped and resumed for every message.
        elif self._waiting_input <= MAX_WAITING_INPUT // 2:
            self.connection.release_receiving("input")

    def log_lost(self, what: str, error: HoldfastError) -> None:
        """Log the loss of a command whose end is unknown."""
        logger.warning("%s: %r is lost: %s", self.connection.transport.label, what, error)

    # -- ConnectionHandler

    def request(self, request: Request) -> None:
        self._dispatcher.request(request)

    def notification(self, notification: Notification) -> None:
        """Ignore notifications: `initialized` has no effect, others are unknown."""

    def malformed(self, error: MalformedMessage) -> None:
        logger.info("%s sent an invalid message: %s", self.connection.transport.label, error)

    def lost(self, reason: str) -> None:
        self._dispatcher.drop()
        # Wakes handlers that wait for the client to read, since it never will.
        self._writable.set()
        if self.server.telemetry is not None:
            self.server.telemetry.connection_closed(self.connection.transport.kind)
        self.server.connection_ended(self)

    async def aclose(self) -> None:
        """Kill everything that the client has started, and wait for it to end."""
        await asyncio.gather(self.commands.commands.aclose(), self.processes.commands.aclose())
        await self.tasks.aclose()

    def pause_sending(self) -> None:
        self._writable.clear()

    def resume_sending(self) -> None:
        self._writable.set()
