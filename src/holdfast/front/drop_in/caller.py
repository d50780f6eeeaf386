"""
Reads the state of a calling launcher from `/proc`.

The launcher sends nothing: a server of the same user can read its arguments, environment and
descriptors from outside. The launcher waits for the response, so nothing changes meanwhile.
"""

import os
import signal
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from holdfast.engine.linux.proc import stat_fields

__all__ = ["Caller", "CallerGone", "namespaces", "read_caller"]

_STANDARD = (0, 1, 2)
_DELETED = " (deleted)"


class CallerGone(Exception):
    """The process has ended, or this user may not read its files in `/proc`."""


@dataclass(frozen=True)
class Caller:
    """State of a launcher."""

    pid: int
    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: str
    """Path of its working directory; see `cwd_exists`."""
    cwd_exists: bool
    """False if the working directory was removed."""
    descriptors: frozenset[int]
    """Open descriptors, including the socket to the server."""
    signal_mask: int
    """Blocked signals, as a bit mask."""
    group: int
    """Process group."""
    terminal_device: int
    """Device number of the controlling terminal; 0 if there is none."""
    terminal_group: int
    """Foreground process group of the terminal."""
    namespaces: tuple[int, int]
    """Inode numbers of its mount and pid namespaces."""

    @cached_property
    def terminal(self) -> int | None:
        """Standard descriptor of the controlling terminal, or None."""
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
    def terminals(self) -> frozenset[int]:
        """Device numbers of the terminals that a command of this caller can write to."""
        found = {self.terminal_device} if self.terminal_device else set()
        for number in _STANDARD:
            with suppress(OSError):
                about = os.stat(f"/proc/{self.pid}/fd/{number}")
                if stat.S_ISCHR(about.st_mode):
                    found.add(about.st_rdev)
        return frozenset(found)

    @cached_property
    def empty_streams(self) -> tuple[int, ...]:
        """Standard descriptors that are `/dev/null`; closed ones are opened as that, too."""
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
        """Return the numbers of its next descriptors: the kernel takes the lowest free ones."""
        numbers: list[int] = []
        number = 0
        while len(numbers) < count:
            if number not in self.descriptors:
                numbers.append(number)
            number += 1
        return numbers


def namespaces(pid: int | str) -> tuple[int, int]:
    """Return the inode numbers of the mount and pid namespaces of a process."""
    folder = f"/proc/{pid}/ns"
    return os.stat(f"{folder}/mnt").st_ino, os.stat(f"{folder}/pid").st_ino


def read_caller(pid: int) -> Caller:
    """
    Return the state of a process.

    Raises:
        CallerGone: The process has ended, or is another user's.
    """
    folder = f"/proc/{pid}"
    try:
        argv = _words(f"{folder}/cmdline")
        environ = dict(entry.split("=", 1) for entry in _words(f"{folder}/environ") if "=" in entry)
        cwd = os.readlink(f"{folder}/cwd")
        mask = _signal_mask(f"{folder}/status")
        # State, parent, group, session, terminal, foreground group.
        fields = stat_fields(folder)
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
                # Without SIGCHLD: a shell with it blocked would never see its children end.
                return int(line.split()[1], 16) & ~(1 << (signal.SIGCHLD - 1))
    return 0


def _device(number: int) -> int:
    """Convert a device number of `/proc/PID/stat`, in the kernel's encoding, to `st_rdev`."""
    number &= 0xFFFFFFFF
    if not number:
        return 0
    major, minor = (number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)
    return os.makedev(major, minor)
