"""A client of one server: its processes, files and HTTP calls, for programs [client.*]."""

from collections.abc import Callable, Sequence
from typing import Self

from holdfast.client.client_session import ClientSession
from holdfast.client.remote_files import RemoteFileSystem
from holdfast.client.remote_http import RemoteHttpClient
from holdfast.client.remote_process import RemoteProcess
from holdfast.client.target import Target
from holdfast.telemetry import ClientTelemetry
from holdfast.wire.protocol.handshake import Capabilities, EnvironmentInfo, EnvironmentStatus
from holdfast.wire.protocol.process import ProcessSummary, StartParams
from holdfast.wire.transports.transport import SIGN_INTERVAL

__all__ = ["ExecServerClient"]


class ExecServerClient:
    """
    Processes on a server, behind the seam `ExecBackend`; its files and HTTP calls are members.

    Create one with `connect`. It is a context manager; at its end the connection is closed, and the
    server ends the session's processes 80 seconds later unless they were terminated. A lost
    connection is re-established, and callers notice a delay. They get `ConnectionLost` only if that
    fails.
    """

    def __init__(self, session: ClientSession) -> None:
        """Take an open session; programs call `connect`."""
        self._session = session

    @classmethod
    async def connect(
        cls,
        target: str | Sequence[str] | Target,
        *,
        bearer_token: str | None = None,
        client_name: str = "holdfast",
        connect_timeout: float = 10.0,
        initialize_timeout: float = 10.0,
        sign_interval: float = SIGN_INTERVAL,
        telemetry: ClientTelemetry | None = None,
    ) -> Self:
        """
        Connect and open a session.

        Args:
            target: `ws://…`, `wss://…`, `unix:///path`, or the argv of a command
                that serves on its standard streams.
            bearer_token: For a server that requires one.
            client_name: Sent to the server.
            connect_timeout: Seconds.
            initialize_timeout: Seconds.
            sign_interval: Seconds between two heartbeats on a connection. One that is silent for
                twice as long is dropped and re-established. On a unix socket and on standard
                streams a Holdfast server needs the same value.
            telemetry: Recorder of requests, if there is one.

        Raises:
            ConnectFailed: With the reason.
            RemoteError: The server refused.
        """
        if not isinstance(target, Target):
            target = Target.of(
                target,
                bearer_token=bearer_token,
                timeout=connect_timeout,
                ping_interval=sign_interval,
            )
        session = ClientSession(
            target,
            client_name=client_name,
            initialize_timeout=initialize_timeout,
            sign_interval=sign_interval,
            telemetry=telemetry,
        )
        # It closes what it has opened if it fails, so there is nothing to undo here.
        await session.open()
        return cls(session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; unanswered calls fail."""
        await self._session.aclose()

    # -- processes, files, HTTP calls

    async def start(self, params: StartParams) -> RemoteProcess:
        """
        Start a process.

        If the connection breaks meanwhile, the client asks the resumed server by the id whether the
        process was started: it is started exactly once. A cancelled caller leaves nothing running.

        Raises:
            InvalidParams: The arguments are invalid.
            DuplicateProcess: The id is taken.
            SpawnFailed: The system there refused.
            Unsupported: The server lacks a required extension.
            TooManyCalls: Too many calls are already unanswered.
            RemoteProtocolError: The start was interrupted and the server cannot report its outcome.
            ConnectionLost: The server, or the session on it, is lost for good.
        """
        return await self._session.processes.start(params)

    async def list_processes(self) -> list[ProcessSummary]:
        """
        Return the processes of this session.

        Raises:
            Unsupported: It is not a Holdfast server.
        """
        return await self._session.processes.list()

    async def end_marked(self, mark: str) -> None:
        """Kill what commands with a mark left behind, if the server can."""
        await self._session.processes.end_marked(mark)

    @property
    def files(self) -> RemoteFileSystem:
        """The files of that machine."""
        return self._session.files

    @property
    def http(self) -> RemoteHttpClient:
        """HTTP calls made by that machine."""
        return self._session.http

    # -- the server

    @property
    def environment(self) -> EnvironmentInfo:
        """The server's description of its machine: shell, directory, capabilities."""
        environment = self._session.environment
        # `ClientSession.open` has set it.
        assert environment is not None
        return environment

    @property
    def capabilities(self) -> Capabilities:
        """The extensions that the server has announced."""
        return self._session.capabilities

    async def info(self) -> EnvironmentInfo:
        """Ask the server about its machine."""
        return await self._session.info()

    async def status(self) -> EnvironmentStatus:
        """Ask whether it is ready; does not wait for a connection that is being recovered."""
        return await self._session.status()

    # -- the connection

    @property
    def session_id(self) -> str | None:
        """The id of the session on the server."""
        return self._session.session_id

    @property
    def target(self) -> Target:
        """The server that it is connected to."""
        return self._session.target

    @property
    def is_connected(self) -> bool:
        """True if there is a connection now, so that a call need not wait for recovery."""
        return self._session.is_connected

    @property
    def recovers(self) -> bool:
        """True if a lost connection can be re-established with the same session."""
        return self._session.recovers

    @property
    def lost_for_good(self) -> bool:
        """True if the client was closed or recovery has failed: no connection will follow."""
        return self._session.lost_for_good

    async def wait_connected(self) -> None:
        """
        Wait until there is a connection; returns at once if there is one.

        Raises:
            ConnectionLost: Recovery failed, or the client is closed.
        """
        await self._session.connected()

    @property
    def connection_changed(self) -> Callable[[], None]:
        """Function called when the connection is lost and when it is back; settable."""
        return self._session.connection_changed

    @connection_changed.setter
    def connection_changed(self, call: Callable[[], None]) -> None:
        self._session.connection_changed = call
