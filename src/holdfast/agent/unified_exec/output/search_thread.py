"""The thread that searches the output of one set of tools for patterns."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.engine.linux.child_signals import block_child_signals

__all__ = ["SearchThread"]

T = TypeVar("T")


class SearchThread:
    """
    A single thread, started with the first pattern.

    RE2 releases the GIL while it searches, so the event loop keeps running. Each set of tools has
    its own thread, so that a slow pattern only delays the searches of one client.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in the thread, after earlier ones."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(
                max_workers=1,
                thread_name_prefix="holdfast-search",
                initializer=block_child_signals,
            )
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Cancel functions that have not started, and end the thread without waiting for it."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
