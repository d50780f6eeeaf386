"""
Threads for system calls that may take long, or for ever.

A call on a dead mount cannot be ended from outside. So the threads are daemons,
which nobody waits for at the end, and one that does not come back is replaced.
Otherwise there are few: what is read or walked goes through one interpreter
anyway, and many threads would only keep the event loop from its turn.

Whoever asks for work has a share of the threads. Shares get their turns one after the other,
however much one of them asks for. A share whose calls do not come back waits for them; the
others do not. One that has ended no longer counts, and its threads are given up.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from holdfast.errors import Refused
from holdfast.filesystem.errno_mapping import refusal

__all__ = ["FileThreads", "SerialQueue", "ThreadShare", "Threads"]

T = TypeVar("T")

CORE = 4
"""Threads that work side by side."""

SHARE = 16
"""Calls of one client that may be under way; its next ones wait for these."""

OWN_SHARE = 64
"""The same for whoever has all threads for itself."""

LIMIT = 512
"""Threads in all, the stuck ones included; beyond that, work waits."""

_FAREWELL = 0.05
"""Seconds after which the tasks of a connection that has ended have ended, too."""

STUCK = 0.05
"""Seconds after which a call no longer counts among the `CORE`, so that another may run."""


class Threads(Protocol):
    """The threads that do work on files."""

    def run(
        self, work: Callable[[], T], undo: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Run something in a thread; see `FileThreads.run`."""


class _Job:
    """One piece of work, on its way to a thread and back."""

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
        # Set by the loop: another thread may run in place of this one's.
        self.slow = False
        # Set by its thread, which then ends because of that.
        self.last = False
        self.result: Any = None
        self.error: BaseException | None = None


class ThreadShare:
    """The work of one client. What one asks for holds up no other."""

    def __init__(self, threads: "FileThreads", limit: int = SHARE) -> None:
        self._threads = threads
        self.limit = limit
        # These three are guarded by the lock of the threads.
        self.waiting: deque[_Job] = deque()
        self.running = 0
        self.queued = False
        """True while it stands in the line for its next turn."""

    def run(
        self, work: Callable[[], T], undo: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Run something in a thread; see `FileThreads.run`."""
        return self._threads.run_for(self, work, undo)

    def leave(self) -> None:
        """
        Give the client's calls that do not come back up, since it has left.

        What is still to be done for it is to let go of files that it had open. That does not
        have to wait for these calls.
        """
        self._threads.give_up(self)


class FileThreads:
    """
    Runs work in threads of its own, for one event loop.

    Results that come together are handed over together: pipelined requests share
    the wake-up of the loop, which is the larger part of what a thread costs.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # One entry for each job that waits, or `None` for a thread to end. An entry whose job
        # has to wait for others of its share is taken out and counted, until one of them ends.
        self._tokens: SimpleQueue[bool | None] = SimpleQueue()
        self._withheld = 0
        # Jobs that threads are at.
        self._running: set[_Job] = set()
        # Shares whose turn is to come, each once; those that have enough under way are not there.
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
        Run something in a thread.

        Work that nobody waits for any more when its turn comes is not begun.

        Args:
            work: Takes nothing; what it raises is raised to who awaits, an `OSError`
                as the refusal it means.
            undo: Called with the result, in a thread, if nobody waits for it any more.
        """
        return self.run_for(self._own, work, undo)

    def run_for(
        self, share: ThreadShare, work: Callable[[], T], undo: Callable[[T], None] | None
    ) -> asyncio.Future[T]:
        """As `run`, at the expense of a share."""
        future: asyncio.Future[T] = self._loop.create_future()
        job = _Job(share, future, work, undo)
        self._jobs.add(job)
        with self._lock:
            share.waiting.append(job)
            self._stand_in_line(share)
        self._tokens.put(True)
        if self._closed:
            # A file that was being opened is let go of after the end, too. The threads have
            # been told to end: one more does this, and then ends as well.
            self._tokens.put(None)
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
            self._tokens.put(None)

    # -- the loop's side

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="holdfast-files", daemon=True).start()

    def _look_after(self) -> None:
        """Replace threads that are stuck, while there is work for more."""
        self._timer = None
        now = time.monotonic()
        with self._lock:
            running = list(self._running)
        for job in running:
            if job.started and now - job.started >= STUCK:
                job.slow = True
        slow = sum(job.slow for job in running)
        # Not those that wait for others of their share: no thread could take them.
        waiting = self._tokens.qsize()
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
                if job.undo is not None and job.error is None and job.started:
                    self._run_undo(job)
            elif job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        if not self._jobs:
            self._idle.set()
        elif self._timer is None and not self._closed and self._tokens.qsize():
            self._timer = self._loop.call_later(STUCK, self._look_after)

    def _run_undo(self, job: _Job) -> None:
        undo, result = job.undo, job.result
        assert undo is not None  # the caller looked
        self.run_for(job.share, lambda: undo(result), None)

    # -- turns, under the lock

    def _stand_in_line(self, share: ThreadShare) -> None:
        if share.waiting and not share.queued and share.running < share.limit:
            share.queued = True
            self._line.append(share)

    def _take(self) -> _Job | None:
        """Return the next job of the share whose turn it is; nothing if none may begin."""
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
        """Forget what a share waits for, but for what has to be let go of."""
        # By then nobody waits for what was asked for.
        self._loop.call_later(_FAREWELL, self._forget_unwanted, share)

    def _forget_unwanted(self, share: ThreadShare) -> None:
        with self._lock:
            unwanted = [job for job in share.waiting if job.future.done()]
            share.waiting = deque(job for job in share.waiting if not job.future.done())
            if not share.waiting and share.queued:
                share.queued = False
                self._line.remove(share)
            self._withheld = max(self._withheld - len(unwanted), 0)
            share.limit += SHARE
            self._stand_in_line(share)
            self._offer(len(share.waiting))
        self._jobs.difference_update(unwanted)
        if not self._jobs:
            self._idle.set()

    def _offer(self, jobs: int) -> None:
        """Put back entries that were withheld."""
        for _ in range(min(jobs, self._withheld)):
            self._withheld -= 1
            self._tokens.put(True)

    def _give_back(self, job: _Job) -> None:
        """Note the end of a job; what had to wait for it may begin."""
        share = job.share
        with self._lock:
            self._running.discard(job)
            share.running -= 1
            self._stand_in_line(share)
            if share.waiting:
                self._offer(1)

    # -- a thread's side

    def _work(self) -> None:
        while self._tokens.get() is not None:
            job = self._take()
            if job is None:
                continue
            self._do(job)
            self._give_back(job)
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

    @staticmethod
    def _do(job: _Job) -> None:
        if job.future.done():
            return  # its client has left
        job.started = time.monotonic()
        try:
            job.result = job.work()
        except Refused as error:  # it may be an `OSError`, too
            job.error = error
        except OSError as error:
            job.error = refusal(error)
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            job.error = error


class SerialQueue:
    """
    Work that is done in order: one piece begins when the one before it has ended.

    Whoever stops waiting for a piece that has begun does not stop it, and the next
    one still comes after it: what a thread uses is not closed under its hands.
    """

    def __init__(self, threads: Threads) -> None:
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
        self._next()


def _work_unless_cancelled(work: Callable[[], T], future: asyncio.Future[T]) -> T | None:
    """Do a piece of a lane, unless nobody waits for it any more when its turn has come."""
    return None if future.cancelled() else work()
