"""
A place that a server gives: its three seams share one connection.

See [environments.one-connection].
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from holdfast.backends import FileSystem
from holdfast.client.client import ExecServerClient
from holdfast.client.target import Target, WebSocketTarget
from holdfast.environments.commands.run import END_LIMIT
from holdfast.environments.config.snapshot import DEFAULT_TIMEOUT, Entry, ServerUrl
from holdfast.environments.environment import Environment, Status
from holdfast.environments.seams import (
    FailFastFileSystem,
    SharedBackend,
    SharedFileSystem,
    SharedHttpClient,
)
from holdfast.environments.shared import SharedClient
from holdfast.environments.ssh.target import program_target
from holdfast.errors import HoldfastError
from holdfast.process.marked import FirstCommand
from holdfast.protocol.handshake import EnvironmentInfo
from holdfast.telemetry import ClientTelemetry

__all__ = ["RemoteEnvironment"]


class RemoteEnvironment(Environment):
    """
    A server and what can be done there; connects on first use.

    A lost connection is recovered; callers notice a delay. When that fails, what was
    started there is lost, and the next use opens a new session. A command that serves
    on its standard streams is started once and never again.
    """

    is_remote = True

    def __init__(
        self,
        id: str,  # noqa: A002 - what the attribute is called
        target: Target | str | Sequence[str],
        *,
        bearer_token: str | None = None,
        client_name: str = "holdfast",
        connect_timeout: float = DEFAULT_TIMEOUT,
        initialize_timeout: float = DEFAULT_TIMEOUT,
        telemetry: ClientTelemetry | None = None,
    ) -> None:
        """
        Describe it; nothing is connected.

        Args:
            id: Its name.
            target: A URL, the argv of a command that serves on its standard streams, or
                anything that makes connections. A URL of another kind fails on first use.
            bearer_token: For a URL whose server wants one.
            client_name: Told to the server.
            connect_timeout: Seconds, for a URL.
            initialize_timeout: Seconds.
            telemetry: Told of every request, if there is any.
        """
        self.id = id
        if not isinstance(target, Target):
            target = _target(target, bearer_token, connect_timeout)
        self._target = target
        self._shared = SharedClient(
            id,
            target,
            client_name=client_name,
            initialize_timeout=initialize_timeout,
            telemetry=telemetry,
        )
        self.backend = SharedBackend(self._shared)
        self.filesystem = SharedFileSystem(self._shared)
        self.http = SharedHttpClient(self._shared)
        self.fail_fast_filesystem: FileSystem = FailFastFileSystem(self._shared)
        """Its files for one who does not want to wait for a connection."""

    @classmethod
    def of(cls, entry: Entry, *, telemetry: ClientTelemetry | None = None) -> "RemoteEnvironment":
        """The environment that an entry describes."""
        transport = entry.transport
        if isinstance(transport, ServerUrl):
            target = _target(transport.url, transport.bearer_token, transport.connect_timeout)
        else:
            argv = [transport.program, *transport.args]
            target = program_target(argv, env=transport.env, cwd=transport.cwd)
        return cls(
            entry.id, target, initialize_timeout=entry.initialize_timeout, telemetry=telemetry
        )

    @property
    def where(self) -> str:
        """As for every environment."""
        return self._target.label

    def _connection_state(self) -> str:
        return "connected" if self._shared.is_connected else "not connected"

    async def client(self) -> ExecServerClient:
        """
        The client behind the seams, for what they do not offer; connects if need be.

        After a failed recovery it is another one.

        Raises:
            ConnectFailed: With the reason.
            EnvironmentClosed: It was closed.
        """
        return await self._shared.get()

    async def _end_marked(self, mark: str, first: FirstCommand | None) -> None:
        # If it fails, the server does it at the end of the session.
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(END_LIMIT):
                await self._shared.get_connected().end_marked(mark)

    def start_connecting(self) -> None:
        self._shared.start()

    async def wait_ready(self) -> None:
        await (await self._shared.get()).connected()

    async def info(self) -> EnvironmentInfo:
        client = await self._shared.get()
        await client.connected()
        assert client.environment is not None  # told or asked for while it was connected
        return client.environment

    async def status(self) -> Status:
        return await self._shared.status()

    def connection_states(self) -> AsyncIterator[bool]:
        """
        Whether there is a connection: at once, and after each change until it is closed.

        One who falls behind hears of the last change only.
        """
        return self._shared.connection_states()

    async def aclose(self) -> None:
        """Close the connection; the server ends what was started, a command is ended."""
        self.closed = True
        await self._shared.aclose()


def _target(where: str | Sequence[str], bearer_token: str | None, connect_timeout: float) -> Target:
    if isinstance(where, str) and not where.startswith("unix:///"):
        # Whatever else it is; a URL is not looked at before it is used.
        headers = {} if bearer_token is None else {"Authorization": f"Bearer {bearer_token}"}
        return WebSocketTarget(where, headers=headers, timeout=connect_timeout)
    return Target.of(where, timeout=connect_timeout)
