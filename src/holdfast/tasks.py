"""
Tasks with an owner, for objects that live longer than the call that made them.

`asyncio.TaskGroup` is the rule. It has to be entered and left by the same task,
which an object that is opened in one place and closed in another cannot promise.
"""

import asyncio
import logging
from collections.abc import Coroutine

__all__ = ["OwnedTasks"]

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

    async def aclose(self) -> None:
        """Cancel what still runs and wait for its end."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
