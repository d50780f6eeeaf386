"""
Threads for what a start has to ask of files, of a child or of systemd, and may ask for ever.

A call on a dead mount cannot be ended from outside. So nobody waits for one in the event loop,
and only so many of one owner are under way: its next ones wait for these, those of others do
not. An owner that has gone counts no more.

A thread that has started a child must not end: `PR_SET_PDEATHSIG` of the child means the end
of the thread that started it, and programs such as bubblewrap rely on it. So these threads go
on for ever, and wait for the next call.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar
from weakref import WeakKeyDictionary

__all__ = ["CALL_LIMIT", "StartThreads", "call_in_daemon"]

T = TypeVar("T")

CALL_LIMIT = 10.0
"""Seconds that somebody waits for a call."""

MAX_CALLS = 8
"""Calls of one owner that are under way, those that never come back included."""

MAX_THREADS = 256
"""Threads in all; then a call waits until one is free."""


class _Pool:
    """The threads of this process. Each has a queue of its own, and is idle or busy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._waiting: deque[Callable[[], None]] = deque()
        self._count = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Run something that raises nothing."""
        with self._lock:
            if self._idle:
                queue = self._idle.pop()
            elif self._count < MAX_THREADS:
                self._count += 1
                queue = SimpleQueue()
                threading.Thread(
                    target=self._run, args=(queue,), name="holdfast-start", daemon=True
                ).start()
            else:
                self._waiting.append(work)
                return
        queue.put(work)

    def _run(self, queue: "SimpleQueue[Callable[[], None]]") -> None:
        while True:
            work = queue.get()
            work()
            with self._lock:
                if self._waiting:
                    queue.put(self._waiting.popleft())
                else:
                    self._idle.append(queue)
            del work  # what it holds is not kept until the next one comes


_pool = _Pool()


class StartThreads:
    """The calls of one owner of processes. Belongs to the event loop that it is used in."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_CALLS)

    async def call(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """
        Return what `work` returns in a thread.

        Args:
            work: Takes nothing; what it raises is raised here.
            undo: Called with the result, in a thread, if nobody waits for it any more.

        Raises:
            TimeoutError: It took longer than `CALL_LIMIT`, or others before it did.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            self._free.release()
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
                    raise TimeoutError  # its owner waits no more
                result = work()
            except BaseException as raised:  # noqa: BLE001 - for whoever waits
                error = raised
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop is over
                if undo is not None and error is None:
                    undo(result)  # type: ignore[arg-type]  # the result of `work`

        async with asyncio.timeout(CALL_LIMIT):
            await self._free.acquire()
            _pool.submit(run)
            return await done


_others: "WeakKeyDictionary[asyncio.AbstractEventLoop, StartThreads]" = WeakKeyDictionary()


async def call_in_daemon(work: Callable[[], T]) -> T:
    """
    As `StartThreads.call`, for whoever owns no processes.

    Raises:
        TimeoutError: It took too long, or too many others do.
    """
    loop = asyncio.get_running_loop()
    if loop not in _others:
        _others[loop] = StartThreads()
    return await _others[loop].call(work)
