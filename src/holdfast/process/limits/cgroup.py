"""
The cgroups of commands: limits on all the processes of a command together.

A process that is put into one before the command runs takes all that it starts along.
Where they can be made is found out once, when the first limit comes that needs one.
"""

import asyncio
import atexit
import logging
import os
import re
import select
import threading
import weakref
from contextlib import suppress
from functools import cache
from itertools import count

from holdfast.events import LimitKind
from holdfast.linux.cgroupfs import (
    change_controllers,
    command_prefix,
    move,
    processes_in,
    read_words,
    remove_cgroups,
    rest_name,
    stranger_in,
    write,
)
from holdfast.process.limits.cgroup_discovery import Place, find_place
from holdfast.process.limits.watchdog import ExceededLimit
from holdfast.supervision.guardian import guardian_pid

__all__ = ["Cgroups", "CommandCgroup", "shared_cgroups"]

logger = logging.getLogger(__name__)

# How often it is looked for processes that were started while others were moved.
_ROUNDS = 100

# What processes make, with their pid.
_NUMBERED = re.compile(r"holdfast-(\d+)-(?:\d+|self)")


class CommandCgroup:
    """
    The cgroup of one command, with its limits set.

    It is removed by `release`, or as soon as nothing is in it any more after that.
    """

    def __init__(self, folder: str) -> None:
        """
        Make it.

        Raises:
            OSError: The kernel refused.
        """
        os.mkdir(folder)
        self.folder = folder
        self._memory: int | None = None
        self._processes: int | None = None

    def limit_memory(self, limit: int) -> None:
        """
        Set how many bytes all of it may use; beyond them it is killed, as a whole.

        Raises:
            OSError: The kernel refused.
        """
        write(f"{self.folder}/memory.max", str(limit))
        write(f"{self.folder}/memory.oom.group", "1")
        # This kernel does not swap.
        with suppress(FileNotFoundError):
            write(f"{self.folder}/memory.swap.max", "0")
        self._memory = limit

    def limit_processes(self, limit: int, extra: int = 0) -> None:
        """
        Set how many processes and threads there may be, and how many of ours beside them.

        Raises:
            OSError: The kernel refused.
        """
        write(f"{self.folder}/pids.max", str(limit + extra))
        self._processes = limit

    @property
    def counts_processes(self) -> bool:
        """Whether it limits how many there are."""
        return self._processes is not None

    def admit(self, pid: int) -> None:
        """
        Put a process into it.

        Raises:
            OSError: The kernel refused.
        """
        write(f"{self.folder}/cgroup.procs", str(pid))

    def exceeded(self) -> ExceededLimit | None:
        """
        The limit that a call of it failed at, or that it was killed for, as the kernel tells.

        Where the machine itself has no memory left, that is no limit of the command.
        """
        if self._memory is not None and self._events("memory.events").get("oom"):
            text = f"used more than {self._memory} bytes of memory"
            return ExceededLimit(LimitKind.MEMORY, text)
        if self._processes is not None and self._events("pids.events").get("max"):
            text = f"ran into its limit of {self._processes} processes"
            return ExceededLimit(LimitKind.PROCESSES, text)
        return None

    def _events(self, name: str) -> dict[str, int]:
        words = read_words(f"{self.folder}/{name}")
        return dict(zip(words[::2], map(int, words[1::2]), strict=True))

    def release(self) -> None:
        """Remove it, now or when the last process in it has ended."""
        try:
            os.rmdir(self.folder)
        except FileNotFoundError:
            return
        except OSError:
            # Outside of an event loop, that is for the end of this process.
            with suppress(RuntimeError):
                _Lingering(self.folder, asyncio.get_running_loop())


class _Lingering:
    """Waits until a cgroup is empty, and removes it."""

    def __init__(self, folder: str, loop: asyncio.AbstractEventLoop) -> None:
        self._folder = folder
        self._loop = loop
        try:
            self._events = os.open(f"{folder}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # Somebody has removed it.
            return
        # A loop that ends takes its readers along, and this with them.
        self._close_events = weakref.finalize(self, os.close, self._events)
        # A change of such a file is no input, which is all that an event loop waits for;
        # but this, which waits for the change, is readable then.
        self._changes = select.epoll()
        self._changes.register(self._events, select.EPOLLPRI)
        loop.add_reader(self._changes.fileno(), self._look)
        self._look()

    def _look(self) -> None:
        # Only what comes after a look is a change.
        if b"populated 1" in os.pread(self._events, 4096, 0):
            return
        with suppress(OSError):
            os.rmdir(self._folder)
        self._loop.remove_reader(self._changes.fileno())
        self._changes.close()
        self._close_events()


class Cgroups:
    """Makes the cgroups of commands, and knows where they can be made."""

    def __init__(self, place: Place | None = None, proc: str = "/proc") -> None:
        """
        Args:
            place: Where; looked for by default, when it is first needed.
            proc: Where the kernel tells of processes.
        """
        self._found = place
        self._proc = proc
        self._ready: Place | None = None
        self._preparing = threading.Lock()
        self._numbers = count(1)

    def place(self) -> Place:
        """Where they can be made; the first time, all is prepared for that."""
        with self._preparing:
            if self._ready is None:
                place = find_place(_first_of_ours()) if self._found is None else self._found
                self._ready = prepare(place, proc=self._proc)
                _log(self._ready)
            return self._ready

    def make(self) -> CommandCgroup:
        """
        Make one; there must be a place.

        Raises:
            OSError: The kernel refused.
        """
        folder = self.place().folder
        # Whoever asks has looked for the controllers.
        assert folder is not None
        name = f"{command_prefix(os.getpid())}{next(self._numbers)}"
        return CommandCgroup(f"{folder}/{name}")


def prepare(place: Place, *, proc: str = "/proc") -> Place:
    """
    Make a place ready, wholly or not at all: our processes leave it, and it gets controllers.

    Returns:
        The place, or why it is none.
    """
    folder = place.folder
    if folder is None:
        return place
    _remove_stale(folder, proc)
    enabled = read_words(f"{folder}/cgroup.subtree_control")
    wanted = [name for name in place.controllers if name not in enabled]
    rest = f"{folder}/{rest_name(os.getpid())}"
    try:
        if place.moves:
            os.mkdir(rest)
            _move_all(folder, rest, proc)
        change_controllers(folder, "+", wanted)
    except OSError as error:
        if place.moves:
            _move_back(rest, folder)
        return Place(
            problem=f"the cgroup {folder} cannot be divided: {error.strerror}",
            advice="see `holdfast doctor`",
        )
    return place


def _move_all(folder: str, rest: str, proc: str) -> None:
    """
    Have all our processes move, and those that they start meanwhile.

    Raises:
        OSError: One is not ours, or the kernel refused.
    """
    first = _first_of_ours()
    for _ in range(_ROUNDS):
        pids = processes_in(folder)
        if not pids:
            return
        if stranger_in(folder, first, proc) is not None:
            break
        move(pids, rest)
    raise BlockingIOError(0, "others start processes in it")


def _move_back(rest: str, folder: str) -> None:
    # As far as the kernel lets us.
    with suppress(OSError):
        for _ in range(_ROUNDS):
            pids = processes_in(rest)
            if not pids:
                break
            move(pids, folder)
        os.rmdir(rest)


def _first_of_ours() -> int:
    return guardian_pid() or os.getpid()


def _remove_stale(folder: str, proc: str) -> None:
    """Remove what is left of processes that were killed together with their guardians."""
    for name in os.listdir(folder):
        made = _NUMBERED.fullmatch(name)
        if made is None:
            continue
        # One of them may have had the number that is ours now.
        if int(made[1]) == os.getpid() or not os.path.exists(f"{proc}/{made[1]}"):
            with suppress(OSError):
                os.rmdir(f"{folder}/{name}")


def _log(place: Place) -> None:
    if place.folder is None:
        logger.info("no limits for whole commands: %s; %s", place.problem, place.advice)
    else:
        logger.info("cgroups of commands are in %s: %s", place.folder, place.controllers)


@cache
def shared_cgroups() -> Cgroups:
    """Those of this process: there is one place for all its sessions."""
    atexit.register(_remove_at_exit)
    return Cgroups()


def _remove_at_exit() -> None:
    """Leave nothing, where no guardian comes after this process."""
    if guardian_pid() is None:
        remove_cgroups(os.getpid())
