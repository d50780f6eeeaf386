"""
Background tasks that belong to an object.

Prefer `asyncio.TaskGroup`. It has to be entered and left by the same task. An object that is
opened in one place and closed in another cannot guarantee that.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

__all__ = [
    "OwnedTasks",
    "ignoring_stray_cancellation",
    "in_daemon_thread",
    "made_in_thread",
    "was_cancelled",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds that a cancelled caller waits for its thread, which may be stuck on a dead mount.
_DISCARD_TIME = 0.5


class OwnedTasks:
    """Tasks that end with their owner; a failure is logged, since no code awaits them."""

    def __init__(self) -> None:
        # Strong references: the event loop keeps weak ones only, and an unreferenced task may
        # vanish.
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """
        Run a coroutine in the background; the task is returned for callers that wait for its
        end.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a background task failed", exc_info=task.exception())

    async def join(self) -> None:
        """Wait for all tasks, including those that are started meanwhile."""
        # Without the current task, which would wait for itself.
        while tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def made_in_thread(make: Callable[[], T], discard: Callable[[T], None]) -> T:
    """
    Return what a function makes in a thread, such as an open file.

    A thread cannot be cancelled. If the caller is, `discard` gets the result when it comes:
    `asyncio.to_thread` would lose it. The caller waits a moment for that, so that nothing is left
    when it reports its end.
    """
    making = asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:

        def throw_away(made: asyncio.Future[T]) -> None:
            if not made.cancelled() and made.exception() is None:
                discard(made.result())

        making.add_done_callback(throw_away)
        await asyncio.wait([making], timeout=_DISCARD_TIME)
        raise


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """
    Call a function in a separate thread, such as one that waits for a user's answer.

    A cancelled caller leaves the thread behind. It is a daemon: a function that never returns must
    not keep the program from exiting.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]  # the result of `work`
        else:
            done.set_exception(error)

    def run() -> None:
        result: T | None = None
        failure: Exception | None = None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            # `SystemExit` ends only the thread.
            failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
        # The loop is closed: the caller is gone.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="holdfast-user", daemon=True).start()
    return await done


def was_cancelled() -> bool:
    """Return True if the current task was cancelled by a `cancel` call."""
    # A `CancelledError` alone does not prove it. uvloop cancels its own wait for a connection that
    # is reset while it is made. Before Python 3.13, a timeout that expires while its block fails
    # leaves a cancellation behind for the next await.
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


@contextmanager
def ignoring_stray_cancellation() -> Iterator[None]:
    """Continue after the block if an unrequested `CancelledError` ends it."""
    try:
        yield
    except asyncio.CancelledError:
        if was_cancelled():
            raise
