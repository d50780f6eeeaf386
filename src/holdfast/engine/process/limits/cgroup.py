"""
Cgroups of commands: limits for all processes of a command together.

The child is moved into its cgroup before it executes the command, so all its descendants are in it
too. A location for these cgroups is searched for once, when the first limit needs one.
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

from holdfast.engine.linux.cgroupfs import (
    change_controllers,
    command_prefix,
    foreign_process_in,
    move,
    processes_in,
    read_words,
    remove_cgroups,
    server_cgroup_name,
    write,
)
from holdfast.engine.process.limits.cgroup_discovery import CgroupLocation, find_cgroup_location
from holdfast.engine.process.limits.watchdog import ExceededLimit
from holdfast.engine.supervision.guardian import guardian_pid
from holdfast.events import LimitKind
from holdfast.wire.protocol.limits import limit_of

__all__ = ["Cgroups", "CommandCgroup", "shared_cgroups"]

logger = logging.getLogger(__name__)

# Rounds of moving processes: a process may fork while others are moved.
_ROUNDS = 100

# Names of cgroups that a server makes, with its pid.
_NUMBERED = re.compile(r"holdfast-(\d+)-(?:\d+|self)")


class CommandCgroup:
    """
    The cgroup of one command, with its limits set.

    `release` removes it, at once or when the last process in it has exited.
    """

    def __init__(self, folder: str) -> None:
        """
        Make the cgroup, which is empty and has no limits yet.

        Raises:
            OSError: The kernel refused.
        """
        os.mkdir(folder)
        self.folder = folder
        self._memory: int | None = None
        self._processes: int | None = None

    def limit_memory(self, limit: int) -> None:
        """
        Limit the memory of all its processes; beyond it the kernel kills all of them together.

        Raises:
            OSError: The kernel refused.
        """
        write(f"{self.folder}/memory.max", str(limit))
        # All together: a shell whose largest child was killed would continue with half of the work.
        write(f"{self.folder}/memory.oom.group", "1")
        # Without this a command would swap instead of being killed. The file is missing if the
        # kernel has no swap accounting.
        with suppress(FileNotFoundError):
            write(f"{self.folder}/memory.swap.max", "0")
        self._memory = limit

    def limit_processes(self, limit: int, extra: int = 0) -> None:
        """
        Limit its processes and threads to `limit`, plus `extra` for our own helper processes.

        Raises:
            OSError: The kernel refused.
        """
        write(f"{self.folder}/pids.max", str(limit + extra))
        self._processes = limit

    @property
    def counts_processes(self) -> bool:
        """True if the number of its processes is limited."""
        return self._processes is not None

    def admit(self, pid: int) -> None:
        """
        Move a process into it.

        Raises:
            OSError: The kernel refused.
        """
        write(f"{self.folder}/cgroup.procs", str(pid))

    def exceeded(self) -> ExceededLimit | None:
        """
        Return the limit that the command reached, by the kernel's event counters, or None.

        `oom` counts only the limit of this cgroup, not an out-of-memory state of the machine.
        """
        if self._memory is not None and self._events("memory.events").get("oom"):
            return ExceededLimit.of(limit_of(LimitKind.MEMORY), self._memory)
        if self._processes is not None and self._events("pids.events").get("max"):
            return ExceededLimit.of(limit_of(LimitKind.PROCESSES), self._processes)
        return None

    def _events(self, name: str) -> dict[str, int]:
        words = read_words(f"{self.folder}/{name}")
        return dict(zip(words[::2], map(int, words[1::2]), strict=True))

    def release(self) -> None:
        """Remove the cgroup, now or when the last process in it has exited."""
        try:
            os.rmdir(self.folder)
        except FileNotFoundError:
            return
        except OSError:
            # EBUSY: it has processes. Outside an event loop, it is removed at our exit.
            with suppress(RuntimeError):
                _DeferredRemoval(self.folder, asyncio.get_running_loop())


class _DeferredRemoval:
    """Removal of a cgroup as soon as it is empty."""

    def __init__(self, folder: str, loop: asyncio.AbstractEventLoop) -> None:
        self._folder = folder
        self._loop = loop
        try:
            self._events = os.open(f"{folder}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # Another process has removed it meanwhile.
            return
        # The loop's reader is the only reference to this object, so it ends with the loop.
        self._close_events = weakref.finalize(self, os.close, self._events)
        # The kernel signals a change of `cgroup.events` as EPOLLPRI, which event loops cannot
        # wait for. An epoll instance that waits for it is readable then.
        self._changes = select.epoll()
        self._changes.register(self._events, select.EPOLLPRI)
        loop.add_reader(self._changes.fileno(), self._look)
        self._look()

    def _look(self) -> None:
        # The kernel signals a change only after the last read, so read in any case.
        if b"populated 1" in os.pread(self._events, 4096, 0):
            return
        with suppress(OSError):
            os.rmdir(self._folder)
        self._loop.remove_reader(self._changes.fileno())
        self._changes.close()
        self._close_events()


class Cgroups:
    """Factory of the cgroups of commands."""

    def __init__(self, location: CgroupLocation | None = None, proc: str = "/proc") -> None:
        """
        Args:
            location: The cgroup to make them in; by default found when first needed.
            proc: The proc file system.
        """
        self._found = location
        self._proc = proc
        self._ready: CgroupLocation | None = None
        self._preparing = threading.Lock()
        self._numbers = count(1)

    def location(self) -> CgroupLocation:
        """Return the cgroup to make them in; the first call finds and prepares it. Blocks."""
        # In threads: several first starts may arrive at once, and only one may move processes.
        with self._preparing:
            if self._ready is None:
                location = (
                    find_cgroup_location(_first_of_ours()) if self._found is None else self._found
                )
                self._ready = prepare(location, proc=self._proc)
                _log(self._ready)
            return self._ready

    def make(self) -> CommandCgroup:
        """
        Make the cgroup of one command; call this only if `location` has a controller.

        Raises:
            OSError: The kernel refused.
        """
        folder = self.location().folder
        # A location with a controller has a directory.
        assert folder is not None
        name = f"{command_prefix(os.getpid())}{next(self._numbers)}"
        return CommandCgroup(f"{folder}/{name}")


def prepare(location: CgroupLocation, *, proc: str = "/proc") -> CgroupLocation:
    """
    Move our processes out of a cgroup and enable its controllers; undo all if a step fails.

    Returns:
        The location, or one without a directory that says what failed.
    """
    folder = location.folder
    if folder is None:
        return location
    # First: cgroups with our own pid in their names could be in the way of new ones.
    _remove_stale(folder, proc)
    enabled = read_words(f"{folder}/cgroup.subtree_control")
    wanted = [name for name in location.controllers if name not in enabled]
    rest = f"{folder}/{server_cgroup_name(os.getpid())}"
    try:
        # In this order: the kernel enables controllers only for a cgroup without processes.
        if location.moves:
            os.mkdir(rest)
            _move_all(folder, rest, proc)
        change_controllers(folder, "+", wanted)
    except OSError as error:
        if location.moves:
            _move_back(rest, folder)
        return CgroupLocation(
            problem=f"the cgroup {folder} cannot be divided: {error.strerror}",
            advice="see `holdfast doctor`",
        )
    return location


def _move_all(folder: str, rest: str, proc: str) -> None:
    """
    Move all our processes, and those that they fork meanwhile.

    Raises:
        OSError: A process is not ours, or the kernel refused.
    """
    first = _first_of_ours()
    for _ in range(_ROUNDS):
        pids = processes_in(folder)
        if not pids:
            return
        if foreign_process_in(folder, first, proc) is not None:
            break
        move(pids, rest)
    raise BlockingIOError(0, "others start processes in it")


def _move_back(rest: str, folder: str) -> None:
    # As far as the kernel allows: a failure to undo cannot be reported.
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
    """Remove the cgroups of servers that were killed together with their guardians."""
    for name in os.listdir(folder):
        made = _NUMBERED.fullmatch(name)
        if made is None:
            continue
        # A dead server may have had the pid that is ours now; nothing of ours exists yet.
        if int(made[1]) == os.getpid() or not os.path.exists(f"{proc}/{made[1]}"):
            with suppress(OSError):
                os.rmdir(f"{folder}/{name}")


def _log(location: CgroupLocation) -> None:
    if location.folder is None:
        logger.info("no limits for whole commands: %s; %s", location.problem, location.advice)
    else:
        logger.info("cgroups of commands are in %s: %s", location.folder, location.controllers)


@cache
def shared_cgroups() -> Cgroups:
    """Return the cgroups of this process, shared by all its sessions."""
    atexit.register(_remove_at_exit)
    return Cgroups()


def _remove_at_exit() -> None:
    """Remove our cgroups at exit, unless a guardian does it after us."""
    if guardian_pid() is None:
        remove_cgroups(os.getpid())
