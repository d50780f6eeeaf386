"""
The process that called, as `/proc` shows it.

The launcher sends nothing: what it was started with can be read from outside, by the server
of the same user only. It makes no call of its own until it is answered, so nothing changes
meanwhile.
"""

import os
import signal
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Caller", "CallerGone", "namespaces", "read_caller"]

_STANDARD = (0, 1, 2)
_DELETED = " (deleted)"


class CallerGone(Exception):
    """The process has ended, or is one that this user may not look at."""


@dataclass(frozen=True)
class Caller:
    """What is known of a process that called."""

    pid: int
    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: str
    """As a path; see `cwd_exists`."""
    cwd_exists: bool
    descriptors: frozenset[int]
    """The numbers that it has open, the socket to the server among them."""
    signal_mask: int
    """The signals that it blocks."""
    group: int
    terminal_device: int
    """The device number of the controlling terminal; 0 if there is none."""
    terminal_group: int
    """The process group that has the terminal."""
    namespaces: tuple[int, int]

    @cached_property
    def terminal(self) -> int | None:
        """The standard descriptor that is the controlling terminal, if one is."""
        if not self.terminal_device:
            return None
        for number in _STANDARD:
            try:
                about = os.stat(f"/proc/{self.pid}/fd/{number}")
            except OSError:
                continue
            if stat.S_ISCHR(about.st_mode) and about.st_rdev == self.terminal_device:
                return number
        return None

    @cached_property
    def empty_streams(self) -> tuple[int, ...]:
        """The standard descriptors that are `/dev/null`, or closed, and then get it."""
        null = os.stat(os.devnull)
        found: list[int] = []
        for number in _STANDARD:
            try:
                about = os.stat(f"/proc/{self.pid}/fd/{number}")
            except OSError:
                about = null
            if stat.S_ISCHR(about.st_mode) and about.st_rdev == null.st_rdev:
                found.append(number)
        return tuple(found)

    def free_numbers(self, count: int) -> list[int]:
        """Return the numbers that the next descriptors get there, as the kernel gives them."""
        numbers: list[int] = []
        number = 0
        while len(numbers) < count:
            if number not in self.descriptors:
                numbers.append(number)
            number += 1
        return numbers


def namespaces(pid: int | str) -> tuple[int, int]:
    """Return what stands for the mount and the pid namespace of a process."""
    folder = f"/proc/{pid}/ns"
    return os.stat(f"{folder}/mnt").st_ino, os.stat(f"{folder}/pid").st_ino


def read_caller(pid: int) -> Caller:
    """
    Look at a process.

    Raises:
        CallerGone: It cannot be looked at.
    """
    folder = f"/proc/{pid}"
    try:
        argv = _words(f"{folder}/cmdline")
        environ = dict(entry.split("=", 1) for entry in _words(f"{folder}/environ") if "=" in entry)
        cwd = os.readlink(f"{folder}/cwd")
        mask = _signal_mask(f"{folder}/status")
        # Behind the name, which may have any letters: state, parent, group, session, terminal.
        with open(f"{folder}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        descriptors = frozenset(map(int, os.listdir(f"{folder}/fd")))
        found = namespaces(pid)
    except (OSError, ValueError, IndexError) as error:
        raise CallerGone(str(error)) from error
    if not argv:
        raise CallerGone("it has no arguments")
    return Caller(
        pid=pid,
        argv=argv,
        environ=environ,
        cwd=cwd,
        cwd_exists=not cwd.endswith(_DELETED) or os.path.isdir(cwd),
        descriptors=descriptors,
        signal_mask=mask,
        group=int(fields[2]),
        terminal_device=_device(int(fields[4])),
        terminal_group=int(fields[5]),
        namespaces=found,
    )


def _words(path: str) -> list[str]:
    with open(path, "rb") as file:
        content = file.read()
    return [os.fsdecode(word) for word in content.split(b"\0")[:-1]]


def _signal_mask(path: str) -> int:
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("SigBlk:"):
                return int(line.split()[1], 16) & ~(1 << (signal.SIGCHLD - 1))
    return 0


def _device(number: int) -> int:
    """Return a device number as `stat` has it; `/proc` writes the kernel's own form."""
    number &= 0xFFFFFFFF
    if not number:
        return 0
    major, minor = (number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)
    return os.makedev(major, minor)
