"""
The exec-server, for use in any event loop.

`server.operate.run_server` runs one as a separate process, with signals and options.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

from holdfast.backends import ExecBackend, FileSystem, HttpClient
from holdfast.base.errors import Overloaded
from holdfast.base.late_import import late_module
from holdfast.base.local_servers import Reachable, hide
from holdfast.base.tasks import OwnedTasks
from holdfast.engine.files.threads import FileThreads
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.engine.process.process_table import (
    RETENTION,
    MakeLog,
    OpensSessions,
    ProcessTable,
    TableSettings,
    plain_log,
)
from holdfast.events import Reason
from holdfast.server.handlers.discovery_handlers import add_discovery_methods
from holdfast.server.handlers.environment_handlers import add_environment_methods
from holdfast.server.handlers.file_handlers import add_file_methods
from holdfast.server.handlers.http_handlers import add_http_methods
from holdfast.server.handlers.process_handlers import add_process_methods
from holdfast.server.info import environment_info, login_shell, served_capabilities
from holdfast.server.listen import ListenUrl, listen, parse_listen_url
from holdfast.server.local_engines import LazyHttpClient, LocalSessions, local_files
from holdfast.server.operate.auth import REVOKED, Check, log_revoked
from holdfast.server.operate.process_telemetry import ProcessRecorder
from holdfast.server.operate.records import Records, RefusalRecord, ReloadRecord
from holdfast.server.pages import served_pages
from holdfast.server.principals import PrincipalLimits
from holdfast.server.server_connection import ServerConnection
from holdfast.server.sessions import EXPIRY, Sessions
from holdfast.server.state import DEFAULT_CONCURRENT_REQUESTS, ServerState
from holdfast.telemetry import ServerRecord, Telemetry
from holdfast.wire.protocol.handshake import EnvironmentInfo
from holdfast.wire.rpc.router import Router
from holdfast.wire.transports.transport import SIGN_INTERVAL, Credential, Receiver, Transport

if TYPE_CHECKING:
    from holdfast.server import backend_processes
    from holdfast.server.handed_streams import Keeping
    from holdfast.server.operate.audit import AuditLog
    from holdfast.server.operate.reloading import Reload
    from holdfast.wire.transports.tls import ServerTls
else:
    # Not imported by a server that uses the local engine.
    backend_processes = late_module("holdfast.server.backend_processes")

__all__ = ["Server"]

# Seconds to wait for killed processes to end; the kernel rarely needs more than 10 ms.
_END_GRACE = 2.0

# Seconds for clients to read the last messages.
_GOODBYE_LIMIT = 0.5


# Wrong token, browser, principal at its limit.
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)


class Server:
    """
    A server of the exec-server protocol, on any number of transports.

    Use it as a context manager. Its exit kills all processes it started.

    It serves implementations of `ExecBackend`, `FileSystem` and `HttpClient`, by default those of
    this machine.
    """

    def __init__(
        self,
        *,
        processes: ExecBackend | OpensSessions | None = None,
        files: FileSystem | None = None,
        http: HttpClient | None = None,
        environment: EnvironmentInfo | None = None,
        concurrent_requests: int = DEFAULT_CONCURRENT_REQUESTS,
        telemetry: Telemetry | None = None,
        resumable: bool = True,
        session_expiry: float = EXPIRY,
        process_retention: float = RETENTION,
        sign_interval: float = SIGN_INTERVAL,
        limits: PrincipalLimits | None = None,
        pages: bool = False,
        observers: Iterable[ProcessObserver] = (),
        make_log: MakeLog = plain_log,
        audit: "AuditLog | None" = None,
    ) -> None:
        """
        Args:
            processes: Starts the processes of all sessions, by default on this machine. The caller
                closes it after the server, like the next two.
            files: Files for clients, by default those of this machine.
            http: Makes the HTTP calls of clients, by default from this machine.
            environment: Description for clients, by default of this machine and its features.
            concurrent_requests: Maximum number of waiting requests per connection.
            telemetry: Records connections, requests and processes.
            resumable: False if sessions cannot be resumed after their connection ends.
            session_expiry: Seconds a session is kept without a connection.
            process_retention: Seconds during which a closed process can be read.
            sign_interval: Seconds between signs of life on a connection.
            limits: Limits per principal; none by default.
            pages: Serve `/healthz` and `/metrics`, which are not part of the protocol.
            observers: Observers of the processes of all sessions.
            make_log: Creates the log of each process.
            audit: Log of commands, file writes and network decisions; the caller closes it.
        """
        self._processes = processes
        self._files = files
        self._http = http
        self._environment = environment
        self._concurrent_requests = concurrent_requests
        self._telemetry = telemetry
        self._resumable = resumable
        self._session_expiry = session_expiry
        self._process_retention = process_retention
        self._sign_interval = sign_interval
        self._limits = limits
        self._has_pages = pages
        self._router = _all_methods()
        self._record: ServerRecord | None = None
        self._observers = list(observers)
        self._make_log = make_log
        self._audit = audit
        self._records = Records(audit)
        self._stack = AsyncExitStack()
        # True once the last connections are being ended; a later one ends at once.
        self._ended = False
        self._tasks: asyncio.TaskGroup
        self.state: ServerState

    async def __aenter__(self) -> Self:
        self._open_session = self._served_processes()
        sessions = Sessions(
            self._make_processes, expiry=self._session_expiry, records=self._records
        )
        self.state = ServerState(
            sessions=sessions,
            threads=self._threads(),
            filesystem=self._served_files(),
            http=self._served_http(),
            environment=self._served_environment(),
            concurrent_requests=self._concurrent_requests,
            telemetry=self._telemetry,
            resumable=self._resumable,
            sign_interval=self._sign_interval,
            limits=self._limits,
            records=self._records,
        )
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        if self._telemetry is not None:
            self._record = self._telemetry.server()
            self._observers.append(ProcessRecorder(self._telemetry))
        return self

    # Objects created here are pushed to the stack before the tasks, and so closed after them: the
    # tasks use them until they end.

    def _served_processes(self) -> Callable[[TableSettings], ProcessTable]:
        if self._processes is None:
            return LocalSessions(login_shell()).open_session
        if isinstance(self._processes, OpensSessions):
            return self._processes.open_session
        # Their end only stops reading the events; the backend belongs to the caller.
        followers = OwnedTasks()
        self._stack.push_async_callback(followers.aclose)
        return partial(backend_processes.BackendProcesses, self._processes, followers)

    def _threads(self) -> FileThreads:
        threads = FileThreads()
        self._stack.push_async_callback(threads.aclose)
        return threads

    def _served_files(self) -> FileSystem:
        if self._files is not None:
            return self._files
        files = local_files()
        self._stack.push_async_callback(files.aclose)
        return files

    def _served_http(self) -> HttpClient:
        if self._http is not None:
            return self._http
        http = LazyHttpClient()
        self._stack.push_async_callback(http.aclose)
        return http

    def _served_environment(self) -> EnvironmentInfo:
        if self._environment is not None:
            return self._environment
        return environment_info(capabilities=served_capabilities(self._processes, self._files))

    async def __aexit__(self, *exc: object) -> None:
        # Only Holdfast clients know the farewell, and only if they are reading do they get it in
        # time.
        farewell = [one for one in self.state.connections if one.acknowledges and not one.paused]
        for connection in list(self.state.connections):
            if connection in farewell:
                connection.stop_serving()
            else:
                connection.connection.transport.abort()
        # Aborted connections get `lost` in the next iteration of the loop, and close their files.
        await asyncio.sleep(0)
        await self.state.sessions.end_all(Reason.SERVER_STOPPING, grace=_END_GRACE)
        # After the processes, so that clients get all exits first.
        await self._say_goodbye(farewell)
        await self._stack.aclose()
        if self._record is not None:
            self._record.finish()
        if self._audit is not None:
            # The event loop may end before it wakes the writer.
            self._audit.flush()

    async def _say_goodbye(self, farewell: Iterable[ServerConnection]) -> None:
        """Notify Holdfast clients that the server ends, so that they do not try to resume."""
        left = [one for one in farewell if one in self.state.connections]
        for connection in left:
            connection.say_goodbye()
        if left:
            closing = [
                asyncio.ensure_future(one.connection.transport.wait_closed()) for one in left
            ]
            _, late = await asyncio.wait(closing, timeout=_GOODBYE_LIMIT)
            for task in late:
                task.cancel()
        # All remaining connections, including those accepted meanwhile.
        self._ended = True
        for connection in list(self.state.connections):
            connection.connection.transport.abort()
        await asyncio.sleep(0)

    def accept(self, transport: Transport) -> Receiver:
        """Serve a connection; pass this method to a listener."""
        client = ServerConnection(transport, self.state, self._router, self._tasks)
        # Before the check of the limit: `lost` of a refused connection expects it here.
        self.state.connections.add(client)
        try:
            self.state.admit(client.usage)
            self.state.newcomers[client] = None
        except Overloaded as refusal:
            # A WebSocket listener has checked this before the upgrade; other transports cannot.
            client.refuse(refusal)
        client.usage.connections += 1
        client.usage.totals.connections += 1
        if self._ended:
            # Accepted by its listener before the end: nothing would end the commands it starts.
            client.stop_serving()
            asyncio.get_running_loop().call_soon(transport.abort)
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
            where: `ws://IP:PORT` (port 0 for any free one) or `unix:///path`.
            check: Checks tokens; by default any client that reaches the address may connect.
            tls: Certificate for `wss`.

        Returns:
            The URL, with the port that was bound.

        Raises:
            BadListenUrl: The URL is invalid.
            OSError: The address cannot be bound.
        """
        if isinstance(where, str):
            where = parse_listen_url(where)
        principals = self.state.principals
        listening = await listen(
            where,
            self.accept,
            check,
            tls=tls,
            admit=lambda principal: self.state.admit(principals[principal]),
            refused=self._note_refusal,
            pages=served_pages(self.state, every=self._has_pages),
        )
        self._stack.callback(listening.close)
        return listening.url

    def revoke(self, admits: Callable[[Credential], bool]) -> None:
        """
        End the connections and sessions of clients that are no longer admitted.

        Args:
            admits: Returns False for a credential that is no longer valid.
        """
        # Sessions first: ending a connection would detach its session and keep it for a resume.
        sessions = Counter(self.state.sessions.end_revoked(admits))
        gone = [one for one in self.state.connections if not admits(one.credential)]
        for connection in gone:
            connection.abandon(REVOKED)
        connections = Counter(connection.credential for connection in gone)
        for credential in sessions | connections:
            log_revoked(
                credential, connections=connections[credential], sessions=sessions[credential]
            )

    def _note_refusal(self, status: HTTPStatus, address: str, reason: str) -> None:
        if status is HTTPStatus.UNAUTHORIZED:
            self.state.principals.totals.refusals += 1
        # Others are mistakes of a client, which are only logged.
        if status in _REFUSALS and self._audit is not None:
            self._audit.write_refusal(
                RefusalRecord(address=address, status=status.value, reason=reason)
            )

    def follow(self, reload: "Reload") -> None:
        """Apply reloaded settings, and record the changes."""
        if reload.settings is not None:
            self.state.principals.change_limits(reload.settings.limits)
        self._records.add(
            ReloadRecord(changed=reload.changed, restart=reload.restart, problems=reload.problems)
        )

    def take_streams(self, keeping: "Keeping", end: Callable[[], None]) -> None:
        """
        Serve connections on streams that other processes pass to this one.

        Args:
            keeping: Directory of the socket that takes them, and its token.
            end: Called when the client no longer needs the server.

        Raises:
            OSError: The socket cannot be created.
        """
        # Imported late: takes 7 ms, and only servers behind ssh need it.
        from holdfast.server.handed_streams import HandedStreams

        streams = HandedStreams(keeping, accept=self.accept, tasks=self._tasks, end=end)
        self._stack.callback(streams.close)
        # Hidden from sandboxed commands, which could run anything through the socket.
        self._stack.enter_context(hide(Reachable(secrets=(keeping.folder.path,))))

    @property
    def is_idle(self) -> bool:
        """True without connections and resumable sessions."""
        return not self.state.connections and not len(self.state.sessions)

    async def drain(self, limit: float) -> None:
        """
        Refuse new work, send SIGTERM to all processes, and wait for them to end.

        New work is a command, an HTTP request or a session. Clients keep their connections: until
        the end they receive output and exits, may resume a session, and read and write files.
        Processes that still run after `limit` seconds end with the server.
        """
        self.state.draining = True
        tasks = OwnedTasks()
        ending = _EndingObserver(tasks)
        for session in self.state.sessions:
            for process in session.processes:
                ending.ask(process)
            # Starts in progress continue: their commands may already be running.
            session.processes.add_observer(ending)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await tasks.join()
        finally:
            await tasks.aclose()

    def _make_processes(self) -> ProcessTable:
        settings = TableSettings(self._observers, self._make_log, self._process_retention)
        return self._open_session(settings)


class _EndingObserver(ProcessObserver):
    """Asks processes to end, including those that start from now on."""

    def __init__(self, tasks: OwnedTasks) -> None:
        self._tasks = tasks

    def started(self, start: ProcessStart, process: LoggedProcess) -> None:
        self.ask(process)

    def ask(self, process: LoggedProcess) -> None:
        """Send SIGTERM, and wait for the end in a task."""
        self._tasks.start(_end(process))


async def _end(process: LoggedProcess) -> None:
    # A process of another user, such as `sudo`, cannot be signaled, and a backend may fail in any
    # way.
    with suppress(Exception):
        await process.ask_to_end(Reason.SERVER_STOPPING)
    await process.wait()


def _all_methods() -> Router[ServerConnection]:
    """Return a router with all methods of the protocol."""
    router: Router[ServerConnection] = Router()
    add_environment_methods(router)
    add_process_methods(router)
    add_file_methods(router)
    add_http_methods(router)
    add_discovery_methods(router)
    return router
