"""The threads of the foreground group of a terminal, found in `/proc` at a bounded cost."""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from holdfast.engine.linux.proc import children_of_thread

__all__ = ["MOST_THREADS", "Foreground", "ThreadFolder"]

# Threads that are visited, at about 25 µs each: one look stays at about a millisecond.
MOST_THREADS = 40


class ThreadFolder(NamedTuple):
    """The directory of one thread in `/proc`."""

    process: str
    """`/proc/PID`."""
    path: str
    """`/proc/PID/task/TID`."""
    in_group: bool
    """True if its process is in the foreground group."""


class Foreground:
    """
    The threads of one process group, each yielded once.

    The main thread of each process comes before all others: it is usually the one that reads.
    Only descendants of the group's leader and of the started process are found. To look at every
    process of the machine would take too long.
    """

    def __init__(self, group: int, pid: int, *, proc: str = "/proc") -> None:
        """
        Args:
            group: The process group.
            pid: The process that was started on the terminal.
            proc: The proc file system.
        """
        self.complete = True
        """False after an iteration that left threads out because there were too many."""
        self._group = group
        self._proc = proc
        self._seen: set[int] = set()
        # Popped from the end: the leader of the group comes first, as it is most likely to read.
        self._processes = [pid, group]
        self._others: deque[ThreadFolder] = deque()

    def __iter__(self) -> Iterator[ThreadFolder]:
        left = MOST_THREADS
        while (thread := self._next()) is not None:
            if left == 0:
                self.complete = False
                return
            left -= 1
            if thread.in_group:
                yield thread
            # The process may have ended since it was listed.
            with suppress(OSError):
                self._processes += children_of_thread(thread.path)

    def _next(self) -> ThreadFolder | None:
        while self._processes:
            process = self._processes.pop()
            if process not in self._seen:
                self._seen.add(process)
                # The process may have ended since it was listed.
                with suppress(OSError):
                    return self._enter(process)
        return self._others.popleft() if self._others else None

    def _enter(self, process: int) -> ThreadFolder:
        """Return the main thread of a process, and keep its other threads for later."""
        folder = f"{self._proc}/{process}"
        in_group = os.getpgid(process) == self._group
        # The link count of a directory is its subdirectories plus 2. It is cheaper than the
        # listing, which takes long with thousands of threads.
        count = os.stat(f"{folder}/task").st_nlink - 2
        if count > MOST_THREADS:
            self.complete = False
        elif count > 1:
            for number in os.listdir(f"{folder}/task"):
                if number != str(process):
                    other = ThreadFolder(folder, f"{folder}/task/{number}", in_group)
                    self._others.append(other)
        return ThreadFolder(folder, f"{folder}/task/{process}", in_group)
