"""
Threads for the blocking calls of a start: to file systems, to a child or to systemd.

A call on a dead mount never returns and cannot be cancelled. So none is made in the event loop,
and each owner may have `MAX_CALLS` of them. Its further calls wait for these, while the calls
of other owners go on. An owner that is gone counts no more.

A thread that has started a child must not end. The kernel sends the parent-death signal of the
child (`PR_SET_PDEATHSIG`) at the end of the thread that forked it. Programs such as bubblewrap
set that signal for themselves. So these threads never end, and wait for the next call.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar
from weakref import WeakKeyDictionary

from holdfast.engine.linux.child_signals import block_child_signals, restore_signals

__all__ = ["CALL_LIMIT", "StartThreads", "call_in_daemon"]

T = TypeVar("T")

# Seconds that a caller waits for a call.
CALL_LIMIT = 10.0

# Concurrent calls of one owner, those that never return included.
MAX_CALLS = 8

# Threads of this process; beyond them, a call waits until one is free.
MAX_THREADS = 256


class _Pool:
    """Pool of daemon threads that never end. Each has a queue of its own."""

    def __init__(self) -> None:
        self.forget_threads()

    def forget_threads(self) -> None:
        """Begin anew, without threads; in the child of a fork none of them is there."""
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._waiting: deque[Callable[[], None]] = deque()
        self._count = 0

    def submit(self, work: Callable[[], None]) -> None:
        """
        Run `work` in a thread; it must not raise.

        Raises:
            RuntimeError: There is no thread, and the system cannot start one now.
        """
        with self._lock:
            if self._idle:
                self._idle.pop().put(work)
            elif self._count >= MAX_THREADS or not self._start(work):
                self._waiting.append(work)

    def _start(self, work: Callable[[], None]) -> bool:
        """Start a thread with `work`; return False if the system cannot, but others exist."""
        # A queue per thread: each one in `_idle` belongs to a thread that waits.
        queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        try:
            threading.Thread(
                target=self._run, args=(queue,), name="holdfast-start", daemon=True
            ).start()
        except RuntimeError:
            if not self._count:
                raise
            return False
        # Only now: a thread that did not start must not be counted for ever.
        self._count += 1
        queue.put(work)
        return True

    def _run(self, queue: "SimpleQueue[Callable[[], None]]") -> None:
        while True:
            # Only while it waits: some of the work runs programs by `subprocess`.
            blocked = block_child_signals()
            work = queue.get()
            restore_signals(blocked)
            work()
            with self._lock:
                if self._waiting:
                    queue.put(self._waiting.popleft())
                else:
                    self._idle.append(queue)
            # The thread may be idle for long, and must not keep alive what `work` refers to.
            del work


_pool = _Pool()
os.register_at_fork(after_in_child=_pool.forget_threads)


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
            undo: Called with the result, in a thread, if the caller does not wait any more.

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
                    _pool.submit(partial(undo, result))  # type: ignore[arg-type]
            elif error is None:
                done.set_result(result)  # type: ignore[arg-type]  # the result of `work`
            else:
                done.set_exception(error)

        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                if done.done():
                    # The caller gave up while this waited for a thread: do not even begin.
                    raise TimeoutError
                result = work()
            except BaseException as raised:  # noqa: BLE001 - for whoever waits
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
                _pool.submit(run)
            except RuntimeError:
                self._free.release()
                raise
            return await done


# Shared by all callers of `call_in_daemon` in one event loop.
_others: "WeakKeyDictionary[asyncio.AbstractEventLoop, StartThreads]" = WeakKeyDictionary()


async def call_in_daemon(work: Callable[[], T]) -> T:
    """
    Call `work` as `StartThreads.call` does, for callers without a `StartThreads` of their own.

    Raises:
        TimeoutError: `work`, or the calls before it, took longer than `CALL_LIMIT`.
    """
    loop = asyncio.get_running_loop()
    if loop not in _others:
        _others[loop] = StartThreads()
    return await _others[loop].call(work)
