"""
Keeps a terminal quiet while a question is open on it; runs in a separate process.

It stops the commands in sandboxes that share the terminal, and sets `tostop`, so that the kernel
stops background processes that write. When its standard input ends, it continues everything and
restores the terminal, even if the server that asks was killed.

    python -I -S terminal_guard.py hold|release TERMINAL DEVICE tostop|-tostop PID…

TERMINAL is a descriptor, DEVICE the number of the terminal in `/proc`, the next argument the mode
to be restored, and each PID the first process of a sandbox. It imports only what starts fast, and
nothing of Holdfast.
"""

import os
import select
import signal
import sys
import termios
import time
from contextlib import suppress
from typing import Final, NamedTuple

__all__ = ["QUIET", "Guard", "main"]

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


def _read(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    return _Stat(fields[0].decode(), *(int(fields[index]) for index in (1, 2, 4, 5)))


def _processes() -> tuple[dict[int, _Stat], bool]:
    """Return all processes, and False if one ended before it was read."""
    # The newest first, as most of those that end soon are among them.
    pids = sorted((int(name) for name in os.listdir("/proc") if name.isdecimal()), reverse=True)
    found = {pid: process for pid in pids if (process := _read(pid)) is not None}
    return found, len(found) == len(pids)


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


def _threads(pid: int) -> dict[str, tuple[str, bytes]] | None:
    """Return the state of each thread and how often it ran; None if one ended meanwhile."""
    found: dict[str, tuple[str, bytes]] = {}
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/status", "rb", buffering=0) as file:
                status = file.read(16384)
            state = status.partition(b"\nState:\t")[2][:1].decode()
            found[thread] = state, status.partition(b"\nvoluntary_ctxt_switches:")[2]
    except OSError:
        return None
    return found


class Guard:
    """The processes that were stopped, and what was changed of the terminal."""

    def __init__(self, terminal: int, device: int, first: frozenset[int]) -> None:
        """
        Args:
            terminal: A descriptor of the terminal.
            device: Its number in `/proc`.
            first: The first processes of sandboxes.
        """
        self._terminal = terminal
        self._device = device
        self._first: dict[int, int] = {}
        self._running = select.poll()
        for pid in first:
            with suppress(OSError):
                self._first[pid] = os.pidfd_open(pid)
                self._running.register(self._first[pid])
        self._stopped: dict[int, int] = {}
        # All threads that were found at the last look, if none of them could do anything.
        self._still: dict[int, dict[str, tuple[str, bytes]]] | None = None
        self._changed = False
        processes, _ = _processes()
        on_terminal = {pid: one for pid, one in processes.items() if one.terminal == device}
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
        """
        Stop the processes of the sandboxes; return True if none of them can do anything.

        Processes can start others and end, or continue each other, while they are looked at one
        by one. So they count as stopped if nothing ended during a look, and none of them ran
        since the one before: then none can have started another.
        """
        processes, complete = _processes()
        still: dict[int, dict[str, tuple[str, bytes]]] = {}
        quiet = complete
        for pid in _descendants(self._sandboxes(), processes):
            threads = _threads(pid)
            # A thread that waits for a device, or the child of a `vfork`, stops when it returns.
            states = _STILL | {"D"} if pid in self._stopped else _STILL
            if threads is not None and all(state in states for state, _ in threads.values()):
                still[pid] = threads
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
        before, self._still = self._still, still if quiet else None
        return quiet and before == still

    def _sandboxes(self) -> frozenset[int]:
        """Return the first processes of sandboxes that have not ended."""
        # The pids of the others may have been reused.
        ended = {handle for handle, _ in self._running.poll(0)}
        return frozenset(pid for pid, handle in self._first.items() if handle not in ended)

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
        for handle in (*self._stopped.values(), *self._first.values()):
            os.close(handle)
        for pid, process in _processes()[0].items():
            wrote = process.state == "T" and process.group not in self._in_front
            if wrote and process.terminal == self._device and pid not in self._stopped_before:
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)

    def release_after_another(self, *, changed: bool) -> None:
        """Do the same on behalf of a guard that was killed; it may have changed the terminal."""
        self._changed = changed
        for pid in _descendants(self._sandboxes(), _processes()[0]):
            with suppress(OSError):
                self._stopped[pid] = os.pidfd_open(pid)
        self.release()


def main(arguments: list[str]) -> None:
    """Hold the terminal until the end of standard input."""
    way, terminal, device, mode, *first = arguments
    guard = Guard(int(terminal), int(device), frozenset(map(int, first)))
    if way == "release":
        guard.release_after_another(changed=mode == "-tostop")
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
