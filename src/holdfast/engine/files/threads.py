"""
Runs blocking system calls in threads, also those that never return.

A call on a dead mount cannot be interrupted. So the threads are daemons, which the end of the
process does not wait for, and a stuck thread is replaced. Otherwise there are few of them: they
share the GIL, and many would only delay the event loop.

Each client has a share of the threads. Shares take turns, however many calls one of them queues.
A share whose calls hang waits for them; the others do not. When a client disconnects, its stuck
calls no longer count.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from holdfast.base.errors import Refused
from holdfast.engine.files.errno_mapping import refusal
from holdfast.engine.linux.child_signals import block_child_signals

__all__ = ["FileThreads", "SerialQueue", "ThreadShare", "Threads"]

T = TypeVar("T")

CORE = max(2, min(4, os.cpu_count() or 2))
"""Threads that run at the same time, as long as none is stuck."""

SHARE = 16
"""Running calls of one client; further ones wait."""

OWN_SHARE = 64
"""Running calls of an owner that does not share the threads."""

LIMIT = 512
"""Largest number of threads, stuck ones included; beyond that, calls wait."""

# Seconds after which the tasks of a closed connection have been cancelled.
_FAREWELL = 0.05

STUCK = 0.05
"""Seconds after which a call counts as stuck, so that another thread may start."""


# Results that are handed over in one turn of the event loop; the others wait for the next.
_SETTLED_AT_ONCE = 32


class Threads(Protocol):
    """Threads for blocking calls."""

    def run(
        self, work: Callable[[], T], undo: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Run something in a thread; see `FileThreads.run`."""


class _Job:
    """Queued or running call."""

    __slots__ = ("error", "future", "last", "result", "share", "slow", "started", "undo", "work")

    def __init__(
        self,
        share: "ThreadShare",
        future: asyncio.Future[Any],
        work: Callable[[], Any],
        undo: Callable[[Any], None] | None,
    ) -> None:
        self.share = share
        self.future = future
        self.work = work
        self.undo = undo
        self.started = 0.0
        # Set by the loop: the call is stuck, so another thread may run.
        self.slow = False
        # Set by its thread, which ends after this call since another one replaced it.
        self.last = False
        self.result: Any = None
        self.error: BaseException | None = None


class ThreadShare:
    """Queue and running calls of one client."""

    def __init__(self, threads: "FileThreads", limit: int = SHARE) -> None:
        self._threads = threads
        self.limit = limit
        # Guarded by the lock of `FileThreads`.
        self.waiting: deque[_Job] = deque()
        self.running = 0
        self.queued = False
        """True while the share is in the line of those that may start a call."""

    def run(
        self, work: Callable[[], T], undo: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Run something in a thread; see `FileThreads.run`."""
        return self._threads.run_for(self, work, undo)

    def leave(self) -> None:
        """
        Give up the stuck calls of a client that has disconnected.

        The files that it had open still have to be closed, without waiting for these calls.
        """
        self._threads.give_up(self)


class FileThreads:
    """
    Thread pool for blocking calls of one event loop.

    Results that arrive together are delivered by one callback. Pipelined requests thus share the
    wake-up of the loop, which is the larger part of a thread's cost.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # One entry per waiting job, or `None` to end a thread. An entry that no thread may
        # start, since its share is at its limit, is removed and counted in `_withheld`.
        self._tokens: SimpleQueue[bool | None] = SimpleQueue()
        self._withheld = 0
        # Jobs that have a thread.
        self._running: set[_Job] = set()
        # Shares that may start a job, each once, in the order of their turns.
        self._line: deque[ThreadShare] = deque()
        self._lock = threading.Lock()
        self._own = ThreadShare(self, OWN_SHARE)
        self._jobs: set[_Job] = set()
        self._threads = 0
        self._timer: asyncio.TimerHandle | None = None
        self._finished: deque[_Job] = deque()
        self._waking = False
        self._idle = asyncio.Event()
        self._closed = False

    def share(self) -> ThreadShare:
        """Return a share for one more client."""
        return ThreadShare(self)

    def run(
        self, work: Callable[[], T], undo: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """
        Run a function in a thread, and return a future of its result.

        A cancelled future whose function has not started yet does not start it.

        Args:
            work: Function to run. The future gets its exception; an `OSError` is mapped to
                an exception of the protocol.
            undo: Called with the result, in a thread, if the future has been cancelled.
        """
        return self.run_for(self._own, work, undo)

    def run_for(
        self, share: ThreadShare, work: Callable[[], T], undo: Callable[[T], None] | None
    ) -> asyncio.Future[T]:
        """Run a function in a thread as a call of a share; see `run`."""
        future: asyncio.Future[T] = self._loop.create_future()
        job = _Job(share, future, work, undo)
        self._jobs.add(job)
        with self._lock:
            share.waiting.append(job)
            self._stand_in_line(share)
        self._tokens.put(True)
        if self._closed:
            # A file may still have to be closed after the end. All threads have been told to
            # end, so one more runs this job and ends, too.
            self._tokens.put(None)
            self._start_last_thread()
            return future
        # Threads start when they are needed: most clients never use files.
        wanted = self._threads < CORE and self._threads < len(self._jobs)
        started = wanted and self._start_thread()
        if not started and self._timer is None and len(self._jobs) > self._threads:
            self._timer = self._loop.call_later(STUCK, self._look_after)
        return future

    async def aclose(self, grace: float = 2.0) -> None:
        """End the threads, after waiting `grace` seconds for running calls."""
        if self._jobs:
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace)
        # After the wait: stuck threads are replaced until then.
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        for _ in range(self._threads):
            self._tokens.put(None)

    # -- the loop's side

    def _start_thread(self) -> bool:
        """Start a thread; return False if the system cannot, as `_look_after` tries again."""
        try:
            threading.Thread(target=self._work, name="holdfast-files", daemon=True).start()
        except RuntimeError:
            return False
        self._threads += 1
        return True

    def _start_last_thread(self) -> None:
        """Start a thread for a job that came after the end, as soon as the system can."""
        if not self._start_thread():
            self._loop.call_later(STUCK, self._start_last_thread)

    def _look_after(self) -> None:
        """Mark stuck jobs, and start threads in their place while jobs are waiting."""
        self._timer = None
        now = time.monotonic()
        with self._lock:
            running = list(self._running)
        for job in running:
            if job.started and now - job.started >= STUCK:
                job.slow = True
        slow = sum(job.slow for job in running)
        # Without withheld jobs, which no thread may start.
        waiting = self._tokens.qsize()
        for _ in range(min(waiting, LIMIT - self._threads, CORE + slow - self._threads)):
            if not self._start_thread():
                break
        # Look again, until a thread is free or all are replaced.
        if waiting:
            self._timer = self._loop.call_later(STUCK, self._look_after)

    def _settle(self) -> None:
        # Cleared before the queue is read: a thread that still finds it set has added its job
        # before, so the loop below sees that job.
        self._waking = False
        for _ in range(_SETTLED_AT_ONCE):
            if not self._finished:
                break
            job = self._finished.popleft()
            self._jobs.discard(job)
            if job.last:
                self._threads -= 1
            if job.future.done():
                if job.undo is not None and job.error is None and job.started:
                    self._run_undo(job)
            elif job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        if self._finished and not self._waking:
            # Threads can finish jobs faster than their results are used.
            self._waking = True
            self._loop.call_soon(self._settle)
        if not self._jobs:
            self._idle.set()
        elif self._timer is None and not self._closed and self._tokens.qsize():
            self._timer = self._loop.call_later(STUCK, self._look_after)

    def _run_undo(self, job: _Job) -> None:
        undo, result = job.undo, job.result
        # The caller has checked.
        assert undo is not None
        self.run_for(job.share, lambda: undo(result), None)

    # -- turns; callers hold the lock, or the method takes it

    def _stand_in_line(self, share: ThreadShare) -> None:
        if share.waiting and not share.queued and share.running < share.limit:
            share.queued = True
            self._line.append(share)

    def _take(self) -> _Job | None:
        """Return the next job of the share whose turn it is; None if no job may start."""
        with self._lock:
            if not self._line:
                self._withheld += 1
                return None
            share = self._line.popleft()
            share.queued = False
            job = share.waiting.popleft()
            share.running += 1
            self._running.add(job)
            self._stand_in_line(share)
            return job

    def give_up(self, share: ThreadShare) -> None:
        """Drop the waiting jobs of a client that has left, except those that close files."""
        # Later, when the tasks of its connection have cancelled their futures.
        self._loop.call_later(_FAREWELL, self._forget_unwanted, share)

    def _forget_unwanted(self, share: ThreadShare) -> None:
        with self._lock:
            unwanted = [job for job in share.waiting if job.future.done()]
            share.waiting = deque(job for job in share.waiting if not job.future.done())
            if not share.waiting and share.queued:
                share.queued = False
                self._line.remove(share)
            self._withheld = max(self._withheld - len(unwanted), 0)
            # Room for the closing of files beside the calls that are stuck.
            share.limit += SHARE
            self._stand_in_line(share)
            self._offer(len(share.waiting))
        self._jobs.difference_update(unwanted)
        if not self._jobs:
            self._idle.set()

    def _offer(self, jobs: int) -> None:
        """Put back entries of withheld jobs, so that threads look for them."""
        for _ in range(min(jobs, self._withheld)):
            self._withheld -= 1
            self._tokens.put(True)

    def _give_back(self, job: _Job) -> None:
        """Count a job as ended, and let a withheld job of its share start."""
        share = job.share
        with self._lock:
            self._running.discard(job)
            share.running -= 1
            self._stand_in_line(share)
            if share.waiting:
                self._offer(1)

    # -- a thread's side

    def _work(self) -> None:
        block_child_signals()
        while self._tokens.get() is not None:
            job = self._take()
            if job is None:
                continue
            self._do(job)
            self._give_back(job)
            job.last = last = job.slow
            self._finished.append(job)
            # Otherwise the result would stay alive until the thread's next job.
            del job
            if not self._waking:
                self._waking = True
                try:
                    self._loop.call_soon_threadsafe(self._settle)
                except RuntimeError:
                    # The loop is closed, so nobody waits for results.
                    return
            if last:
                return

    @staticmethod
    def _do(job: _Job) -> None:
        if job.future.done():
            # Cancelled before its turn.
            return
        job.started = time.monotonic()
        try:
            job.result = job.work()
        # First: some of these exceptions are also an `OSError`.
        except Refused as error:
            job.error = error
        except OSError as error:
            job.error = refusal(error)
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            job.error = error


class SerialQueue:
    """
    Queue of calls that run one after the other, in threads.

    Cancelling the future of a running call does not stop the call, and the next one still waits
    for it. So a file is never closed while a thread uses it.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._busy = False

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in a thread after all earlier ones; see `FileThreads.run`."""
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
                running = self._threads.run(partial(_work_unless_cancelled, work, future))
                running.add_done_callback(partial(self._ended, future))
                return
        self._busy = False

    def _ended(self, future: asyncio.Future[Any], ended: asyncio.Future[Any]) -> None:
        error = ended.exception()
        if not future.done():
            if error is None:
                future.set_result(ended.result())
            else:
                future.set_exception(error)
                # Whoever asked may be gone. Then nobody retrieves the exception, and asyncio
                # would log that.
                future.exception()
        self._next()


def _work_unless_cancelled(work: Callable[[], T], future: asyncio.Future[T]) -> T | None:
    """Run a function of a `SerialQueue`, unless its future has been cancelled."""
    return None if future.cancelled() else work()
