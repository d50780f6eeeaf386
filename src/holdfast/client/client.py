"""
A client of one server: a session that outlives its connections [client.*].

When the connection breaks, the client connects anew, resumes its session and fetches the events
it missed. Callers notice a delay; they get `ConnectionLost` only when recovery fails.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self, TypeVar

from msgspec import UNSET

from holdfast.client.client_connection import Link
from holdfast.client.error_mapping import start_refusals
from holdfast.client.filesystem import RemoteFileSystem
from holdfast.client.http import RemoteHttpClient
from holdfast.client.process import RemoteProcess
from holdfast.client.recovery import recover
from holdfast.client.target import Target
from holdfast.errors import (
    ConnectFailed,
    ConnectionLost,
    DuplicateProcess,
    HoldfastError,
    RemoteProtocolError,
    Unsupported,
)
from holdfast.events import LogEntry
from holdfast.protocol import codes
from holdfast.protocol.base import Empty, Method
from holdfast.protocol.handshake import (
    Capabilities,
    EnvironmentInfo,
    EnvironmentStatus,
    InitializeResponse,
)
from holdfast.protocol.methods import (
    ENVIRONMENT_INFO,
    ENVIRONMENT_STATUS,
    PROCESS_ACK,
    PROCESS_END_MARKED,
    PROCESS_LIST,
    PROCESS_START,
    PROCESS_TERMINATE,
)
from holdfast.protocol.process import (
    AckParams,
    ClosedEvent,
    EndMarkedParams,
    ExitedEvent,
    ProcessSummary,
    StartParams,
    StreamEndedEvent,
    TerminateParams,
)
from holdfast.tasks import OwnedTasks
from holdfast.telemetry import ClientTelemetry
from holdfast.transports.base import SIGN_INTERVAL, Receiver, Transport

__all__ = ["ExecServerClient"]

logger = logging.getLogger(__name__)

P = TypeVar("P")
R = TypeVar("R")

# Seconds for `environment/info` and `environment/status`. Other calls have no deadline of
# their own: how long they take depends on the command or the file they are about.
_INFO_TIMEOUT = 30.0
_STATUS_TIMEOUT = 10.0

# Seconds a server may take to read what was sent before the end, which is then cut short.
_CLOSE_LIMIT = 1.0


class ExecServerClient:
    """
    Processes on a server, behind the seam `ExecBackend`; its files and HTTP calls are members.

    Make one with `connect`. It is a context manager; at its end the connection is
    closed, and the server ends the session's processes 30 seconds later unless they
    were terminated.
    """

    def __init__(
        self,
        target: Target,
        *,
        client_name: str,
        initialize_timeout: float,
        sign_interval: float = SIGN_INTERVAL,
        telemetry: ClientTelemetry | None = None,
    ) -> None:
        self.environment: EnvironmentInfo | None = None
        """
        The server's description of its machine: shell, directory, capabilities; None before the
        handshake.
        """
        # Known after the handshake; `recover` resumes this session.
        self.session_id: str | None = None
        self.files = RemoteFileSystem(self)
        """The files of that machine."""
        self.http = RemoteHttpClient(self)
        """HTTP calls from that machine."""
        self.connection_changed: Callable[[], None] = _nothing
        """Called when the connection is lost, and when it is back; see `is_connected`."""
        self.target = target
        self.client_name = client_name
        self.initialize_timeout = initialize_timeout
        self._sign_interval = sign_interval
        self._telemetry = telemetry
        self._tasks = OwnedTasks()
        self._processes: dict[str, RemoteProcess] = {}
        # Starts that were given up, by id, until the server has ended what may have come of them.
        self._called_off: dict[str, asyncio.Task[None]] = {}
        # The connection in use. While it is lost, the future that tells how recovery ended.
        self._link: Link | None = None
        self._recovering: asyncio.Future[None] | None = None
        self._failure: ConnectionLost | None = None
        self._closing = False
        # Set by `server/stopping`: the server ends its sessions, so there is nothing to resume.
        self._server_stopping = False
        # Readers of output that cannot keep up, whatever the connection.
        self._slow: set[object] = set()
        self.last_place = asyncio.Lock()
        """Lock for a cleanup call of the client itself, which uses the one reserved call slot."""

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
            bearer_token: For a server that wants one.
            client_name: Told to the server.
            connect_timeout: Seconds.
            initialize_timeout: Seconds.
            sign_interval: Seconds between two signs of life on a connection. One that is
                silent for twice as long is given up and made anew. On a unix socket and on
                standard streams a Holdfast server has to be told the same.
            telemetry: Told of every request, if there is any.

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
        client = cls(
            target,
            client_name=client_name,
            initialize_timeout=initialize_timeout,
            sign_interval=sign_interval,
            telemetry=telemetry,
        )
        try:
            link, answer = await client.open_link(None)
            client.session_id = answer.session_id
            client.environment = answer.environment_info
            client._install(link)
            # An older server does not send the description in its answer to `initialize`.
            if client.environment is None:
                client.environment = await client.info()
        except BaseException:
            await client.aclose()
            raise
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; what waits for an answer fails."""
        if self._closing:
            return
        self._closing = True
        try:
            # What was begun in this turn still goes out: it may end a start that was given up.
            await asyncio.sleep(0)
            await self._tasks.aclose()
        finally:
            # In `finally`, because a cancelled caller has no second attempt to close.
            transport = None if self._link is None else self._link.connection.transport
            if self._link is not None:
                self._link.connection.close()
            # What was lost before stays lost for its own reason.
            error = self._failure or ConnectionLost("exec-server transport closed")
            self._give_up(error)
            if self._recovering is not None and not self._recovering.done():
                # `_recover` was cancelled above, so nobody else completes this future.
                self._recovering.set_exception(error)
            try:
                if transport is not None:
                    await _wait_closed(transport)
            finally:
                await self.target.aclose()

    # -- what callers want

    async def start(self, params: StartParams) -> RemoteProcess:
        """
        Start a process.

        When the connection breaks meanwhile, the resumed server is asked by the id whether it
        ran: it is started exactly once. A caller that is cancelled leaves nothing running.

        Raises:
            InvalidParams: The arguments are wrong in themselves.
            DuplicateProcess: The id is taken.
            SpawnFailed: The system said no there.
            Unsupported: The server lacks an extension that was asked for.
            TooManyCalls: It waits for too many answers already.
            RemoteProtocolError: It was cut off, and the server cannot say what came of it.
            ConnectionLost: The server, or the session on it, is lost for good.
        """
        await self.connected()
        process_id = params.process_id
        # A loop, since another start of the same id may be called off meanwhile.
        while (ending := self._called_off.get(process_id)) is not None:
            # What ends a start that was given up must not end its successor.
            await asyncio.wait([ending])
        if process_id in self._processes:
            raise DuplicateProcess(
                process_id,
                f"exec-server protocol error: session already registered for process {process_id}",
            )
        self._refuse_unsupported(params)
        # Its first events may come before the answer.
        process = self._processes[process_id] = RemoteProcess(self, params)
        try:
            with start_refusals(process_id, params.argv[0] if params.argv else ""):
                await self._start(process, params)
        except BaseException as error:
            self.forget(process)
            process.give_up()
            if isinstance(error, asyncio.CancelledError) and not self._closing:
                # Also if it never ran: whether it did can only be known on the other side.
                self._call_off(process_id)
            raise
        process.hand_over()
        return process

    def _call_off(self, process_id: str) -> None:
        """End what may have come of a start that nobody waits for any more."""
        # Part of it may have left the group, or it may have exited and left something in it.
        everything = self.capabilities.process_terminate_left
        params = TerminateParams(process_id=process_id, tree=everything, left=everything)
        ending = self._tasks.start(self.terminate_quietly(params))
        self._called_off[process_id] = ending
        ending.add_done_callback(lambda task: self._called_off.pop(process_id))

    async def _start(self, process: RemoteProcess, params: StartParams) -> None:
        while True:
            link = await self.connected()
            if process.is_started:
                # An earlier round started the process; recovery found it on the server.
                return
            if process.failure is not None:
                raise process.failure
            try:
                answer = await link.call(PROCESS_START, params)
            except ConnectionLost:
                if self.lost_for_good:
                    raise
                # The next round waits for the connection, and for what the server knows.
            else:
                process.started(answer)
                return

    def _refuse_unsupported(self, params: StartParams) -> None:
        """Refuse what a server would ignore without a word."""
        has = self.capabilities
        lacking = ""
        # A Codex server ignores unknown members, so a limit would be dropped without an error.
        if params.terminal_size is not None and not has.process_resize:
            lacking = "size a terminal"
        elif params.limits is not None and not has.process_limits:
            lacking = "limit a process"
        elif params.unset is not UNSET and params.unset and not has.process_unset:
            lacking = "unset variables by name"
        if lacking:
            raise Unsupported(codes.METHOD_NOT_FOUND, f"exec-server cannot {lacking}")

    @property
    def capabilities(self) -> Capabilities:
        """The extensions that the server has announced."""
        return Capabilities() if self.environment is None else self.environment.capabilities

    @property
    def can_hold(self) -> bool:
        """True if the server can hold one process without the others."""
        return self.capabilities.process_hold

    def acknowledge(self, process_id: str, seq: int) -> bool:
        """Tell the server what has arrived; False if there is no connection to do so."""
        link = self._link
        if link is None:
            return False
        # A Codex server does not know the notification, and has no use for it.
        if self.capabilities.process_ack:
            link.connection.notify(PROCESS_ACK, AckParams(process_id=process_id, seq=seq))
        return True

    def log_lost_write(self, process_id: str, error: Exception) -> None:
        """Log that input which was accepted while the line was down did not arrive."""
        if not self._closing:
            logger.info("input of process %s was not delivered: %s", process_id, error)

    async def info(self) -> EnvironmentInfo:
        """Ask the server about its machine."""
        with _deadline(ENVIRONMENT_INFO, _INFO_TIMEOUT):
            async with asyncio.timeout(_INFO_TIMEOUT):
                return await self.call(ENVIRONMENT_INFO, Empty())

    async def status(self) -> EnvironmentStatus:
        """Ask whether it is ready; does not wait for a connection that is being recovered."""
        link = self._link
        if link is None:
            # A status is wanted now, so recovery is not waited for.
            raise self._failure or ConnectionLost("exec-server environment is recovering")
        with _deadline(ENVIRONMENT_STATUS, _STATUS_TIMEOUT):
            async with asyncio.timeout(_STATUS_TIMEOUT):
                return await link.call(ENVIRONMENT_STATUS, Empty())

    async def list_processes(self) -> list[ProcessSummary]:
        """
        The processes of this session.

        Raises:
            Unsupported: It is not a Holdfast server.
        """
        return (await self.call_again(PROCESS_LIST, Empty())).processes

    async def end_marked(self, mark: str) -> None:
        """Kill what commands with a mark left behind, if the server can."""
        if self.capabilities.process_end_marked:
            await self.call_again(PROCESS_END_MARKED, EndMarkedParams(mark=mark), cleanup=True)

    async def call(self, method: Method[P, R], params: P) -> R:
        """Ask once; a connection that breaks meanwhile is an error."""
        return await (await self.connected()).call(method, params)

    async def call_again(
        self, method: Method[P, R], params: P, *, cleanup: bool = False, patience: float = 0.0
    ) -> R:
        """Ask, and ask again after each lost connection; for calls that may be repeated."""
        while True:
            link = await self.connected()
            try:
                return await link.call(method, params, cleanup=cleanup, patience=patience)
            except ConnectionLost:
                if self.lost_for_good:
                    raise
                # The next round waits for the connection to be back, or to fail for good.

    def hold_receiving(self, holder: object) -> None:
        """
        Stop reading the connection until `release_receiving`: `holder`, a reader, has fallen
        behind.
        """
        self._slow.add(holder)
        if self._link is not None:
            self._link.hold_receiving(holder)

    def release_receiving(self, holder: object) -> None:
        """Take back `hold_receiving` for this holder."""
        self._slow.discard(holder)
        if self._link is not None:
            self._link.release_receiving(holder)

    def start_task(self, work: Coroutine[object, object, None]) -> None:
        """Do something in the background, at most until the client is closed."""
        # After the close nothing may be started that would outlive it.
        if self._closing:
            work.close()
        else:
            self._tasks.start(work)

    def forget(self, process: RemoteProcess) -> None:
        """Drop a process that has ended or failed; its later events are ignored."""
        # A new process may have taken the same id in the meantime.
        if self._processes.get(process.process_id) is process:
            del self._processes[process.process_id]

    @property
    def is_connected(self) -> bool:
        """True if there is a connection now, so that a call need not wait for recovery."""
        return self._link is not None

    @property
    def recovers(self) -> bool:
        """True if a lost connection can be made anew, with the same session."""
        return self.target.can_reconnect and not (self._server_stopping or self.session_id is None)

    @property
    def lost_for_good(self) -> bool:
        """True if the client was closed or recovery has failed: no connection will follow."""
        return self._closing or self._failure is not None

    async def connected(self) -> Link:
        """
        Return the connection; while it is being recovered, wait for it.

        Raises:
            ConnectionLost: Recovery failed, or the client is closed.
        """
        while self._link is None:
            if self._failure is not None:
                # Told to many: without this its traceback would grow with each of them.
                raise self._failure.with_traceback(None)
            if self._closing or self._recovering is None:
                raise ConnectionLost("exec-server transport closed")
            await asyncio.shield(self._recovering)
        return self._link

    # -- LinkOwner

    def deliver(self, process_id: str, event: LogEntry) -> None:
        process = self._processes.get(process_id)
        if process is not None:
            try:
                process.deliver(event)
            except RemoteProtocolError as error:
                self._fail_process(process, error)

    def deliver_exit(self, event: ExitedEvent) -> None:
        process = self._processes.get(event.process_id)
        if process is not None:
            try:
                process.deliver_exit(event)
            except RemoteProtocolError as error:
                self._fail_process(process, error)

    def deliver_close(self, event: ClosedEvent) -> None:
        process = self._processes.get(event.process_id)
        if process is not None:
            try:
                process.deliver_close(event)
            except RemoteProtocolError as error:
                self._fail_process(process, error)

    def deliver_stream_end(self, event: StreamEndedEvent) -> None:
        process = self._processes.get(event.process_id)
        if process is not None:
            process.deliver_stream_end(event)

    def deliver_body(self, params: object) -> None:
        self.http.deliver(params)

    def missing_changed(self, watch_id: int) -> None:
        self.files.missing_changed(watch_id)

    def server_stopping(self) -> None:
        self._server_stopping = True

    def link_lost(self, link: Link, reason: str) -> None:
        if self._link is not link or self._closing:
            # A connection that was never installed; the code that opened it reports the
            # failure.
            return
        reason = "the server was stopped" if self._server_stopping else reason
        # Cleared before anybody is notified, so that a call made from a callback waits for
        # recovery.
        self._link = None
        self.connection_changed()
        self._end_streams()
        for process in self.open_processes:
            process.line_lost()
        self._recovering = asyncio.get_running_loop().create_future()
        # Nobody may be waiting for it, and that is no mistake.
        self._recovering.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._tasks.start(self._recover(reason))

    # -- connections

    async def open_link(self, resume: str | None) -> tuple[Link, InitializeResponse]:
        """Open a connection and complete the handshake on it; close it again if that fails."""
        link = Link(self, self._telemetry)

        def accept(transport: Transport) -> Receiver:
            return link.attach(transport)

        transport = await self.target.open(accept)
        try:
            answer = await link.initialize(self.client_name, resume, self.initialize_timeout)
        except ConnectionLost as error:
            # A half-open connection would occupy the session on the server.
            transport.abort()
            # Why a command such as ssh gave up is in what it wrote, and nowhere else.
            words = await self.target.last_words()
            if words is None:
                raise
            raise ConnectFailed(f"{error}: {words}") from error
        except BaseException:
            transport.abort()
            raise
        info = answer.environment_info or self.environment
        # `process/ack` is announced by Holdfast servers only, and those send signs of life as
        # well.
        if info is not None and info.capabilities.process_ack:
            transport.expect_life(self._sign_interval)
        return link, answer

    @property
    def open_processes(self) -> list[RemoteProcess]:
        """The processes whose `process/closed` has not arrived."""
        return list(self._processes.values())

    async def _recover(self, reason: str) -> None:
        # `link_lost` has set it before starting this task.
        assert self._recovering is not None
        recovering = self._recovering
        text = f"exec-server transport disconnected: {reason}"
        try:
            if not self.recovers or self.session_id is None:
                raise ConnectionLost(text)
            try:
                link = await recover(self, self.session_id)
            except HoldfastError as error:
                raise ConnectionLost(
                    f"{text}; failed to resume exec-server session: {error}"
                ) from error
        except ConnectionLost as error:
            self._give_up(error)
            recovering.set_exception(error)
            return
        except Exception as error:
            # A fault of ours; nobody may wait for ever because of it.
            logger.exception("recovery failed")
            lost = ConnectionLost(f"{text}; failed to resume exec-server session: {error}")
            self._give_up(lost)
            recovering.set_exception(lost)
            return
        except asyncio.CancelledError:
            # Whoever cancelled the task, callers of `connected` must not wait for ever.
            if not self._closing:
                lost = ConnectionLost(f"{text}; the recovery was cancelled")
                self._give_up(lost)
                recovering.set_exception(lost)
            raise
        # First the future, then the connection: waiters run in a later turn of the loop and
        # find it.
        recovering.set_result(None)
        self._install(link)

    def _install(self, link: Link) -> None:
        self._link = link
        # Slow readers outlive a connection; the new one has to be held for them as well.
        for holder in self._slow:
            link.hold_receiving(holder)
        for process in self.open_processes:
            process.line_back()
        self.connection_changed()
        # The connection ended after the last answer, when it was not yet ours: `link_lost`
        # ignored it.
        if link.connection.ended:
            self.link_lost(link, "connection closed")

    async def terminate_quietly(self, params: TerminateParams) -> None:
        """Terminate as soon as there is a connection; nobody waits for the answer."""
        with suppress(HoldfastError):
            await self.call_again(PROCESS_TERMINATE, params, cleanup=True)

    def _fail_process(self, process: RemoteProcess, error: HoldfastError) -> None:
        process.fail(error)
        self.forget(process)
        self._tasks.start(self.terminate_quietly(TerminateParams(process_id=process.process_id)))

    def _end_streams(self) -> None:
        """Fail the HTTP bodies and the file watch: both belong to the lost connection."""
        self.http.interrupted()
        self.files.watch_ended()

    def _give_up(self, error: ConnectionLost) -> None:
        self._failure = error
        # `_failure` is set first: callers woken below must see that there will be no
        # connection.
        self._link = None
        self.connection_changed()
        self._end_streams()
        for process in self.open_processes:
            process.fail(error)
        # Each has got the error; late events must find nothing.
        self._processes.clear()


async def _wait_closed(transport: Transport) -> None:
    """Wait until a closed transport has sent what is queued; abort it after `_CLOSE_LIMIT`."""
    try:
        async with asyncio.timeout(_CLOSE_LIMIT):
            await transport.wait_closed()
    except TimeoutError:
        transport.abort()
        # A second limit, so that closing ends even where an abort takes no effect.
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_LIMIT):
                await transport.wait_closed()


def _nothing() -> None:
    """Do nothing: the default of `connection_changed`."""


@contextmanager
def _deadline(method: Method[P, R], seconds: float) -> Iterator[None]:
    """Turn a `TimeoutError` into the error that Codex's client raises for this call."""
    try:
        yield
    except TimeoutError:
        raise RemoteProtocolError(
            "exec-server protocol error: timed out waiting for exec-server"
            f" `{method.name}` response after {seconds:g}s"
        ) from None
