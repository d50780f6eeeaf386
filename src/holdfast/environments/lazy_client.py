"""
A client shared by all users of an environment [environments.shared-attempt].

The first use connects; concurrent callers share the attempt and its result. A session that cannot
be resumed is replaced by a new one, so the backends look up the client for each call and forward
the call to it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

from holdfast.backends import ExecBackend, FileSystem, HttpClient
from holdfast.base.errors import ConnectFailed, ConnectionLost, EnvironmentClosed, HoldfastError
from holdfast.base.tasks import OwnedTasks
from holdfast.client.client import ExecServerClient
from holdfast.client.recovery import worth_retrying
from holdfast.client.target import Target
from holdfast.environments.environment import Status
from holdfast.telemetry import ClientTelemetry
from holdfast.wire.protocol.handshake import EnvironmentInfo

__all__ = ["NOT_READY", "SharedClient"]

logger = logging.getLogger(__name__)

R = TypeVar("R")

NOT_READY: Final = "exec-server environment is not ready"
"""Error for callers that do not wait for a connection."""


class SharedClient:
    """A client that connects on first use, and again after its session was lost."""

    def __init__(
        self,
        name: str,
        target: Target,
        *,
        client_name: str,
        initialize_timeout: float,
        telemetry: ClientTelemetry | None = None,
    ) -> None:
        """
        Args:
            name: Name of the environment, for errors.
            target: The server.
            client_name: Name sent to the server.
            initialize_timeout: Seconds.
            telemetry: Records requests, if given.
        """
        self._name = name
        self._target = target
        self._client_name = client_name
        self._initialize_timeout = initialize_timeout
        self._telemetry = telemetry
        self._tasks = OwnedTasks()
        # At most one of three: a running attempt, its client, or the reason for its failure.
        self._attempt: asyncio.Future[ExecServerClient] | None = None
        self._client: ExecServerClient | None = None
        self._failure: HoldfastError | None = None
        self.description: EnvironmentInfo | None = None
        """The machine as described in the last session; None before the first session."""
        self._closed: asyncio.Future[None] | None = None
        self._listeners: set[Callable[[], None]] = set()
        self.backend = cast(ExecBackend, _Forwarder(ExecBackend, _itself, self._call))
        """Processes of the server."""
        self.files = cast(FileSystem, _Forwarder(FileSystem, _files, self._call))
        """Files of the server."""
        self.http = cast(HttpClient, _Forwarder(HttpClient, _http, self._call))
        """HTTP calls from the server."""
        self.fail_fast_files = cast(
            FileSystem, _Forwarder(FileSystem, _files, self._call_if_connected)
        )
        """
        The same files, for callers that prefer an error to waiting.

        A call never connects. It raises `ConnectionLost` without a connection, and as soon as
        the connection is lost.
        """

    # -- for users of the client

    async def get(self) -> ExecServerClient:
        """
        Return the client; connect if there is none or its session is lost.

        While a lost connection is being recovered, calls on the client wait.

        Raises:
            ConnectFailed: The connection failed. The next call retries if that may succeed.
            EnvironmentClosed: It was closed.
        """
        if self._closed is not None:
            raise EnvironmentClosed(self._name)
        if self._attempt is None:
            if self._client is not None and not (
                self._client.lost_for_good and self._target.can_reconnect
            ):
                return self._client
            # Do not retry a permanent failure, such as a refused token, with every call.
            if self._failure is not None and not self._may_retry(self._failure):
                raise _attempt_failed(self._failure)
            self._begin()
        # It existed, or `_begin` has created it.
        assert self._attempt is not None
        # Shielded: cancelling one caller must not end the attempt for the others.
        return await asyncio.shield(self._attempt)

    def get_connected(self) -> ExecServerClient:
        """
        Return the client if it is connected now.

        Raises:
            ConnectionLost: It is not.
        """
        if self._client is None or not self._client.is_connected:
            raise ConnectionLost(NOT_READY)
        return self._client

    def start(self) -> None:
        """Start connecting, unless that was tried before."""
        if self._closed is None and not (self._attempt or self._client or self._failure):
            self._begin()

    async def status(self) -> Status:
        """Return the state; queries a connected server, and never connects."""
        if self._closed is not None:
            return Status("disconnected", str(EnvironmentClosed(self._name)))
        if self._failure is not None:
            return Status("disconnected", str(_attempt_failed(self._failure)))
        if self._client is None:
            return Status("pending")
        try:
            await self._client.status()
        except HoldfastError as error:
            return Status("disconnected", str(error))
        return Status("ready")

    @property
    def is_connected(self) -> bool:
        """True while there is a connection."""
        return self._client is not None and self._client.is_connected

    async def connection_states(self) -> AsyncIterator[bool]:
        """
        Yield the connection state, now and after each change, until it is closed.

        A consumer that falls behind gets only the last change.
        """
        changed = asyncio.Event()
        with self._listening(changed.set):
            while True:
                changed.clear()
                # Read before the yield, so that the state after the close is delivered once.
                closed = self._closed is not None
                yield self.is_connected
                if closed:
                    return
                await changed.wait()

    @contextmanager
    def when_lost(self, call: Callable[[], None]) -> Iterator[None]:
        """Call a function once, as soon as the connection is lost."""
        called = False

        def look() -> None:
            nonlocal called
            if not called and not self.is_connected:
                called = True
                call()

        with self._listening(look):
            yield

    async def aclose(self) -> None:
        """Close the connection, and end the serving command if there is one."""
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
            # A separate task, which continues if the caller is cancelled.
            self._tasks.start(self._close(self._closed))
        await asyncio.shield(self._closed)

    # -- internals

    async def _call(self, work: Callable[[ExecServerClient], Awaitable[R]]) -> R:
        """Call a function with the client, connecting first if necessary."""
        return await work(await self.get())

    async def _call_if_connected(self, work: Callable[[ExecServerClient], Awaitable[R]]) -> R:
        """Call a function with the client while it is connected; see `fail_fast_files`."""
        client = self.get_connected()
        # Expires only when the connection is lost.
        patience = asyncio.timeout(None)
        try:
            async with patience:
                # Expires the timeout, which cancels the call.
                with self.when_lost(lambda: patience.reschedule(0)):
                    return await work(client)
        except TimeoutError:
            if not patience.expired():
                raise
            raise ConnectionLost(NOT_READY) from None

    def _may_retry(self, error: HoldfastError) -> bool:
        # A serving command is started only once: its session ended with it.
        return self._target.can_reconnect and worth_retrying(error)

    def _begin(self) -> None:
        attempt = self._attempt = asyncio.get_running_loop().create_future()
        # Retrieve the exception, which asyncio would log if no caller waits.
        attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
        lost, self._client, self._failure = self._client, None, None
        self._tasks.start(self._connect(attempt, lost))

    async def _connect(
        self, attempt: asyncio.Future[ExecServerClient], lost: ExecServerClient | None
    ) -> None:
        try:
            if lost is not None:
                # Before connecting: closing the old client closes the target, which both share.
                await lost.aclose()
            client = await ExecServerClient.connect(
                self._target,
                client_name=self._client_name,
                initialize_timeout=self._initialize_timeout,
                telemetry=self._telemetry,
            )
        except asyncio.CancelledError:
            attempt.set_exception(EnvironmentClosed(self._name))
            raise
        except Exception as error:
            if not isinstance(error, HoldfastError):
                # A bug in Holdfast; callers must not wait for ever because of it.
                logger.exception("connecting failed")
            self._attempt = None
            self._failure = (
                error if isinstance(error, HoldfastError) else ConnectFailed(repr(error))
            )
            attempt.set_exception(_attempt_failed(self._failure))
            return
        # No await from here on: `aclose` has to find either the task or its client.
        client.connection_changed = self._connection_changed
        self._attempt, self._client = None, client
        # A restarted server may have another shell, home or extensions.
        self.description = client.environment
        attempt.set_result(client)
        self._connection_changed()

    @contextmanager
    def _listening(self, listener: Callable[[], None]) -> Iterator[None]:
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def _connection_changed(self) -> None:
        for listener in list(self._listeners):
            listener()

    async def _close(self, closed: asyncio.Future[None]) -> None:
        try:
            # Cancels all tasks but this one.
            await self._tasks.aclose()
            if self._client is not None:
                await self._client.aclose()
        finally:
            self._attempt = None
            self._connection_changed()
            closed.set_result(None)


def _attempt_failed(error: HoldfastError) -> ConnectFailed:
    """Return a new exception for each caller; a shared one would accumulate tracebacks."""
    failed = ConnectFailed(
        f"exec-server connection attempt failed: {error}",
        errno=error.errno,
        path=error.path,
        program=error.program,
    )
    failed.__cause__ = error
    return failed


class _Forwarder:
    """
    Implements any seam whose methods are all asynchronous by forwarding each call.

    The signatures are those of the seam, and not repeated here.
    """

    def __init__(
        self,
        seam: type,
        member: Callable[[ExecServerClient], object],
        call: Callable[[Callable[[ExecServerClient], Awaitable[Any]]], Coroutine[Any, Any, Any]],
    ) -> None:
        """
        Args:
            seam: The protocol to implement.
            member: Returns the part of a client that gets the calls.
            call: Calls a function with the current client.
        """
        self._seam = seam
        self._member = member
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        # Outside the seam, a name need not be an asynchronous method.
        if name.startswith("_") or name not in vars(self._seam):
            raise AttributeError(f"{self._seam.__name__} has no `{name}`")

        def forward(*args: object, **options: object) -> Coroutine[Any, Any, Any]:
            return self._call(lambda client: getattr(self._member(client), name)(*args, **options))

        return forward


def _itself(client: ExecServerClient) -> object:
    return client


def _files(client: ExecServerClient) -> object:
    return client.files


def _http(client: ExecServerClient) -> object:
    return client.http
