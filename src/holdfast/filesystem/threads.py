"""
Threads for system calls that may take long, or for ever.

A call on a dead mount cannot be ended from outside. So the threads are daemons,
which nobody waits for at the end, and one that does not come back is replaced.
Otherwise there are few: what is read or walked goes through one interpreter
anyway, and many threads would only keep the event loop from its turn.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.errors import Refused
from holdfast.filesystem.failure import refusal

__all__ = ["FileThreads", "Lane"]

T = TypeVar("T")

CORE = 4
"""Threads that work side by side."""

LIMIT = 64
"""Threads in all, the stuck ones included; beyond that, work waits."""

STUCK = 0.05
"""Seconds after which a call no longer counts among the `CORE`, so that another may run."""


class _Job:
    """One piece of work, on its way to a thread and back."""

    __slots__ = ("error", "future", "last", "result", "slow", "started", "undo", "work")

    def __init__(
        self,
        future: asyncio.Future[Any],
        work: Callable[[], Any],
        undo: Callable[[Any], None] | None,
    ) -> None:
        self.future = future
        self.work = work
        self.undo = undo
        self.started = 0.0
        # Set by the loop: another thread may run in place of this one's.
        self.slow = False
        # Set by its thread, which then ends because of that.
        self.last = False
        self.result: Any = None
        self.error: BaseException | None = None


class FileThreads:
    """
    Runs work in threads of its own, for one event loop.

    Results that come together are handed over together: pipelined requests share
    the wake-up of the loop, which is the larger part of what a thread costs.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._jobs: set[_Job] = set()
        self._threads = 0
        self._timer: asyncio.TimerHandle | None = None
        self._finished: deque[_Job] = deque()
        self._waking = False
        self._idle = asyncio.Event()
        self._closed = False

    def run(
        self, work: Callable[[], T], undo: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """
        Run something in a thread.

        Args:
            work: Takes nothing; what it raises is raised to who awaits, an `OSError`
                as the refusal it means.
            undo: Called with the result, in a thread, if nobody waits for it any more.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        job = _Job(future, work, undo)
        self._jobs.add(job)
        self._queue.put(job)
        if self._closed:
            # A file that was being opened is let go of after the end, too. The threads have
            # been told to end: one more does this, and then ends as well.
            self._queue.put(None)
            self._start_thread()
        elif self._threads < CORE and self._threads < len(self._jobs):
            self._start_thread()
        elif self._timer is None and len(self._jobs) > self._threads:
            self._timer = self._loop.call_later(STUCK, self._look_after)
        return future

    async def aclose(self, grace: float = 2.0) -> None:
        """Let the threads end; waits a bounded time for what is under way."""
        if self._jobs:
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace)
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        for _ in range(self._threads):
            self._queue.put(None)

    # -- the loop's side

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="holdfast-files", daemon=True).start()

    def _look_after(self) -> None:
        """Replace threads that are stuck, while there is work for more."""
        self._timer = None
        now = time.monotonic()
        waiting = 0
        for job in self._jobs:
            if not job.started:
                waiting += 1
            elif not job.slow and now - job.started >= STUCK:
                job.slow = True
        slow = sum(job.slow for job in self._jobs)
        for _ in range(min(waiting, LIMIT - self._threads, CORE + slow - self._threads)):
            self._start_thread()
        if waiting:
            self._timer = self._loop.call_later(STUCK, self._look_after)

    def _settle(self) -> None:
        # First this, then the look: a thread that finds it set has added its job before.
        self._waking = False
        while self._finished:
            job = self._finished.popleft()
            self._jobs.discard(job)
            if job.last:
                self._threads -= 1
            if job.future.done():
                if job.undo is not None and job.error is None:
                    self._run_undo(job)
            elif job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        if not self._jobs:
            self._idle.set()

    def _run_undo(self, job: _Job) -> None:
        undo, result = job.undo, job.result
        assert undo is not None  # the caller looked
        self.run(lambda: undo(result))

    # -- a thread's side

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            if job is None:
                return
            job.started = time.monotonic()
            try:
                job.result = job.work()
            except Refused as error:  # it may be an `OSError`, too
                job.error = error
            except OSError as error:
                job.error = refusal(error)
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                job.error = error
            job.last = last = job.slow
            self._finished.append(job)
            del job  # what it holds is not kept until the next one comes
            if not self._waking:
                self._waking = True
                try:
                    self._loop.call_soon_threadsafe(self._settle)
                except RuntimeError:
                    return  # the loop is closed: whoever waited is gone
            if last:
                return


class Lane:
    """
    Work that is done in order: one piece begins when the one before it has ended.

    Whoever stops waiting for a piece that has begun does not stop it, and the next
    one still comes after it: what a thread uses is not closed under its hands.
    """

    def __init__(self, threads: FileThreads) -> None:
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._busy = False

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """As `FileThreads.run`, after what came before."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((work, future))
        if not self._busy:
            self._next()
        return future

    def _next(self) -> None:
        while self._waiting:
            work, future = self._waiting.popleft()
            if not future.cancelled():
                self._busy = True
                self._threads.run(work).add_done_callback(partial(self._ended, future))
                return
        self._busy = False

    def _ended(self, future: asyncio.Future[Any], ended: asyncio.Future[Any]) -> None:
        error = ended.exception()
        if not future.done():
            if error is None:
                future.set_result(ended.result())
            else:
                future.set_exception(error)
        self._next()
