"""
Threads for the blocking calls of a start: to file systems, to a child or to systemd.

A call on a dead mount never returns and cannot be cancelled. So none is made in the event loop, and
each owner may have `MAX_CALLS` of them. Its further calls wait for these, while the calls of other
owners continue. An owner that is gone no longer counts.

A thread that has started a child must not end (see `DaemonThreads`), so these never do.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from holdfast.engine.linux.daemon_threads import DaemonThreads

__all__ = ["CALL_LIMIT", "StartThreads", "call_in_daemon"]

T = TypeVar("T")

# Seconds that a caller waits for a call.
CALL_LIMIT = 10.0

# Most concurrent calls of one owner, including those that never return.
MAX_CALLS = 8

# Threads of this process; beyond them, a call waits until one is free.
MAX_THREADS = 256


_pool = DaemonThreads("holdfast-start", MAX_THREADS, runs_programs=True)


class StartThreads:
    """Blocking calls of one owner of processes, for use in one event loop."""

    def __init__(self) -> None:
        # Released when a call returns, and not when its caller gives up: it is still running.
        self._free = asyncio.Semaphore(MAX_CALLS)

    async def call(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """
        Call `work` in a thread and return its result.

        Args:
            work: A function without arguments; its exception is raised here.
            undo: Called with the result, in a thread, if the caller no longer waits.

        Raises:
            TimeoutError: `work`, or the calls before it, took longer than `CALL_LIMIT`.
            RuntimeError: The system cannot start a thread.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            self._free.release()
            # The caller was cancelled or has timed out, so the result has no owner.
            if done.done():
                if undo is not None and error is None:
                    _pool.start(partial(undo, result), may_wait=True)  # type: ignore[arg-type]
            elif error is None:
                done.set_result(result)  # type: ignore[arg-type]  # the result of `work`
            else:
                done.set_exception(error)

        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                if done.done():
                    # The caller gave up while this waited for a thread: do not start it.
                    raise TimeoutError
                result = work()
            except BaseException as raised:  # noqa: BLE001 - raised in the caller
                error = raised
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:
                # The loop is closed, so `settle` cannot run there.
                if undo is not None and error is None:
                    undo(result)  # type: ignore[arg-type]  # the result of `work`

        async with asyncio.timeout(CALL_LIMIT):
            await self._free.acquire()
            try:
                _pool.start(run, may_wait=True)
            except RuntimeError:
                self._free.release()
                raise
            return await done


# Shared by all callers of `call_in_daemon` in one event loop.
_others: "WeakKeyDictionary[asyncio.AbstractEventLoop, StartThreads]" = WeakKeyDictionary()


async def call_in_daemon(work: Callable[[], T]) -> T:
    """
    Call `work` as `StartThreads.call` does, for callers that have no `StartThreads`.

    Raises:
        TimeoutError: `work`, or the calls before it, took longer than `CALL_LIMIT`.
    """
    loop = asyncio.get_running_loop()
    if loop not in _others:
        _others[loop] = StartThreads()
    return await _others[loop].call(work)
