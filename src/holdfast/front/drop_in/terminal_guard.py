"""
Keeps a terminal quiet while a question is open on it; runs in a separate process.

It stops the commands in sandboxes that share the terminal, and sets `tostop`, so that the kernel
stops background processes that write. When its standard input ends, it continues everything and
restores the terminal, even if the server that asks was killed.

    python -I -S terminal_guard.py hold|release TERMINAL DEVICE PID…

TERMINAL is a descriptor, DEVICE the number of the terminal in `/proc`, and each PID the first
process of a sandbox. It imports only what starts fast, and nothing of Holdfast.
"""

import os
import select
import signal
import sys
import termios
import time
from contextlib import suppress
from typing import Final, NamedTuple

__all__ = ["QUIET", "main"]

QUIET: Final = b"q"
"""Written to standard output when all commands have stopped."""

# Seconds between two looks for processes that have come or were continued.
_AGAIN: Final = 0.1

# Seconds between two looks until all processes have stopped.
_SOON: Final = 0.002

# States in which a thread does nothing: stopped, traced, zombie, dead.
_STILL: Final = frozenset("TtZXx")

_FLAGS: Final = 3


class _Stat(NamedTuple):
    """Fields of `/proc/PID/stat`."""

    state: str
    parent: int
    group: int
    terminal: int
    in_front: int


def _read(pid: int, thread: int | str = "") -> _Stat | None:
    path = f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat"
    try:
        with open(path, "rb", buffering=0) as file:
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    return _Stat(fields[0].decode(), *(int(fields[index]) for index in (1, 2, 4, 5)))


def _processes() -> dict[int, _Stat]:
    found = ((int(name), _read(int(name))) for name in os.listdir("/proc") if name.isdecimal())
    return {pid: process for pid, process in found if process is not None}


def _descendants(first: frozenset[int], processes: dict[int, _Stat]) -> list[int]:
    """Return all processes below the first ones: those of a sandbox never have other parents."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found: list[int] = []
    pending = list(first)
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _is_still(pid: int, *, told: bool) -> bool:
    """Return True if no thread of a process can do anything."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    # A thread that waits for a device, or for the child of a `vfork`, stops when it returns.
    still = _STILL | {"D"} if told else _STILL
    return all(one is None or one.state in still for one in (_read(pid, t) for t in threads))


class _Guard:
    """The processes that were stopped, and what was changed of the terminal."""

    def __init__(self, terminal: int, device: int, first: frozenset[int]) -> None:
        self._terminal = terminal
        self._device = device
        self._first = first
        self._stopped: dict[int, int] = {}
        self._changed = False
        on_terminal = {
            pid: process for pid, process in _processes().items() if process.terminal == device
        }
        # Jobs that a person stops by Ctrl-Z meanwhile are in the foreground, and stay stopped.
        self._in_front = {process.in_front for process in on_terminal.values()}
        self._stopped_before = {pid for pid, one in on_terminal.items() if one.state == "T"}

    def stop_writers(self) -> None:
        """Make the kernel stop background processes that write to the terminal."""
        with suppress(termios.error):
            modes = termios.tcgetattr(self._terminal)
            if not modes[_FLAGS] & termios.TOSTOP:
                modes[_FLAGS] |= termios.TOSTOP
                termios.tcsetattr(self._terminal, termios.TCSANOW, modes)
                self._changed = True

    def stop_commands(self) -> bool:
        """Stop the processes of the sandboxes; return True if none of them can do anything."""
        processes = _processes()
        quiet = True
        for pid in _descendants(self._first, processes):
            if _is_still(pid, told=pid in self._stopped):
                continue
            quiet = False
            with suppress(OSError):
                if pid not in self._stopped:
                    handle = os.pidfd_open(pid)
                    now = _read(pid)
                    # The pid may have been reused.
                    if now is None or now.parent != processes[pid].parent:
                        os.close(handle)
                        continue
                    self._stopped[pid] = handle
                signal.pidfd_send_signal(self._stopped[pid], signal.SIGSTOP)
        return quiet

    def release(self) -> None:
        """Continue everything that was stopped, and restore the terminal."""
        if self._changed:
            with suppress(termios.error):
                modes = termios.tcgetattr(self._terminal)
                modes[_FLAGS] &= ~termios.TOSTOP
                termios.tcsetattr(self._terminal, termios.TCSANOW, modes)
        for handle in self._stopped.values():
            with suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGCONT)
        for pid, process in _processes().items():
            wrote = process.state == "T" and process.group not in self._in_front
            if wrote and process.terminal == self._device and pid not in self._stopped_before:
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)

    def release_after_another(self) -> None:
        """Do the same on behalf of a guard that was killed."""
        self._changed = True
        self._stopped = {}
        for pid in _descendants(self._first, _processes()):
            with suppress(OSError):
                self._stopped[pid] = os.pidfd_open(pid)
        self.release()


def main(arguments: list[str]) -> None:
    """Hold the terminal until the end of standard input."""
    way, terminal, device, *first = arguments
    guard = _Guard(int(terminal), int(device), frozenset(map(int, first)))
    if way == "release":
        guard.release_after_another()
        return
    # The end of a session, or of a service, must not leave stopped processes behind.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        guard.stop_writers()
        quiet = False
        while not select.select([0], [], [], _AGAIN if quiet else 0)[0]:
            if guard.stop_commands():
                if not quiet:
                    os.write(1, QUIET)
                quiet = True
            elif not quiet:
                time.sleep(_SOON)
    finally:
        guard.release()


if __name__ == "__main__":
    main(sys.argv[1:])
