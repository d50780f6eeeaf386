"""
Pools of threads for calls that may never return.

A call on a dead mount cannot be interrupted. So the process exits without waiting for these
threads, and each pool has a bound. No exit of a child wakes a thread that waits for work.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from weakref import WeakSet

from holdfast.engine.linux.child_signals import block_child_signals, restore_signals

__all__ = ["DaemonThreads"]

logger = logging.getLogger(__name__)

Work = Callable[[], object]


class DaemonThreads:
    """Reusable daemon threads; any thread may start work in them."""

    def __init__(
        self, name: str, most: int, *, kept: int | None = None, runs_programs: bool = False
    ) -> None:
        """
        Args:
            name: Name of each thread.
            most: Bound on the number of threads, including those that are stuck.
            kept: Free threads that wait for more work; further ones end. By default none ends: the
                kernel sends the parent-death signal of a child (`PR_SET_PDEATHSIG`) when the thread
                that forked it ends, and programs such as bubblewrap set that signal.
            runs_programs: Some of the work runs programs by `subprocess`. They inherit the signal
                mask, so the thread keeps that of other threads, which takes 2 µs.
        """
        self._name = name
        self._most = most
        self._kept = most if kept is None else kept
        self._runs_programs = runs_programs
        self._forget()
        _pools.add(self)

    def _forget(self) -> None:
        """Reset to no threads: the child of a fork has none of them."""
        self._lock = threading.Lock()
        # A queue per thread: each one here belongs to a thread that waits.
        self._free: list[SimpleQueue[Work | None]] = []
        self._waiting: deque[Work] = deque()
        self._count = 0

    @property
    def is_full(self) -> bool:
        """True if all threads are in use, including those that are stuck for ever."""
        return not self._free and self._count >= self._most

    def start(self, work: Work, *, may_wait: bool = False) -> None:
        """
        Call `work` in a thread.

        Args:
            work: Function to call; what it raises is only logged.
            may_wait: Wait for a thread that is in use if no other is available.

        Raises:
            RuntimeError: All threads are in use, or the system cannot start one now.
        """
        with self._lock:
            if self._free:
                self._free.pop().put(work)
                return
            try:
                self._add(work)
            except RuntimeError:
                if not (may_wait and self._count):
                    raise
                self._waiting.append(work)

    def close(self) -> None:
        """End the free threads, and all others after their work."""
        with self._lock:
            self._kept = 0
            self._count -= len(self._free)
            while self._free:
                self._free.pop().put(None)

    def _add(self, work: Work) -> None:
        if self._count >= self._most:
            raise RuntimeError(f"all {self._most} threads `{self._name}` are in use")
        queue: SimpleQueue[Work | None] = SimpleQueue()
        threading.Thread(target=self._run, args=(queue,), name=self._name, daemon=True).start()
        # Counted only now: a thread that did not start would be counted for ever.
        self._count += 1
        queue.put(work)

    def _run(self, queue: "SimpleQueue[Work | None]") -> None:
        blocked = block_child_signals()
        while True:
            work = queue.get()
            if work is None:
                return
            if self._runs_programs:
                restore_signals(blocked)
            try:
                work()
            except Exception:
                # Survive: the thread is counted, and other work may wait for it.
                logger.exception("the work of a thread failed")
            if self._runs_programs:
                block_child_signals()
            # The thread may be free for long, and must not keep alive what `work` refers to.
            del work
            with self._lock:
                if self._waiting:
                    queue.put(self._waiting.popleft())
                elif len(self._free) < self._kept:
                    self._free.append(queue)
                else:
                    self._count -= 1
                    return


_pools: "WeakSet[DaemonThreads]" = WeakSet()


def _forget_threads() -> None:
    for pool in _pools:
        pool._forget()  # noqa: SLF001 - the same module


os.register_at_fork(after_in_child=_forget_threads)
