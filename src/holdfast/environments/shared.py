"""
One client for all who use an environment, from its first use on [environments.shared-attempt].

Whoever comes while it is being connected waits for the same attempt and hears the same
result. A session that cannot be resumed any more is followed by a new one.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.client.client import ExecServerClient
from holdfast.client.recovery import worth_retrying
from holdfast.client.target import Target
from holdfast.environments.environment import Status
from holdfast.errors import ConnectFailed, ConnectionLost, EnvironmentClosed, HoldfastError
from holdfast.tasks import OwnedTasks
from holdfast.telemetry import ClientTelemetry

__all__ = ["NOT_READY", "SharedClient"]

logger = logging.getLogger(__name__)

NOT_READY: Final = "exec-server environment is not ready"
"""What is said to those who do not want to wait for a connection."""


class SharedClient:
    """Connects when it is first asked for a client, and again when the last one is lost."""

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
            name: Whose client it is, for errors.
            target: Where it connects to.
            client_name: Told to the server.
            initialize_timeout: Seconds.
            telemetry: Told of every request, if there is any.
        """
        self._name = name
        self._target = target
        self._client_name = client_name
        self._initialize_timeout = initialize_timeout
        self._telemetry = telemetry
        self._tasks = OwnedTasks()
        # At most one of the three: an attempt under way, its client, or why there is none.
        self._attempt: asyncio.Future[ExecServerClient] | None = None
        self._client: ExecServerClient | None = None
        self._failure: HoldfastError | None = None
        self._closed: asyncio.Future[None] | None = None
        self._listeners: set[Callable[[], None]] = set()

    # -- for those who want to use it

    async def get(self) -> ExecServerClient:
        """
        The client; connects if there is none, or if its session is lost.

        While a lost connection is being recovered it is the one whose calls wait for that.

        Raises:
            ConnectFailed: There is no connection. If it may go better another time, the
                next call tries again.
            EnvironmentClosed: There will be none.
        """
        if self._closed is not None:
            raise EnvironmentClosed(self._name)
        if self._attempt is None:
            if self._client is not None and not (
                self._client.lost_for_good and self._target.can_reconnect
            ):
                return self._client
            if self._failure is not None and not self._may_retry(self._failure):
                raise _attempt_failed(self._failure)
            self._begin()
        assert self._attempt is not None  # there was one, or it was begun
        # Whoever gives up waiting does not end it for the others.
        return await asyncio.shield(self._attempt)

    def get_connected(self) -> ExecServerClient:
        """
        The client, if it has a connection at this moment.

        Raises:
            ConnectionLost: It has none.
        """
        if self._client is None or not self._client.is_connected:
            raise ConnectionLost(NOT_READY)
        return self._client

    def start(self) -> None:
        """Begin to connect, unless that was tried already."""
        if self._closed is None and not (self._attempt or self._client or self._failure):
            self._begin()

    async def status(self) -> Status:
        """Whether it can be used: asks a server that is connected, and does nothing else."""
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
        """Whether there is a connection at this moment."""
        return self._client is not None and self._client.is_connected

    async def connection_states(self) -> AsyncIterator[bool]:
        """
        Whether there is a connection: at once, and after each change until it is closed.

        One who falls behind hears of the last change only.
        """
        changed = asyncio.Event()
        with self._listening(changed.set):
            while True:
                changed.clear()
                closed = self._closed is not None
                yield self.is_connected
                if closed:
                    return
                await changed.wait()

    @contextmanager
    def when_lost(self, call: Callable[[], None]) -> Iterator[None]:
        """Have something called, once, as soon as the connection is lost."""
        told = False

        def look() -> None:
            nonlocal told
            if not told and not self.is_connected:
                told = True
                call()

        with self._listening(look):
            yield

    async def aclose(self) -> None:
        """Close the connection, and end the command behind it if there is one."""
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
            # On its own: it goes on when whoever waits for it is cancelled.
            self._tasks.start(self._close(self._closed))
        await asyncio.shield(self._closed)

    # -- inside

    def _may_retry(self, error: HoldfastError) -> bool:
        # A command is not started a second time, whatever became of the first.
        return self._target.can_reconnect and worth_retrying(error)

    def _begin(self) -> None:
        attempt = self._attempt = asyncio.get_running_loop().create_future()
        # Nobody may be waiting for it, and that is no mistake.
        attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
        lost, self._client, self._failure = self._client, None, None
        self._tasks.start(self._connect(attempt, lost))

    async def _connect(
        self, attempt: asyncio.Future[ExecServerClient], lost: ExecServerClient | None
    ) -> None:
        try:
            if lost is not None:
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
        # No await from here on: whoever closes us finds either the task or its client.
        client.connection_changed = self._connection_changed
        self._attempt, self._client = None, client
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
            await self._tasks.aclose()  # all but this one
            if self._client is not None:
                await self._client.aclose()
        finally:
            self._attempt = None
            self._connection_changed()
            closed.set_result(None)


def _attempt_failed(error: HoldfastError) -> ConnectFailed:
    """A new one for each who is told: one that is raised again and again would grow."""
    failed = ConnectFailed(
        f"exec-server connection attempt failed: {error}",
        errno=error.errno,
        path=error.path,
        program=error.program,
    )
    failed.__cause__ = error
    return failed
