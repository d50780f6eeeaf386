"""
Finds out from `/proc` whether the processes on a terminal wait for input.

`TIOCGPGRP` on the master returns the foreground group, in numbers of our own pid namespace, so
this works for a sandbox too. `/proc/PID/task/TID/syscall` shows the system call that a thread
is blocked in. A thread in `read` of the terminal certainly waits for input. A thread in `poll`,
`select` or `epoll_wait` with the terminal in its set may be about to do something else: it
counts only if a second look finds the same call.

A look reads a few files of `/proc`. If `syscall` may not be read, only `wchan` is left, which
says less.
"""

import fcntl
import os
import platform
import re
import struct
import termios
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import NamedTuple

from holdfast.engine.linux.proc import children_of_thread, read_proc, stat_fields
from holdfast.engine.linux.syscall_numbers import MACHINES
from holdfast.events import WaitingFor

__all__ = ["MOST_THREADS", "SECOND_LOOK", "Foreground", "Polling", "look"]

# Threads that are visited, at about 25 µs each: one look stays at about a millisecond.
MOST_THREADS = 40


class _ThreadFolder(NamedTuple):
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
        self._others: deque[_ThreadFolder] = deque()

    def __iter__(self) -> Iterator[_ThreadFolder]:
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

    def _next(self) -> _ThreadFolder | None:
        while self._processes:
            process = self._processes.pop()
            if process not in self._seen:
                self._seen.add(process)
                # The process may have ended since it was listed.
                with suppress(OSError):
                    return self._enter(process)
        return self._others.popleft() if self._others else None

    def _enter(self, process: int) -> _ThreadFolder:
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
                    other = _ThreadFolder(folder, f"{folder}/task/{number}", in_group)
                    self._others.append(other)
        return _ThreadFolder(folder, f"{folder}/task/{process}", in_group)


# Seconds between the two looks at a thread in `poll`.
SECOND_LOOK = 0.08

# Descriptors of one set that are compared with the terminal, at two system calls each.
_MOST_DESCRIPTORS = 256

# Bytes that are read of an `fd_set`; a program may pass a larger one.
_LARGEST_SET = 8192

# `TIOCGPTN`, which returns the number of a pseudo-terminal. Python has no constant for it.
_GET_NUMBER = 0x80045430

# `/dev/tty`: the controlling terminal of the process that opens it.
_DEV_TTY = os.makedev(5, 0)

# A stack pointer below it belongs to a 32-bit program, whose system calls have other numbers.
_LOWEST_64_BIT_STACK = 1 << 32

# Bits of an address. On aarch64 the top byte may be a tag.
_ADDRESS = (1 << 56) - 1

# The same value for `poll` and for `epoll`.
_POLLIN = 0x001

# Parts of the names of kernel functions (`wchan`) that wait for a set of descriptors.
_POLL_WAITS = (b"poll", b"do_select")

# A line of an epoll instance's `fdinfo`: a watched descriptor and its event mask.
_WATCHED = re.compile(rb"^tfd:\s*(\d+) events:\s*([0-9a-f]+)", re.MULTILINE)

_CALLS = {
    number: name
    for name, number in (
        MACHINES[platform.machine()].numbers if platform.machine() in MACHINES else {}
    ).items()
}


class Polling(NamedTuple):
    """Threads that wait for a set of descriptors which contains the terminal."""

    mode: WaitingFor
    """The answer if a second look confirms that they wait for input."""
    calls: frozenset[tuple[str, bytes]]
    """Directory of each thread, and its system call with all arguments."""

    def confirmed(self, second: "WaitingFor | Polling") -> WaitingFor:
        """Return the final answer: a thread counts only if both looks found the same call."""
        if isinstance(second, WaitingFor):
            return second
        return second.mode if self.calls & second.calls else WaitingFor.NONE


def look(master: int, pid: int, *, proc: str = "/proc") -> WaitingFor | Polling:
    """
    Look once whether the foreground group of a terminal waits for input.

    Args:
        master: The master of the terminal.
        pid: The process that was started on it. The group is searched among its descendants
            and those of the group's leader.
        proc: The proc file system.

    Returns:
        The answer, or a `Polling` that needs a second look after `SECOND_LOOK` seconds.
    """
    try:
        group = os.tcgetpgrp(master)
        terminal = _Terminal(master)
    except OSError:
        # No process has the slave open.
        return WaitingFor.UNKNOWN
    if group <= 0:
        # No session has it as its controlling terminal, so there is no foreground group.
        return WaitingFor.UNKNOWN
    polling: set[tuple[str, bytes]] = set()
    unknown = False
    foreground = Foreground(group, pid, proc=proc)
    for folder in foreground:
        found = _Thread(folder).wait_for(terminal)
        if found is _ThreadWait.READS:
            return _mode(master)
        if found is _ThreadWait.UNREADABLE:
            unknown = True
        elif found is not None:
            polling.add((folder.path, found))
    if polling:
        return Polling(_mode(master), frozenset(polling))
    return WaitingFor.UNKNOWN if unknown or not foreground.complete else WaitingFor.NONE


def _mode(master: int) -> WaitingFor:
    """
    Return the input mode of the terminal: a line, a password or single keys.

    Call this after a program was found to read: programs set the mode just before they read.
    """
    try:
        flags = termios.tcgetattr(master)[3]
    except termios.error:
        # No process has the slave open now.
        return WaitingFor.UNKNOWN
    if not flags & termios.ICANON:
        return WaitingFor.KEY
    return WaitingFor.LINE if flags & termios.ECHO else WaitingFor.PASSWORD


class _Terminal:
    """Identity of a terminal's slave, to recognise it among the descriptors of processes."""

    def __init__(self, master: int) -> None:
        (number,) = struct.unpack("I", fcntl.ioctl(master, _GET_NUMBER, bytes(4)))
        found = os.stat(f"/dev/pts/{number}")
        # Device and inode, not the name: a sandbox has its own devpts, with the same names.
        self._file = (found.st_dev, found.st_ino)

    def is_at(self, descriptor: str) -> bool:
        """Return True if a descriptor in `/proc/PID/fd` is this terminal."""
        try:
            # Only devices get a `stat`: that of a file on a dead network mount would block.
            if not os.readlink(descriptor).startswith("/dev/"):
                return False
            found = os.stat(descriptor)
        except (FileNotFoundError, ProcessLookupError):
            return False
        # The process is in the foreground group of this terminal, so `/dev/tty` means this one.
        return (found.st_dev, found.st_ino) == self._file or found.st_rdev == _DEV_TTY


class _ThreadWait(Enum):
    """Finding of one look at a thread that needs no second look."""

    READS = 1
    UNREADABLE = 2


class _Thread:
    """A thread of the foreground group."""

    def __init__(self, folder: _ThreadFolder) -> None:
        self._process = folder.process
        self._path = folder.path

    def wait_for(self, terminal: _Terminal) -> bytes | _ThreadWait | None:
        """
        Return the way it waits for the terminal, or None if it does not.

        For a `poll` or similar call with the terminal in its set, that is the text of the call.
        """
        try:
            call = read_proc(f"{self._path}/syscall")
        except OSError:
            # No permission, no such file in this kernel, or the thread has ended.
            return self._by_wait_channel(terminal)
        try:
            return self._by_call(call, terminal)
        except (FileNotFoundError, ProcessLookupError):
            # The thread has ended meanwhile.
            return None
        except OSError:
            return _ThreadWait.UNREADABLE

    def _by_call(self, call: bytes, terminal: _Terminal) -> bytes | _ThreadWait | None:
        words = call.split()
        if len(words) != 9:
            # The file says `running`, or the thread is blocked outside a system call.
            return None
        number, *arguments, stack, _ = (int(word, 0) for word in words)
        if stack < _LOWEST_64_BIT_STACK or not _CALLS:
            return self._by_wait_channel(terminal)
        name = _CALLS.get(number)
        if name == "restart_syscall" and b"poll" in read_proc(f"{self._path}/wchan"):
            # A `poll` that the kernel restarted after SIGSTOP; its arguments are still there.
            name = "poll"
        match name:
            case "read" | "readv":
                if self._has(terminal, arguments[0]) and self._sleeps():
                    return _ThreadWait.READS
                return None
            case "poll" | "ppoll":
                waits_for = self._polled(arguments[0], arguments[1])
            case "select" | "pselect6":
                waits_for = self._selected(arguments[1], arguments[0])
            case "epoll_wait" | "epoll_pwait" | "epoll_pwait2":
                waits_for = self._watched(arguments[0])
            case _:
                return None
        found = any(self._has(terminal, fd) for fd in islice(waits_for, _MOST_DESCRIPTORS))
        return call if found and self._sleeps() else None

    def _by_wait_channel(self, terminal: _Terminal) -> bytes | _ThreadWait | None:
        """Guess from the kernel function in `wchan`, if `syscall` cannot be read."""
        try:
            channel = read_proc(f"{self._path}/wchan")
            if channel == b"n_tty_read":
                return _ThreadWait.READS
            if channel == b"wait_woken":
                # A read from a socket has the same channel.
                return _ThreadWait.UNREADABLE if self._has_socket() else _ThreadWait.READS
        except (FileNotFoundError, ProcessLookupError):
            # The thread has ended meanwhile.
            return None
        except OSError:
            return _ThreadWait.UNREADABLE
        hidden = channel in (b"", b"0") or any(part in channel for part in _POLL_WAITS)
        return _ThreadWait.UNREADABLE if hidden else None

    def _has(self, terminal: _Terminal, fd: int) -> bool:
        return terminal.is_at(f"{self._process}/fd/{fd & 0xFFFF_FFFF}")

    def _sleeps(self) -> bool:
        """Return False for a stopped thread, whose `syscall` still shows its last call."""
        return stat_fields(self._path)[0] == b"S"

    def _has_socket(self) -> bool:
        for number, name in enumerate(os.listdir(f"{self._process}/fd")):
            target = os.readlink(f"{self._process}/fd/{name}")
            if target.startswith("socket:") or number >= _MOST_DESCRIPTORS:
                return True
        return False

    def _polled(self, address: int, count: int) -> Iterator[int]:
        size = min(count, _MOST_DESCRIPTORS) * 8
        for fd, wanted, _ in struct.iter_unpack("ihh", self._memory(address, size)):
            if fd >= 0 and wanted & _POLLIN:
                yield fd

    def _selected(self, address: int, count: int) -> Iterator[int]:
        if not address:
            return
        # An `fd_set` is an array of words. On a little-endian machine its bytes have the same
        # order as its bits.
        size = min((count + 7) // 8, _LARGEST_SET)
        for at, bits in enumerate(self._memory(address, size)):
            yield from (at * 8 + bit for bit in range(8) if bits >> bit & 1)

    def _watched(self, fd: int) -> Iterator[int]:
        listing = read_proc(f"{self._process}/fdinfo/{fd & 0xFFFF_FFFF}")
        for number, wanted in _WATCHED.findall(listing):
            if int(wanted, 16) & _POLLIN:
                yield int(number)

    def _memory(self, address: int, size: int) -> bytes:
        memory = os.open(f"{self._process}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.pread(memory, size, address & _ADDRESS)
        finally:
            os.close(memory)
        # It was unmapped meanwhile.
        return found if len(found) == size else b""
