"""
Figures of /proc and of the kernel's clocks about a server's processes.

A server may have several processes, and its commands are its descendants, too. The request of a
measurement distinguishes them: a process that runs a requested argv, and everything below it, is a
command; the rest of the tree is the server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Memory",
    "WaitingForACore",
    "cpu_seconds",
    "end",
    "memory",
    "on_one_core",
    "peak_memory",
    "pin",
    "reset_peaks",
    "tree",
]

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessRef:
    """A process, distinguished from a later one with the same pid."""

    pid: int
    started: str
    """Clock ticks since the machine's start, as in /proc."""


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on, or None if the process is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name before them may hold blanks and parentheses; nothing after it does.
    return text[text.rindex(")") + 2 :].split()


def _ref(pid: int) -> ProcessRef | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else ProcessRef(pid, fields[19])


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            found.setdefault(int(fields[1]), []).append(int(entry.name))
    return found


def _argv(pid: int) -> list[str]:
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(part) for part in raw.split(b"\0")[:-1]]


def tree(root: int, *, without: Sequence[str] | None = None) -> list[ProcessRef]:
    """Return a process and its descendants, without those that run an argv and all below them."""
    children = _children()
    found: list[ProcessRef] = []
    pending = [root]
    while pending:
        pid = pending.pop()
        ref = _ref(pid)
        if ref is None or (without is not None and _argv(pid) == list(without)):
            continue
        found.append(ref)
        pending.extend(children.get(pid, ()))
    return found


def pin(pids: Iterable[int], core: int) -> None:
    """Keep all threads of the processes, and of threads that they will start, on one core."""
    for pid in pids:
        for task in (_PROC / str(pid) / "task").iterdir():
            with suppress(ProcessLookupError):  # threads come and go
                os.sched_setaffinity(int(task.name), {core})


@contextmanager
def on_one_core(pids: Iterable[int]) -> Iterator[None]:
    """
    Put this process and a server on one core.

    Across cores a round trip is mostly the time in which an idle core wakes up, which says nothing
    about the server.
    """
    cores = os.sched_getaffinity(0)
    core = max(cores)
    pin(pids, core)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def cpu_seconds(pids: Iterable[int]) -> float:
    """
    Return the user and system time the processes have used so far.

    Read from each process's CPU clock: the same as utime + stime of /proc/PID/stat, ended threads
    included, in nanoseconds instead of ticks. Children are excluded, whether reaped or not.
    """
    # As clock_getcpuclockid(3) computes it; Python only has that for threads.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


class WaitingForACore:
    """Measures how long the calling thread was ready to run while others had the cores."""

    def __init__(self) -> None:
        self._fd = os.open(_PROC / "thread-self" / "schedstat", os.O_RDONLY)

    def seconds(self) -> float:
        """Return the seconds so far; takes a few microseconds."""
        # On the CPU, waiting for it, and how often: in nanoseconds, the first two.
        return int(os.pread(self._fd, 64, 0).split()[1]) / 1e9

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of a group of processes in bytes, counted in three ways."""

    pss: int
    """Shared pages divided among all processes of the machine that map them."""

    rss: int
    """Shared pages counted in full for each process."""

    alone: int
    """
    Shared pages counted once: the usage on a machine where nothing else runs.

    PSS is smaller if another process maps the same files. The benchmark itself is such a process to
    a server written in Python.
    """


def memory(pids: Iterable[int]) -> Memory:
    """Add up the memory of processes."""
    pss = rss = private = 0
    files: dict[tuple[str, str, str], int] = {}
    for pid in pids:
        rollup = _kib_fields((_PROC / str(pid) / "smaps_rollup").read_text())
        pss += rollup["Pss"]
        rss += rollup["Rss"]
        # Pages without a file are shared only within the group, by fork.
        private += rollup["Pss_Anon"] + rollup["Pss_Shmem"]
        for key, size in _file_mappings((_PROC / str(pid) / "smaps").read_text()):
            files[key] = max(files.get(key, 0), size)
    return Memory(pss=pss * 1024, rss=rss * 1024, alone=(private + sum(files.values())) * 1024)


def reset_peaks(pid: int | None = None) -> None:
    """Reset the peak memory of a process, by default this one, and of its descendants."""
    for ref in tree(pid or os.getpid()):
        (_PROC / str(ref.pid) / "clear_refs").write_text("5")


def peak_memory(pid: int | None = None, *, without: Sequence[str] | None = None) -> int:
    """Return the sum of the peak memory (RSS) of a process and its descendants since then."""
    return 1024 * sum(
        _kib_fields((_PROC / str(ref.pid) / "status").read_text())["VmHWM"]
        for ref in tree(pid or os.getpid(), without=without)
    )


def _kib_fields(text: str) -> dict[str, int]:
    fields: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        value = rest.split()
        if len(value) == 2 and value[1] == "kB":
            fields[name] = int(value[0])
    return fields


def _file_mappings(smaps: str) -> Iterable[tuple[tuple[str, str, str], int]]:
    """Yield (device, inode, offset) of each mapped file range, and its resident KiB."""
    key: tuple[str, str, str] | None = None
    resident = 0
    for line in smaps.splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):  # ADDRESS PERMS OFFSET DEVICE INODE [PATH]
            key = (fields[3], fields[4], fields[2]) if fields[4] != "0" else None
        elif fields[0] == "Rss:":
            resident = int(fields[1])
        elif fields[0] == "Anonymous:" and key is not None:
            yield key, resident - int(fields[1])


def end(refs: Iterable[ProcessRef], signal_number: int) -> None:
    """Send a signal to those processes that are still running."""
    for ref in refs:
        if _ref(ref.pid) == ref:
            with suppress(ProcessLookupError):
                os.kill(ref.pid, signal_number)
