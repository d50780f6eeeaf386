"""The blocking tools of a model: `exec_command` and `write_stdin` for scripts."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from holdfast.agent.unified_exec.hooks import Hooks
from holdfast.agent.unified_exec.options import Options
from holdfast.agent.unified_exec.sessions.session_events import Listener as AsyncListener
from holdfast.agent.unified_exec.sessions.session_events import ToolEvent
from holdfast.agent.unified_exec.tools import UnifiedExec as AsyncUnifiedExec
from holdfast.base.errors import EnvironmentClosed
from holdfast.front.sync.loop_thread import LoopThread
from holdfast.front.sync.sync_environment import SyncEnvironment
from holdfast.front.sync.twin import Twin, sides, twin, twin_of_plain

__all__ = ["SyncListener", "SyncUnifiedExec"]


class SyncListener(Twin[AsyncListener]):
    """
    Future events, for one reader; see `holdfast.agent.unified_exec.Listener`.

    Iteration ends when the tools or the listener are closed, and after `timeout` seconds without
    an event. Another loop continues where it stopped.
    """

    def __init__(self, other: AsyncListener, thread: LoopThread, *, timeout: float | None) -> None:
        """Use `UnifiedExec.listen` to create one."""
        super().__init__(other, thread)
        self._timeout = timeout

    def next(self, timeout: float | None = None) -> ToolEvent | None:
        """
        Wait for the next event.

        Args:
            timeout: Seconds; 0 to return only an available event, None to wait without a limit.

        Returns:
            None after the timeout, or if there will be no more events.
        """

        async def next_event() -> ToolEvent | None:
            try:
                async with asyncio.timeout(timeout):
                    return await anext(self._other, None)
            except TimeoutError:
                return None

        return self._thread.call(next_event)

    def __iter__(self) -> Iterator[ToolEvent]:
        while (event := self.next(self._timeout)) is not None:
            yield event

    close = twin_of_plain(AsyncListener.close)

    @property
    def dropped(self) -> int:
        """Number of live output pieces that were dropped because it was too slow."""
        return self._other.dropped

    @property
    def overflowed(self) -> bool:
        """True if it was closed because it was too far behind."""
        return self._other.overflowed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(EnvironmentClosed):
            self.close()


class SyncUnifiedExec(Twin[AsyncUnifiedExec]):
    """
    The tools of a model; see `holdfast.UnifiedExec`. A context manager.

    Any number of threads may use it concurrently. Ctrl-C cancels a call; its command continues, and
    the next call on the session gets the output that this one had collected.
    """

    call = twin(AsyncUnifiedExec.call)
    exec_command = twin(AsyncUnifiedExec.exec_command)
    write_stdin = twin(AsyncUnifiedExec.write_stdin)
    read_output = twin(AsyncUnifiedExec.read_output)
    view_image = twin(AsyncUnifiedExec.view_image)
    apply_patch = twin(AsyncUnifiedExec.apply_patch)
    request_permissions = twin(AsyncUnifiedExec.request_permissions)
    schemas = twin_of_plain(AsyncUnifiedExec.schemas)
    sessions = twin_of_plain(AsyncUnifiedExec.sessions)
    terminate = twin_of_plain(AsyncUnifiedExec.terminate)
    clean = twin_of_plain(AsyncUnifiedExec.clean)
    end_turn = twin_of_plain(AsyncUnifiedExec.end_turn)

    def __init__(
        self,
        environment: SyncEnvironment,
        *,
        options: Options | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """
        Args:
            environment: Environment of the commands, which stays open when this is closed.
            options: Settings.
            hooks: Decide on commands; by default all are allowed. They run in the environment's
                thread and cannot use this module.
        """
        if not isinstance(environment, SyncEnvironment):
            raise TypeError(
                "holdfast.sync.UnifiedExec needs an environment of holdfast.sync.connect,"
                f" not {environment!r}"
            )
        inner, thread = sides(environment)

        async def made() -> AsyncUnifiedExec:
            return AsyncUnifiedExec(inner, options=options, hooks=hooks)

        super().__init__(thread.call(made), thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def options(self) -> Options:
        """The options of the owner."""
        return self._other.options

    @contextmanager
    def paused(self) -> Iterator[None]:
        """
        Stop the clocks of all calls during the block, while the user is being asked.

        Calls in other threads keep waiting; their deadlines move by the duration of the block.
        """
        pause = self._other.paused()
        self._thread.call(pause.__aenter__)
        try:
            yield
        finally:
            # The calls may have ended with the environment.
            with suppress(EnvironmentClosed):
                self._thread.call(lambda: pause.__aexit__(None, None, None))

    def listen(self, *, deltas: bool = True, timeout: float | None = None) -> SyncListener:
        """
        Return future events of all commands; close it when done.

        Args:
            deltas: True to include live output.
            timeout: Seconds without an event that end an iteration; None for no limit.
        """

        async def listening() -> AsyncListener:
            return self._other.listen(deltas=deltas)

        return SyncListener(self._thread.call(listening), self._thread, timeout=timeout)

    def close(self) -> None:
        """Kill all commands and wait for them to end, at most 5 s; idempotent."""
        # The commands may have ended with the environment.
        with suppress(EnvironmentClosed):
            self._thread.call(self._other.aclose)
