"""The thread in which the output of one set of tools is searched for patterns."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.engine.linux.child_signals import block_child_signals

__all__ = ["SearchThread"]

T = TypeVar("T")


class SearchThread:
    """
    One thread, made with the first pattern.

    RE2 does not hold the interpreter while it compiles or searches, so the event loop goes on
    meanwhile. Each set of tools has its own: a slow pattern delays the searches of one client only.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in the thread, behind those before it."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(
                max_workers=1,
                thread_name_prefix="holdfast-search",
                initializer=block_child_signals,
            )
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Run nothing that has not begun, and let the thread end; do not wait for it."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
