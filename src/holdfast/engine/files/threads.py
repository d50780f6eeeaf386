"""
Runs blocking system calls in threads, including those that never return.

A call on a dead mount cannot be interrupted. So the threads are daemons, which do not keep the
process from exiting, and a stuck thread is replaced. Otherwise there are few of them: they share
the GIL, and many would only delay the event loop.

Each client has a share of the threads. Shares take turns, however many calls one of them queues. A
share whose calls hang waits for them; the others do not. Once a client has disconnected, its stuck
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
from typing import Any, Protocol, TypeVar

from holdfast.base.errors import Refused
from holdfast.engine.files.errno_mapping import refusal
from holdfast.engine.linux.daemon_threads import DaemonThreads

__all__ = ["FileThreads", "SerialQueue", "ThreadShare", "Threads"]

T = TypeVar("T")

CORE = max(2, min(4, os.cpu_count() or 2))
"""Threads that run at the same time, while none is stuck."""

SHARE = 16
"""Running calls of one client; further ones wait."""

OWN_SHARE = 64
"""Running calls of an owner that does not share the threads."""

LIMIT = 512
"""Largest number of threads, stuck ones included; beyond that, calls wait."""

# Seconds after which the tasks of a closed connection have been cancelled.
_FAREWELL = 0.05

STUCK = 0.05
"""Seconds after which a call counts as stuck and another thread may start."""


# Results delivered in one turn of the event loop; the others wait for the next.
_SETTLED_AT_ONCE = 32


class Threads(Protocol):
    """Threads for blocking calls."""

    def run(
        self, work: Callable[[], T], undo: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Run a function in a thread; see `FileThreads.run`."""


class _Job:
    """Queued or running call."""

    __slots__ = ("error", "future", "result", "share", "slow", "started", "undo", "work")

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
        """True while the share waits for its turn to start a call."""

    def run(
        self, work: Callable[[], T], undo: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Run a function in a thread; see `FileThreads.run`."""
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
    wake-up of the loop, which is most of the cost of a thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = DaemonThreads("holdfast-files", LIMIT, kept=CORE)
        self._lock = threading.Lock()
        # Shares that may start a job, each once, in the order of their turns.
        self._line: deque[ThreadShare] = deque()
        # Jobs that have a thread.
        self._running: set[_Job] = set()
        # Threads that work or are about to, and how many of them are stuck.
        self._workers = 0
        self._slow = 0
        self._own = ThreadShare(self, OWN_SHARE)
        self._jobs: set[_Job] = set()
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
            wanted = self._reserve_thread()
        if not (wanted and self._start_thread()):
            self._look_later()
        return future

    async def aclose(self, grace: float = 2.0) -> None:
        """End the threads, after waiting `grace` seconds for running calls."""
        if self._jobs:
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace)
        # A file may still have to be closed later; its thread ends afterwards.
        self._closed = True
        self._threads.close()

    # -- the loop's side

    def _start_thread(self) -> bool:
        """Start the reserved thread; return False if the system cannot."""
        try:
            self._threads.start(self._work)
        except RuntimeError:
            with self._lock:
                self._workers -= 1
            return False
        return True

    def _replace_stuck(self) -> None:
        """Start threads while jobs wait; check again, until none waits."""
        for _ in range(CORE):
            with self._lock:
                wanted = self._reserve_thread()
            if not (wanted and self._start_thread()):
                break
        self._look_later()

    def _look_later(self) -> None:
        if self._line and self._timer is None:
            self._timer = self._loop.call_later(STUCK, self._look_after)

    def _look_after(self) -> None:
        """Mark stuck jobs, and start threads in their place while jobs are waiting."""
        self._timer = None
        now = time.monotonic()
        with self._lock:
            for job in self._running:
                if not job.slow and job.started and now - job.started >= STUCK:
                    job.slow = True
                    self._slow += 1
        self._replace_stuck()

    def _settle(self) -> None:
        # Cleared before the queue is read: a thread that still sees it set has added its job
        # before, so the loop below sees that job.
        self._waking = False
        for _ in range(_SETTLED_AT_ONCE):
            if not self._finished:
                break
            job = self._finished.popleft()
            self._jobs.discard(job)
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
        else:
            self._look_later()

    def _run_undo(self, job: _Job) -> None:
        undo, result = job.undo, job.result
        # Checked by the caller.
        assert undo is not None
        self.run_for(job.share, lambda: undo(result), None)

    # -- turns; the caller holds the lock, or the method takes it

    def _stand_in_line(self, share: ThreadShare) -> None:
        if share.waiting and not share.queued and share.running < share.limit:
            share.queued = True
            self._line.append(share)

    def _reserve_thread(self) -> bool:
        """Count one more thread as at work, if a job may start in it."""
        # After `aclose`, no timer may be left to notice that the others are stuck.
        wanted = bool(self._line) and (self._closed or self._workers - self._slow < CORE)
        self._workers += wanted
        return wanted

    def _next(self, done: _Job | None) -> _Job | None:
        """Count a job as ended, and return the next for its thread; None if there is none."""
        with self._lock:
            was_replaced = False
            if done is not None:
                self._running.discard(done)
                done.share.running -= 1
                self._slow -= done.slow
                self._stand_in_line(done.share)
                was_replaced = done.slow and self._workers - self._slow > CORE
            if was_replaced or not self._line:
                self._workers -= 1
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
        # Later, once the tasks of its connection have cancelled their futures.
        self._loop.call_later(_FAREWELL, self._forget_unwanted, share)

    def _forget_unwanted(self, share: ThreadShare) -> None:
        with self._lock:
            unwanted = [job for job in share.waiting if job.future.done()]
            share.waiting = deque(job for job in share.waiting if not job.future.done())
            if not share.waiting and share.queued:
                share.queued = False
                self._line.remove(share)
            # Room to close files in addition to the stuck calls.
            share.limit += SHARE
            self._stand_in_line(share)
        self._replace_stuck()
        self._jobs.difference_update(unwanted)
        if not self._jobs:
            self._idle.set()

    # -- a thread's side

    def _work(self) -> None:
        job = self._next(None)
        while job is not None:
            self._do(job)
            done, job = job, self._next(job)
            self._finished.append(done)
            # Otherwise the result would stay alive until the thread's next job.
            del done
            if not self._waking:
                self._waking = True
                try:
                    self._loop.call_soon_threadsafe(self._settle)
                except RuntimeError:
                    # The loop is closed, so no caller waits for results.
                    return

    @staticmethod
    def _do(job: _Job) -> None:
        if job.future.done():
            # Cancelled before its turn.
            return
        job.started = time.monotonic()
        try:
            job.result = job.work()
        # Before the others: some of these exceptions are also an `OSError`.
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
                # The caller may be gone. Then the exception is never retrieved, and asyncio would
                # log that.
                future.exception()
        self._next()


def _work_unless_cancelled(work: Callable[[], T], future: asyncio.Future[T]) -> T | None:
    """Run a function of a `SerialQueue`, unless its future has been cancelled."""
    return None if future.cancelled() else work()
