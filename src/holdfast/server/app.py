"""
A server from its start to its end.

`Server` can live in any event loop; `serve` is the whole life of one that has a
process of its own.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

from holdfast.errors import OperationFailed, Overloaded
from holdfast.events import Reason
from holdfast.filesystem.local import LocalFileSystem
from holdfast.local_servers import Reachable, hide
from holdfast.process.io.input_budget import InputBudget, InputTotal
from holdfast.process.observers import ProcessObserver
from holdfast.process.registry import MakeLog, ProcessRegistry, plain_log
from holdfast.protocol.methods import FAMILIES
from holdfast.rpc.router import Router
from holdfast.server.auth import Check
from holdfast.server.connection import ServerConnection
from holdfast.server.discovery import add_discovery_methods
from holdfast.server.environment import add_environment_methods
from holdfast.server.files import add_file_methods
from holdfast.server.http import add_http_methods
from holdfast.server.info import environment_info, login_shell
from holdfast.server.listen import ListenUrl, Pages, listen, parse_listen_url
from holdfast.server.principals import PrincipalLimits
from holdfast.server.process import add_process_methods
from holdfast.server.sessions import Sessions
from holdfast.server.state import DEFAULT_CONCURRENT_REQUESTS, ServerState
from holdfast.telemetry import ServerRecord, Telemetry
from holdfast.transports.base import SIGN_INTERVAL, Receiver, Transport
from holdfast.transports.http_head import Response

if TYPE_CHECKING:
    from holdfast.server.audit import AuditLog
    from holdfast.server.kept import Keeping
    from holdfast.transports.tls import ServerTls

__all__ = ["Server"]

# Seconds to wait for killed processes to be gone; the kernel rarely needs a hundredth.
_END_GRACE = 2.0

# Seconds that clients may take to read the last of what was sent.
_GOODBYE_LIMIT = 0.5


class Server:
    """
    Serves the protocol on any number of transports.

    Use it as a context manager; at its end every process it started is killed.
    """

    def __init__(
        self,
        *,
        concurrent_requests: int = DEFAULT_CONCURRENT_REQUESTS,
        telemetry: Telemetry | None = None,
        resumable: bool = True,
        session_expiry: float = 30.0,
        process_retention: float = 30.0,
        sign_interval: float = SIGN_INTERVAL,
        limits: PrincipalLimits | None = None,
        pages: bool = False,
        observers: Iterable[ProcessObserver] = (),
        make_log: MakeLog = plain_log,
        audit: "AuditLog | None" = None,
    ) -> None:
        """
        Args:
            concurrent_requests: Requests of one connection that may be waiting at once.
            telemetry: Told of connections, requests and processes, if there is any.
            resumable: False if a session ends with its connection.
            session_expiry: Seconds a session is kept without a connection.
            process_retention: Seconds a closed process can still be read.
            sign_interval: Seconds between two signs of life on a connection.
            limits: What one principal may use at a time; anything unless given.
            pages: Answer `/healthz` and `/metrics` as well, which Codex's server does not have.
            observers: Told of the life of every process, whatever its session.
            make_log: Makes the log of each process, such as one that also records.
            audit: Takes a line for each command, file write and network decision. Whoever
                made it closes it.
        """
        self._concurrent_requests = concurrent_requests
        self._telemetry = telemetry
        self._resumable = resumable
        self._session_expiry = session_expiry
        self._process_retention = process_retention
        self._sign_interval = sign_interval
        self._limits = limits
        self._has_pages = pages
        self._router: Router[ServerConnection] = Router(FAMILIES)
        add_environment_methods(self._router)
        add_process_methods(self._router)
        add_file_methods(self._router)
        add_http_methods(self._router)
        add_discovery_methods(self._router)
        self._record: ServerRecord | None = None
        self._observers = list(observers)
        self._make_log = make_log
        self._input_total = InputTotal()
        self._audit = audit
        self._stack = AsyncExitStack()
        self._tasks: asyncio.TaskGroup
        self.state: ServerState

    async def __aenter__(self) -> Self:
        self._shell = login_shell()
        sessions = Sessions(self._make_processes, expiry=self._session_expiry)
        filesystem = LocalFileSystem()
        # After the tasks, which use it to their end.
        self._stack.push_async_callback(filesystem.aclose)
        self.state = ServerState(
            sessions=sessions,
            filesystem=filesystem,
            environment=environment_info(),
            concurrent_requests=self._concurrent_requests,
            telemetry=self._telemetry,
            resumable=self._resumable,
            sign_interval=self._sign_interval,
            limits=self._limits,
            audit=self._audit,
        )
        self._stack.push_async_callback(self.state.close_http)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        if self._telemetry is not None:
            from holdfast.server.recording import ProcessRecorder

            self._record = self._telemetry.server()
            self._observers.append(ProcessRecorder(self._telemetry))
        return self

    async def __aexit__(self, *exc: object) -> None:
        told = [one for one in self.state.connections if one.acknowledges and not one.paused]
        for connection in list(self.state.connections):
            if connection in told:
                connection.stop_serving()
            else:
                connection.connection.transport.abort()
        # They hear of it in the next turn, and let go of their files.
        await asyncio.sleep(0)
        await self.state.sessions.end_all(Reason.SERVER_STOPPING, grace=_END_GRACE)
        await self._say_goodbye(told)
        await self._stack.aclose()
        if self._record is not None:
            self._record.finish()

    async def _say_goodbye(self, told: Iterable[ServerConnection]) -> None:
        """Tell Holdfast clients that there is nothing to come back to; waits a bounded time."""
        left = [one for one in told if one in self.state.connections]
        for connection in left:
            connection.say_goodbye()
        if left:
            closing = [
                asyncio.ensure_future(one.connection.transport.wait_closed()) for one in left
            ]
            _, late = await asyncio.wait(closing, timeout=_GOODBYE_LIMIT)
            for task in late:
                task.cancel()
        # Also those that came meanwhile.
        for connection in list(self.state.connections):
            connection.connection.transport.abort()
        await asyncio.sleep(0)

    def accept(self, transport: Transport) -> Receiver:
        """Serve a connection; hand this to a listener."""
        client = ServerConnection(transport, self.state, self._router, self._tasks)
        self.state.connections.add(client)
        try:
            client.usage.check("connections")
        except Overloaded as refusal:
            # A listener for WebSockets has refused it before; other transports come here.
            client.refuse(refusal)
        client.usage.connections += 1
        client.usage.totals.connections += 1
        return client.connection

    async def listen(
        self,
        where: str | ListenUrl,
        check: Check | None = None,
        *,
        tls: "ServerTls | None" = None,
    ) -> str:
        """
        Accept connections there, until the end.

        Args:
            where: `ws://IP:PORT` (port 0: any that is free) or `unix:///path`.
            check: Who may connect; everybody who can reach it unless given.
            tls: The certificate, for `wss`.

        Returns:
            The URL with the port that was really taken.

        Raises:
            BadListenUrl: It is no such place.
            OSError: The address cannot be had.
        """
        if isinstance(where, str):
            where = parse_listen_url(where)
        principals = self.state.principals
        listening = await listen(
            where,
            self.accept,
            check,
            tls=tls,
            admit=lambda principal: principals[principal].check("connections"),
            refused=self._count_refusal,
            pages=Pages(self._metrics) if self._has_pages else None,
        )
        self._stack.callback(listening.close)
        return listening.url

    def _count_refusal(self) -> None:
        self.state.principals.totals.refusals += 1

    def _metrics(self) -> Response:
        from holdfast.server.metrics import CONTENT_TYPE, metrics_text

        text = metrics_text(self.state.principals)
        return Response(HTTPStatus.OK, text, (("content-type", CONTENT_TYPE),))

    def take_streams(self, keeping: "Keeping", end: Callable[[], None]) -> None:
        """
        Serve connections on streams that other processes hand over, until the end.

        Args:
            keeping: Where they are handed over.
            end: Called when the client needs the server no more.

        Raises:
            OSError: The socket cannot be had.
        """
        from holdfast.server.kept import HandedStreams

        streams = HandedStreams(keeping, accept=self.accept, tasks=self._tasks, end=end)
        self._stack.callback(streams.close)
        self._stack.enter_context(hide(Reachable(secrets=(keeping.folder.path,))))

    @property
    def is_idle(self) -> bool:
        """True without a connection and without a session that could be resumed."""
        return not self.state.connections and not len(self.state.sessions)

    async def ask_to_end(self, grace: float) -> None:
        """Ask all processes to end, and wait `grace` seconds for them at most."""
        processes = self.state.sessions.processes()
        for process in processes:
            with suppress(OperationFailed):
                process.ask_to_end(Reason.SERVER_STOPPING)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                for process in processes:
                    await process.wait_closed()

    def _make_processes(self) -> ProcessRegistry:
        return ProcessRegistry(
            shell=self._shell,
            observers=self._observers,
            make_log=self._make_log,
            retention=self._process_retention,
            input_budget=InputBudget(self._input_total),
        )
