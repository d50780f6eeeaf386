"""
A server as an environment: its processes, files and HTTP calls share one connection
[environments.one-connection].
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from holdfast.base.errors import HoldfastError
from holdfast.client.client import ExecServerClient
from holdfast.client.target import CommandTarget, Target, TargetOptions, target_of_url
from holdfast.engine.process.variable_marks import FirstCommand
from holdfast.environments.commands.command_starter import END_LIMIT
from holdfast.environments.config.snapshot import DEFAULT_TIMEOUT, Entry, ServerUrl
from holdfast.environments.environment import Environment, Status
from holdfast.environments.lazy_client import SharedClient
from holdfast.environments.ssh.ssh_target import program_target
from holdfast.telemetry import ClientTelemetry
from holdfast.wire.protocol.handshake import EnvironmentInfo

__all__ = ["RemoteEnvironment"]


class RemoteEnvironment(Environment):
    """
    A server, connected on first use.

    A lost connection is recovered; callers notice only a delay. If recovery fails, all processes
    there are lost, and the next use opens a new session. A command that serves on its standard
    streams is started only once.
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
        Create the environment without connecting.

        Args:
            id: Its name.
            target: A URL, the argv of a command that serves on its standard streams, or a
                `Target`. A URL with an unknown scheme fails on first use.
            bearer_token: For a URL whose server requires one.
            client_name: Name sent to the server.
            connect_timeout: Seconds, for a URL.
            initialize_timeout: Seconds.
            telemetry: Records requests, if given.
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
        self.backend = self._shared.backend
        self.filesystem = self._shared.files
        self.http = self._shared.http
        self.fail_fast_filesystem = self._shared.fail_fast_files
        """Files for callers that prefer an error to waiting for a connection."""

    @classmethod
    def of(cls, entry: Entry, *, telemetry: ClientTelemetry | None = None) -> "RemoteEnvironment":
        """Return the environment that an entry describes."""
        transport = entry.transport
        if isinstance(transport, ServerUrl):
            target = _target(transport.url, transport.bearer_token, transport.connect_timeout)
        else:
            # Recognizes an ssh that starts `holdfast`, which can be reconnected.
            argv = [transport.program, *transport.args]
            target = program_target(argv, env=transport.env, cwd=transport.cwd)
        return cls(
            entry.id, target, initialize_timeout=entry.initialize_timeout, telemetry=telemetry
        )

    @property
    def where(self) -> str:
        """See `Environment.where`."""
        return self._target.label

    @property
    def is_connected(self) -> bool:
        """See `Environment.is_connected`."""
        return self._shared.is_connected

    def _connection_state(self) -> str:
        return "connected" if self.is_connected else "not connected"

    async def client(self) -> ExecServerClient:
        """
        Return the client, for operations beyond the protocols; connects if necessary.

        After a failed recovery, this is another object.

        Raises:
            ConnectFailed: The connection failed; the message says why.
            EnvironmentClosed: It was closed.
        """
        return await self._shared.get()

    async def _end_marked(self, mark: str, first: FirstCommand | None) -> None:
        # If this fails, the server kills them at the end of the session.
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(END_LIMIT):
                await self._shared.get_connected().end_marked(mark)

    def start_connecting(self) -> None:
        self._shared.start()

    async def wait_ready(self) -> None:
        # The client may exist and be recovering.
        await (await self._shared.get()).wait_connected()

    async def info(self) -> EnvironmentInfo:
        client = await self._shared.get()
        await client.wait_connected()
        return client.environment

    async def _session_info(self) -> EnvironmentInfo:
        # Unlike `info`, does not wait once there was a session: a caller that is about to use the
        # server gets its error from that use.
        return self._shared.description or await self.info()

    async def status(self) -> Status:
        return await self._shared.status()

    def connection_states(self) -> AsyncIterator[bool]:
        """
        Yield the connection state, now and after each change, until it is closed.

        A consumer that falls behind gets only the last change.
        """
        return self._shared.connection_states()

    async def aclose(self) -> None:
        """Close the connection; the server ends all processes, and a serving command ends."""
        self.closed = True
        await self._shared.aclose()


def _target(where: str | Sequence[str], bearer_token: str | None, connect_timeout: float) -> Target:
    if isinstance(where, str):
        options = TargetOptions(bearer_token=bearer_token, timeout=connect_timeout)
        return target_of_url(where, options)
    return CommandTarget(where)
