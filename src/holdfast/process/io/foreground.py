"""The threads of the foreground group of a terminal, found in `/proc` at a bounded cost."""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

__all__ = ["MOST_THREADS", "Foreground", "ThreadFolder", "read_proc"]

MOST_THREADS = 40
"""Threads that are visited, at about 25 µs each."""


class ThreadFolder(NamedTuple):
    """Where the kernel shows one thread."""

    process: str
    """`/proc/PID`."""
    path: str
    """`/proc/PID/task/TID`."""
    in_group: bool
    """True if its process is in the foreground group."""


class Foreground:
    """
    The threads of one process group, each yielded once.

    The first thread of each process comes before all others: it is the one that reads, as a
    rule. Only what is below the group's leader and below the process that was started is
    found. To look at every process of a machine would take too long.
    """

    def __init__(self, group: int, pid: int, *, proc: str = "/proc") -> None:
        """
        Args:
            group: The process group.
            pid: The process that was started on the terminal.
            proc: Where the kernel shows its processes.
        """
        self.complete = True
        """False after an iteration that left some out, since there are too many."""
        self._group = group
        self._proc = proc
        self._seen: set[int] = set()
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
            # It has ended meanwhile.
            with suppress(OSError):
                self._processes += map(int, read_proc(f"{thread.path}/children").split())

    def _next(self) -> ThreadFolder | None:
        while self._processes:
            process = self._processes.pop()
            if process not in self._seen:
                self._seen.add(process)
                # It has ended meanwhile.
                with suppress(OSError):
                    return self._enter(process)
        return self._others.popleft() if self._others else None

    def _enter(self, process: int) -> ThreadFolder:
        """Return the first thread of a process, and keep the others for later."""
        folder = f"{self._proc}/{process}"
        in_group = os.getpgid(process) == self._group
        # A folder has a link from each folder in it, besides its name and its own `.`. The
        # list itself takes long if there are thousands.
        count = os.stat(f"{folder}/task").st_nlink - 2
        if count > MOST_THREADS:
            self.complete = False
        elif count > 1:
            for number in os.listdir(f"{folder}/task"):
                if number != str(process):
                    other = ThreadFolder(folder, f"{folder}/task/{number}", in_group)
                    self._others.append(other)
        return ThreadFolder(folder, f"{folder}/task/{process}", in_group)


def read_proc(path: str) -> bytes:
    """
    Return a small file of the kernel's.

    Raises:
        OSError: It cannot be read, or its process has ended.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 65536)
    finally:
        os.close(file)
