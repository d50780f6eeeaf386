"""
Tells whether the processes on a terminal wait for input: one look at the kernel.

`TIOCGPGRP` on the master names the foreground group, by the numbers of our own pid namespace,
so this works from outside of a sandbox too. `/proc/PID/task/TID/syscall` shows the system
call that a thread is blocked in. A thread in `read` of the terminal waits for input, which is
certain. One in `poll`, `select` or `epoll_wait` with the terminal in its set may be about to
do something else: it counts only if a second look finds the same call.

A look reads some files of `/proc` and waits for nothing. Where `syscall` may not be read,
`wchan` is all there is, which tells less.
"""

import fcntl
import os
import platform
import re
import struct
import termios
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import NamedTuple

from holdfast.events import WaitingFor
from holdfast.process.io.foreground import Foreground, ThreadFolder, read_proc
from holdfast.sandbox.bubblewrap.init.syscall_numbers import MACHINES

__all__ = ["SECOND_LOOK", "Polling", "look"]

SECOND_LOOK = 0.08
"""Seconds between the two looks at a `poll`."""

# Descriptors of one set that are compared with the terminal.
_MOST_DESCRIPTORS = 256

# Bytes of a set of `select` that are read.
_LARGEST_SET = 8192

# `TIOCGPTN`, the number of a terminal, for which Python has no name.
_GET_NUMBER = 0x80045430

# `/dev/tty`: the controlling terminal of whoever opened it.
_DEV_TTY = os.makedev(5, 0)

# A stack below it is that of a 32-bit program, whose system calls have other numbers.
_LOWEST_64_BIT_STACK = 1 << 32

# The bits of an address; the ones above may be a tag on aarch64.
_ADDRESS = (1 << 56) - 1

# The same number for `poll` and for `epoll`.
_POLLIN = 0x001

# Parts of the names of kernel functions in which a set of descriptors is waited for.
_POLL_WAITS = (b"poll", b"do_select")

# One descriptor of an epoll set in `fdinfo`, and what it is watched for.
_WATCHED = re.compile(rb"^tfd:\s*(\d+) events:\s*([0-9a-f]+)", re.MULTILINE)

_CALLS = {
    number: name
    for name, number in (
        MACHINES[platform.machine()].numbers if platform.machine() in MACHINES else {}
    ).items()
}


class Polling(NamedTuple):
    """The threads that wait for a set of descriptors which has the terminal in it."""

    mode: WaitingFor
    """The answer, if it is input that they wait for."""
    calls: frozenset[tuple[str, bytes]]
    """Each thread, and its system call with all arguments."""

    def confirmed(self, second: "WaitingFor | Polling") -> WaitingFor:
        """Return the answer after a second look: what a thread waits for in both of them."""
        if isinstance(second, WaitingFor):
            return second
        return second.mode if self.calls & second.calls else WaitingFor.NONE


def look(master: int, pid: int, *, proc: str = "/proc") -> WaitingFor | Polling:
    """
    Look once at what the foreground of a terminal waits for.

    Args:
        master: The terminal.
        pid: The process that was started on it; the group is searched below it and below
            the group's leader.
        proc: Where the kernel shows its processes.

    Returns:
        The answer, or a `Polling` that needs a second look after `SECOND_LOOK` seconds.
    """
    try:
        group = os.tcgetpgrp(master)
        terminal = _Terminal(master)
    except OSError:
        # Nobody has it open.
        return WaitingFor.UNKNOWN
    if group <= 0:
        # It is nobody's controlling terminal, so nobody's foreground.
        return WaitingFor.UNKNOWN
    polling: set[tuple[str, bytes]] = set()
    unknown = False
    foreground = Foreground(group, pid, proc=proc)
    for folder in foreground:
        found = _Thread(folder).wait_for(terminal)
        if found is _Found.READS:
            return _mode(master)
        if found is _Found.UNREADABLE:
            unknown = True
        elif found is not None:
            polling.add((folder.path, found))
    if polling:
        return Polling(_mode(master), frozenset(polling))
    return WaitingFor.UNKNOWN if unknown or not foreground.complete else WaitingFor.NONE


def _mode(master: int) -> WaitingFor:
    """
    Return what a program gets that reads the terminal.

    Call it after the program was found to read: it may set the mode just before.
    """
    try:
        flags = termios.tcgetattr(master)[3]
    except termios.error:
        # Nobody has it open any more.
        return WaitingFor.UNKNOWN
    if not flags & termios.ICANON:
        return WaitingFor.KEY
    return WaitingFor.LINE if flags & termios.ECHO else WaitingFor.PASSWORD


class _Terminal:
    """A terminal as others have it open."""

    def __init__(self, master: int) -> None:
        (number,) = struct.unpack("I", fcntl.ioctl(master, _GET_NUMBER, bytes(4)))
        found = os.stat(f"/dev/pts/{number}")
        # A sandbox has a file system of terminals of its own, which counts from 0 as well.
        self._file = (found.st_dev, found.st_ino)

    def is_at(self, descriptor: str) -> bool:
        """Return True if a descriptor in `/proc/PID/fd` is this terminal."""
        try:
            # Only devices are looked at further: `stat` of a file on a network that is down
            # would wait for it.
            if not os.readlink(descriptor).startswith("/dev/"):
                return False
            found = os.stat(descriptor)
        except (FileNotFoundError, ProcessLookupError):
            return False
        # It is in the foreground group of this terminal, so its `/dev/tty` is this one.
        return (found.st_dev, found.st_ino) == self._file or found.st_rdev == _DEV_TTY


class _Found(Enum):
    """What is certain of a thread after one look."""

    READS = 1
    UNREADABLE = 2


class _Thread:
    """A thread of the foreground group."""

    def __init__(self, folder: ThreadFolder) -> None:
        self._process = folder.process
        self._path = folder.path

    def wait_for(self, terminal: _Terminal) -> bytes | _Found | None:
        """
        Return how it waits for the terminal, or `None` if it does not.

        A system call that has the terminal in a set is returned with its arguments.
        """
        try:
            call = read_proc(f"{self._path}/syscall")
        except OSError:
            # Not permitted, not in this kernel, or gone.
            return self._by_wait_channel(terminal)
        try:
            return self._by_call(call, terminal)
        except (FileNotFoundError, ProcessLookupError):
            # It has ended meanwhile.
            return None
        except OSError:
            return _Found.UNREADABLE

    def _by_call(self, call: bytes, terminal: _Terminal) -> bytes | _Found | None:
        words = call.split()
        if len(words) != 9:
            # `running`, or blocked outside of a system call.
            return None
        number, *arguments, stack, _ = (int(word, 0) for word in words)
        if stack < _LOWEST_64_BIT_STACK or not _CALLS:
            return self._by_wait_channel(terminal)
        name = _CALLS.get(number)
        if name == "restart_syscall" and b"poll" in read_proc(f"{self._path}/wchan"):
            # Goes on after a stop; its arguments are still in place.
            name = "poll"
        match name:
            case "read" | "readv":
                if self._has(terminal, arguments[0]) and self._sleeps():
                    return _Found.READS
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

    def _by_wait_channel(self, terminal: _Terminal) -> bytes | _Found | None:
        """Return what the name of a kernel function tells, where nothing else does."""
        try:
            channel = read_proc(f"{self._path}/wchan")
            if channel == b"n_tty_read":
                return _Found.READS
            if channel == b"wait_woken":
                # So does a read from a socket show up.
                return _Found.UNREADABLE if self._has_socket() else _Found.READS
        except (FileNotFoundError, ProcessLookupError):
            # It has ended meanwhile.
            return None
        except OSError:
            return _Found.UNREADABLE
        hidden = channel in (b"", b"0") or any(part in channel for part in _POLL_WAITS)
        return _Found.UNREADABLE if hidden else None

    def _has(self, terminal: _Terminal, fd: int) -> bool:
        return terminal.is_at(f"{self._process}/fd/{fd & 0xFFFF_FFFF}")

    def _sleeps(self) -> bool:
        """Return True unless it is stopped: the call it was in is still shown then."""
        return read_proc(f"{self._path}/stat").rpartition(b")")[2].split()[0] == b"S"

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
        # A set is an array of machine words, the lowest bit first; so are its bytes.
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
