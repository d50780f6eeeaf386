"""
One client shared by all users of an environment [environments.shared-attempt].

The first use connects; concurrent callers wait for the same attempt and get the same result. A
session that cannot be resumed is followed by a new one. Its backends therefore look the client
up for each call, and pass the call on.
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
"""Error text for callers that do not want to wait for a connection."""


class SharedClient:
    """A client that is connected on first use, and again after its session was lost."""

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
            name: The environment, for errors.
            target: The server.
            client_name: Sent to the server.
            initialize_timeout: Seconds.
            telemetry: Recorder of requests, if there is one.
        """
        self._name = name
        self._target = target
        self._client_name = client_name
        self._initialize_timeout = initialize_timeout
        self._telemetry = telemetry
        self._tasks = OwnedTasks()
        # At most one of the three: a running attempt, its client, or the reason of its failure.
        self._attempt: asyncio.Future[ExecServerClient] | None = None
        self._client: ExecServerClient | None = None
        self._failure: HoldfastError | None = None
        self.description: EnvironmentInfo | None = None
        """The machine, as the server of the last session describes it; None before the first."""
        self._closed: asyncio.Future[None] | None = None
        self._listeners: set[Callable[[], None]] = set()
        self.backend = cast(ExecBackend, _Forwarder(ExecBackend, _itself, self._call))
        """The processes of the server."""
        self.files = cast(FileSystem, _Forwarder(FileSystem, _files, self._call))
        """The files of the server."""
        self.http = cast(HttpClient, _Forwarder(HttpClient, _http, self._call))
        """HTTP calls of the server."""
        self.fail_fast_files = cast(
            FileSystem, _Forwarder(FileSystem, _files, self._call_if_connected)
        )
        """
        The same files, for callers that want an error instead of waiting.

        A call never connects, and fails when the connection is lost. Both raise
        `ConnectionLost`.
        """

    # -- for those who want to use it

    async def get(self) -> ExecServerClient:
        """
        Return the client; connect if there is none, or if its session is lost.

        While a lost connection is recovered, the client is returned and its calls wait.

        Raises:
            ConnectFailed: There is no connection. If a retry may succeed, the next call makes
                one.
            EnvironmentClosed: It was closed.
        """
        if self._closed is not None:
            raise EnvironmentClosed(self._name)
        if self._attempt is None:
            if self._client is not None and not (
                self._client.lost_for_good and self._target.can_reconnect
            ):
                return self._client
            # A permanent failure, such as a refused token, is not tried again with every call.
            if self._failure is not None and not self._may_retry(self._failure):
                raise _attempt_failed(self._failure)
            self._begin()
        # Either there was one, or `_begin` has made it.
        assert self._attempt is not None
        # Shielded: a cancelled caller must not end the attempt for the others.
        return await asyncio.shield(self._attempt)

    def get_connected(self) -> ExecServerClient:
        """
        Return the client if it is connected right now.

        Raises:
            ConnectionLost: It is not.
        """
        if self._client is None or not self._client.is_connected:
            raise ConnectionLost(NOT_READY)
        return self._client

    def start(self) -> None:
        """Start to connect, unless that was tried before."""
        if self._closed is None and not (self._attempt or self._client or self._failure):
            self._begin()

    async def status(self) -> Status:
        """Return the state; asks a connected server, and never connects."""
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
        """True if there is a connection now."""
        return self._client is not None and self._client.is_connected

    async def connection_states(self) -> AsyncIterator[bool]:
        """
        Iterate over the connection state: now, and after each change until it is closed.

        A consumer that falls behind gets the last change only.
        """
        changed = asyncio.Event()
        with self._listening(changed.set):
            while True:
                changed.clear()
                # Read before the yield, so that the state of a closed environment is delivered
                # once.
                closed = self._closed is not None
                yield self.is_connected
                if closed:
                    return
                await changed.wait()

    @contextmanager
    def when_lost(self, call: Callable[[], None]) -> Iterator[None]:
        """Call a function, once, as soon as the connection is lost."""
        called = False

        def look() -> None:
            nonlocal called
            if not called and not self.is_connected:
                called = True
                call()

        with self._listening(look):
            yield

    async def aclose(self) -> None:
        """Close the connection, and end the command behind it if there is one."""
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
            # A task of its own, which continues if the caller is cancelled.
            self._tasks.start(self._close(self._closed))
        await asyncio.shield(self._closed)

    # -- inside

    async def _call(self, work: Callable[[ExecServerClient], Awaitable[R]]) -> R:
        """Do something with the client; connect first if there is none."""
        return await work(await self.get())

    async def _call_if_connected(self, work: Callable[[ExecServerClient], Awaitable[R]]) -> R:
        """Do something with the client while it is connected; see `fail_fast_files`."""
        client = self.get_connected()
        # Without a limit of its own; the loss of the connection lets it expire.
        patience = asyncio.timeout(None)
        try:
            async with patience:
                # Expires the timeout at once, which cancels the call.
                with self.when_lost(lambda: patience.reschedule(0)):
                    return await work(client)
        except TimeoutError:
            if not patience.expired():
                raise
            raise ConnectionLost(NOT_READY) from None

    def _may_retry(self, error: HoldfastError) -> bool:
        # A serving command is started once: its session ended with it.
        return self._target.can_reconnect and worth_retrying(error)

    def _begin(self) -> None:
        attempt = self._attempt = asyncio.get_running_loop().create_future()
        # Retrieve the exception, since nobody may be waiting: asyncio would log it.
        attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
        lost, self._client, self._failure = self._client, None, None
        self._tasks.start(self._connect(attempt, lost))

    async def _connect(
        self, attempt: asyncio.Future[ExecServerClient], lost: ExecServerClient | None
    ) -> None:
        try:
            if lost is not None:
                # First, because closing a client closes its target, which both share.
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
                # A fault of ours; nobody may wait for ever because of it.
                logger.exception("connecting failed")
            self._attempt = None
            self._failure = (
                error if isinstance(error, HoldfastError) else ConnectFailed(repr(error))
            )
            attempt.set_exception(_attempt_failed(self._failure))
            return
        # No await from here on, so that `aclose` finds either the task or its client.
        client.connection_changed = self._connection_changed
        self._attempt, self._client = None, client
        # A server that was started anew may have another shell, home or extensions.
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
    """Return a new exception for each caller: a shared one would collect tracebacks."""
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
    An implementation of any seam whose methods are all asynchronous: passes each call on.

    Signatures are those of the seam, so they are not written a second time here.
    """

    def __init__(
        self,
        seam: type,
        member: Callable[[ExecServerClient], object],
        call: Callable[[Callable[[ExecServerClient], Awaitable[Any]]], Coroutine[Any, Any, Any]],
    ) -> None:
        """
        Args:
            seam: The protocol that it implements.
            member: Returns the part of a client that calls are passed to.
            call: Finds the client and calls a function with it.
        """
        self._seam = seam
        self._member = member
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        # A name outside of the seam may be no asynchronous method of the other object.
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
