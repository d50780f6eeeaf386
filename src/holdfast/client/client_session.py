"""
One session on a server: it outlives its connections [client.*].

When the connection breaks, the session reconnects, is resumed, and fetches missed events. Callers
notice a delay; they get `ConnectionLost` only if recovery fails.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from holdfast.base.dialect import limits, texts
from holdfast.base.errors import ConnectFailed, ConnectionLost, HoldfastError, RemoteProtocolError
from holdfast.base.tasks import OwnedTasks
from holdfast.client.client_connection import Link, NotificationHandlers
from holdfast.client.recovery import recover
from holdfast.client.remote_backend import RemoteBackend
from holdfast.client.remote_files import RemoteFileSystem
from holdfast.client.remote_http import BODY_DELTA, RemoteHttpClient
from holdfast.client.target import Target
from holdfast.telemetry import ClientTelemetry
from holdfast.wire.protocol.handshake import (
    Capabilities,
    EnvironmentInfo,
    EnvironmentStatus,
    InitializeResponse,
)
from holdfast.wire.protocol.methods import (
    ENVIRONMENT_INFO,
    ENVIRONMENT_STATUS,
    FS_MISSING_CHANGED,
    PROCESS_CLOSED,
    PROCESS_EXITED,
    PROCESS_OUTPUT,
    PROCESS_STREAM_ENDED,
    SERVER_STOPPING,
)
from holdfast.wire.protocol.wire_types import Empty, Method, NotificationMethod
from holdfast.wire.transports.transport import SIGN_INTERVAL, Receiver, Transport

__all__ = ["ClientSession"]

logger = logging.getLogger(__name__)

P = TypeVar("P")
R = TypeVar("R")

# Seconds for `environment/info` and `environment/status`. Other calls have no deadline themselves:
# their duration depends on the command or the file.
_INFO_TIMEOUT = limits.INFO_TIMEOUT
_STATUS_TIMEOUT = limits.STATUS_TIMEOUT

# Seconds for a server to read what was sent before the connection is aborted.
_CLOSE_LIMIT = 1.0


class ClientSession:
    """
    The calls of one session, and the recovery of its connection.

    Call `open` first and `aclose` last. Its processes, files and HTTP calls are members: they make
    their calls here, and are notified when the connection is lost and when it is back.
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
        """See `ExecServerClient.connect`."""
        self.target = target
        """The server to connect to."""
        self.environment: EnvironmentInfo | None = None
        """The server's description of its machine; None before the handshake."""
        self.session_id: str | None = None
        """The id by which the server resumes the session; None before the handshake."""
        self.connection_changed: Callable[[], None] = _nothing
        """Called when the connection is lost, and when it is back; see `is_connected`."""
        self.reserved_slot = asyncio.Lock()
        """Lock for a cleanup call of the client itself, which uses the one reserved call slot."""
        self.processes = RemoteBackend(self)
        """Its processes."""
        self.files = RemoteFileSystem(self)
        """Its files."""
        self.http = RemoteHttpClient(self)
        """Its HTTP calls."""
        self._client_name = client_name
        self._initialize_timeout = initialize_timeout
        self._sign_interval = sign_interval
        self._telemetry = telemetry
        self._tasks = OwnedTasks()
        # The connection in use. While it is lost, a future with the outcome of the recovery.
        self._link: Link | None = None
        self._recovering: asyncio.Future[None] | None = None
        # The reason why recovery failed.
        self._failure: ConnectionLost | None = None
        # True from the call of `aclose` on.
        self._closing = False
        # Set by `server/stopping`: the server ends its sessions, so there is nothing to resume.
        self._server_stopping = False
        # Readers of output that cannot keep up, on any connection.
        self._slow: set[object] = set()
        # One table for all connections: a notification means the same on each of them. Output
        # is here for messages that the fast path of a connection does not recognise.
        self._handlers = NotificationHandlers()
        self._handlers.add(PROCESS_OUTPUT, self.processes.output)
        self._handlers.add(PROCESS_EXITED, self.processes.exited)
        self._handlers.add(PROCESS_CLOSED, self.processes.closed)
        self._handlers.add(PROCESS_STREAM_ENDED, self.processes.stream_ended)
        self._handlers.add(BODY_DELTA, self.http.deliver)
        self._handlers.add(FS_MISSING_CHANGED, self.files.missing_changed)
        self._handlers.add(SERVER_STOPPING, self._stopping)

    # -- begin and end

    async def open(self) -> None:
        """
        Connect and open a session on the server.

        Raises:
            ConnectFailed: With the reason.
            RemoteError: The server refused.
        """
        try:
            link, answer = await self.open_link(None)
            self.session_id = answer.session_id
            self.environment = answer.environment_info
            self._install(link)
            # An older server does not send the description in its answer to `initialize`.
            if self.environment is None:
                self.environment = await self.info()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close the connection; unanswered calls fail."""
        if self._closing:
            return
        self._closing = True
        try:
            # Calls begun in this turn are still sent: one may end an abandoned start.
            await asyncio.sleep(0)
            await self._tasks.aclose()
        finally:
            # In `finally`, because a cancelled caller has no second attempt to close.
            transport = None if self._link is None else self._link.connection.transport
            if self._link is not None:
                self._link.connection.close()
            # An earlier failure keeps its own reason.
            error = self._failure or ConnectionLost(texts.TRANSPORT_CLOSED)
            self._give_up(error)
            if self._recovering is not None and not self._recovering.done():
                # `_recover` was cancelled above, so nothing else completes this future.
                self._recovering.set_exception(error)
            try:
                if transport is not None:
                    await _wait_closed(transport)
            finally:
                await self.target.aclose()

    # -- calls

    async def info(self) -> EnvironmentInfo:
        """Ask the server about its machine."""
        with _deadline(ENVIRONMENT_INFO, _INFO_TIMEOUT):
            async with asyncio.timeout(_INFO_TIMEOUT):
                return await self.call(ENVIRONMENT_INFO, Empty())

    async def status(self) -> EnvironmentStatus:
        """Ask whether it is ready; does not wait for a connection that is being recovered."""
        link = self._link
        if link is None:
            # The caller wants the current status, so do not wait for recovery.
            raise self._failure or ConnectionLost(texts.RECOVERING)
        with _deadline(ENVIRONMENT_STATUS, _STATUS_TIMEOUT):
            async with asyncio.timeout(_STATUS_TIMEOUT):
                return await link.call(ENVIRONMENT_STATUS, Empty())

    async def call(self, method: Method[P, R], params: P) -> R:
        """Call once; a connection that breaks meanwhile is an error."""
        return await (await self.connected()).call(method, params)

    async def call_again(
        self, method: Method[P, R], params: P, *, cleanup: bool = False, patience: float = 0.0
    ) -> R:
        """Call, and repeat it after each lost connection; for calls that may be repeated."""
        while True:
            link = await self.connected()
            try:
                return await link.call(method, params, cleanup=cleanup, patience=patience)
            except ConnectionLost:
                if self.lost_for_good:
                    raise
                # The next round waits for the connection to be back, or to fail for good.

    def notify(self, method: NotificationMethod[P], params: P) -> None:
        """Send a notification; does nothing without a connection."""
        if self._link is not None:
            self._link.connection.notify(method, params)

    async def connected(self) -> Link:
        """
        Return the connection; while it is being recovered, wait for it.

        Raises:
            ConnectionLost: Recovery failed, or the client is closed.
        """
        while self._link is None:
            if self._failure is not None:
                # Raised for many callers: its traceback would otherwise grow with each of them.
                raise self._failure.with_traceback(None)
            if self._closing or self._recovering is None:
                raise ConnectionLost(texts.TRANSPORT_CLOSED)
            await asyncio.shield(self._recovering)
        return self._link

    def start_task(self, work: Coroutine[object, object, None]) -> asyncio.Task[None] | None:
        """Run a coroutine until the session is closed; return None if it already is."""
        # Nothing may start after the close and outlive it.
        if self._closing:
            work.close()
            return None
        return self._tasks.start(work)

    def hold_receiving(self, holder: object) -> None:
        """
        Stop reading the connection until `release_receiving`: `holder`, a reader, has fallen
        behind.
        """
        self._slow.add(holder)
        if self._link is not None:
            self._link.hold_receiving(holder)

    def release_receiving(self, holder: object) -> None:
        """Undo `hold_receiving` for this holder."""
        self._slow.discard(holder)
        if self._link is not None:
            self._link.release_receiving(holder)

    # -- state

    @property
    def capabilities(self) -> Capabilities:
        """The extensions that the server has announced."""
        return Capabilities() if self.environment is None else self.environment.capabilities

    @property
    def is_connected(self) -> bool:
        """True if there is a connection now, so that a call need not wait for recovery."""
        return self._link is not None

    @property
    def is_closing(self) -> bool:
        """True once `aclose` was called."""
        return self._closing

    @property
    def recovers(self) -> bool:
        """True if a lost connection can be re-established with the same session."""
        return self.target.can_reconnect and not (self._server_stopping or self.session_id is None)

    @property
    def lost_for_good(self) -> bool:
        """True if the session was closed or recovery has failed: no connection will follow."""
        return self._closing or self._failure is not None

    # -- connections

    async def open_link(self, resume: str | None) -> tuple[Link, InitializeResponse]:
        """Open a connection and complete the handshake on it; close it again if that fails."""
        link = Link(self._handlers, self.processes.by_id, self._link_lost, self._telemetry)

        def accept(transport: Transport) -> Receiver:
            return link.attach(transport)

        transport = await self.target.open(accept)
        try:
            answer = await link.initialize(self._client_name, resume, self._initialize_timeout)
        except ConnectionLost as error:
            # A half-open connection would occupy the session on the server.
            transport.abort()
            # Only the output of a command such as ssh says why it failed.
            words = await self.target.last_words()
            if words is None:
                raise
            raise ConnectFailed(f"{error}: {words}") from error
        except BaseException:
            transport.abort()
            raise
        # A resumed session has the description of its first connection.
        info = answer.environment_info or self.environment
        # Only Holdfast servers announce `process/ack`, and those also send heartbeats.
        if info is not None and info.capabilities.process_ack:
            transport.expect_heartbeats(self._sign_interval)
        return link, answer

    def _install(self, link: Link) -> None:
        self._link = link
        # Slow readers outlive a connection; the new one has to be held for them as well.
        for holder in self._slow:
            link.hold_receiving(holder)
        self.processes.line_back()
        self.connection_changed()
        # The connection ended after its last answer, before it was ours: `_link_lost` ignored that.
        if link.connection.ended:
            self._link_lost(link, "connection closed")

    def _link_lost(self, link: Link, reason: str) -> None:
        if self._link is not link or self._closing:
            # A connection that was never installed; the code that opened it reports the
            # failure.
            return
        reason = "the server was stopped" if self._server_stopping else reason
        # Cleared before callbacks run, so that a call made from one waits for recovery.
        self._link = None
        self.connection_changed()
        self._end_streams()
        self.processes.line_lost()
        self._recovering = asyncio.get_running_loop().create_future()
        # Retrieve the exception: it is fine if no caller waits for it.
        self._recovering.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._tasks.start(self._recover(reason))

    async def _recover(self, reason: str) -> None:
        # `_link_lost` has set it before starting this task.
        assert self._recovering is not None
        recovering = self._recovering
        text = f"{texts.TRANSPORT_LOST}: {reason}"
        try:
            if not self.recovers or self.session_id is None:
                raise ConnectionLost(text)
            try:
                link = await recover(self, self.session_id)
            except HoldfastError as error:
                raise ConnectionLost(texts.not_resumed(text, error)) from error
        except ConnectionLost as error:
            self._give_up(error)
            recovering.set_exception(error)
            return
        except Exception as error:
            # Our own bug; it must not make callers wait for ever.
            logger.exception("recovery failed")
            lost = ConnectionLost(texts.not_resumed(text, error))
            self._give_up(lost)
            recovering.set_exception(lost)
            return
        except asyncio.CancelledError:
            # Cancelled from outside: callers of `connected` must not wait for ever.
            if not self._closing:
                lost = ConnectionLost(f"{text}; the recovery was cancelled")
                self._give_up(lost)
                recovering.set_exception(lost)
            raise
        # First the future, then the connection: waiters run in a later turn of the loop and
        # find it.
        recovering.set_result(None)
        self._install(link)

    def _stopping(self, params: Empty) -> None:
        """Handle `server/stopping`: there will be no session to resume."""
        self._server_stopping = True

    def _end_streams(self) -> None:
        """Fail the HTTP bodies and the file watch: both belong to the lost connection."""
        self.http.interrupted()
        self.files.watch_ended()

    def _give_up(self, error: ConnectionLost) -> None:
        # Set first: callers woken below must see that there will be no connection.
        self._failure = error
        self._link = None
        self.connection_changed()
        self._end_streams()
        self.processes.fail_all(error)


async def _wait_closed(transport: Transport) -> None:
    """Wait until a closed transport has sent what is queued; abort it after `_CLOSE_LIMIT`."""
    try:
        async with asyncio.timeout(_CLOSE_LIMIT):
            await transport.wait_closed()
    except TimeoutError:
        transport.abort()
        # A second limit, so that closing ends even if an abort has no effect.
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_LIMIT):
                await transport.wait_closed()


def _nothing() -> None:
    """Do nothing: the default of `connection_changed`."""


@contextmanager
def _deadline(method: Method[P, R], seconds: float) -> Iterator[None]:
    """Turn a `TimeoutError` into the error of a call that had no answer in time."""
    try:
        yield
    except TimeoutError:
        raise RemoteProtocolError(
            "exec-server protocol error: timed out waiting for exec-server"
            f" `{method.name}` response after {seconds:g}s"
        ) from None
