"""An event loop in a thread, for the asynchronous side of a script."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar, cast

from holdfast.base.errors import EnvironmentClosed
from holdfast.environments.commands.run import END_LIMIT

__all__ = ["LoopThread"]

R = TypeVar("R")

# Seconds for an environment to close and its thread to end.
_CLOSE_LIMIT = 10.0
# Maximum seconds by which a signal is delayed: one that arrives just before the interpreter waits
# for a lock does not interrupt the wait.
_LISTEN_INTERVAL = 0.25


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.serves = ""
        """Name of its environment."""
        # Detects a fork, which copies this object without the thread.
        self._process = os.getpid()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        # Calls awaited by other threads.
        self._awaited: set[Future[object]] = set()
        # A daemon, which is not joined at interpreter exit: `atexit` closes it before.
        self._thread = threading.Thread(target=self._run, name="holdfast", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        finally:
            # Calls accepted while the loop was ending have never begun.
            for outcome in list(self._awaited):
                self._refuse(outcome)

    def _refuse(self, outcome: "Future[object]") -> None:
        # It may be done, or refused by the other side.
        with suppress(InvalidStateError):
            outcome.set_exception(EnvironmentClosed(self.serves))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._stop.wait()

    def call(self, work: Callable[[], Coroutine[object, object, R]]) -> R:
        """
        Run a coroutine in the thread and wait for it; a signal cancels it.

        Raises:
            EnvironmentClosed: The loop has ended, or runs in the parent of a fork.
            RuntimeError: The caller is in that thread, and would wait for itself.
        """
        loop = self._loop
        # Set before the constructor returns.
        assert loop is not None
        self._check_caller()
        outcome: Future[R] = Future()
        task: asyncio.Task[R] | None = None

        def begin() -> None:
            nonlocal task
            task = loop.create_task(work())
            task.add_done_callback(settle)

        def settle(task: asyncio.Task[R]) -> None:
            if task.cancelled():
                outcome.cancel()
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

        def cancel() -> None:
            # Interrupted before `begin` ran.
            if task is None:
                outcome.cancel()
            else:
                task.cancel()

        awaited = cast("Future[object]", outcome)
        self._awaited.add(awaited)
        try:
            try:
                loop.call_soon_threadsafe(begin)
            except RuntimeError:
                self._refuse(awaited)
            return _wait_for(outcome)
        except BaseException:
            # The wait was interrupted.
            if not outcome.done():
                loop.call_soon_threadsafe(cancel)
                # Bounded, and interruptible by a second signal.
                with suppress(CancelledError, TimeoutError, Exception):
                    outcome.result(END_LIMIT + 1)
            raise
        finally:
            self._awaited.discard(awaited)

    def _check_caller(self) -> None:
        """Raise if a call from this thread or process would never run."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "an environment of holdfast.sync cannot be used in its own callbacks:"
                " store their arguments, and use it after the call"
            )
        # A fork does not copy other threads.
        if os.getpid() != self._process:
            raise EnvironmentClosed(self.serves)

    def stop(self) -> None:
        """End the loop and its thread, and cancel what still runs there."""
        if self._thread.is_alive() and self._loop is not None:
            # The loop may just have ended.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_CLOSE_LIMIT)


def _wait_for(outcome: Future[R]) -> R:
    """Return the result, checking for signals at intervals."""
    while True:
        try:
            return outcome.result(_LISTEN_INTERVAL)
        except TimeoutError:
            if outcome.done():
                return outcome.result()
