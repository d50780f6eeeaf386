"""
Tasks with an owner, for objects that live longer than the call that made them.

`asyncio.TaskGroup` is the rule. It has to be entered and left by the same task,
which an object that is opened in one place and closed in another cannot promise.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager

__all__ = ["OwnedTasks", "ignoring_stray_cancellation", "was_cancelled"]

logger = logging.getLogger(__name__)


class OwnedTasks:
    """Tasks that end with their owner. One that fails is logged, for nobody waits for it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run something in the background; the task is for those who wait for its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a background task failed", exc_info=task.exception())

    async def join(self) -> None:
        """Wait for the end of all that run, also of those that are started meanwhile."""
        while tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """Cancel what still runs and wait for its end."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def was_cancelled() -> bool:
    """
    Return True if somebody has cancelled the current task.

    For a `CancelledError` that need not mean it. uvloop cancels its own wait for a connection
    that is reset as it is made. And before Python 3.13, a timeout that expires in the moment
    its block fails leaves a cancellation behind, which strikes at the next await.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


@contextmanager
def ignoring_stray_cancellation() -> Iterator[None]:
    """Go on after the block if a `CancelledError` ends it that nobody has asked for."""
    try:
        yield
    except asyncio.CancelledError:
        if was_cancelled():
            raise
