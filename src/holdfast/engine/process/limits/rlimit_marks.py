"""
Finds the descendants of a command by a mark in an rlimit, which every process inherits.

A daemon has left its group, its session and its parent, but not its rlimits. One of these has
had no effect since Linux 2.4: RLIMIT_LOCKS, the number of file locks. A command with limits
gets a unique number there. A process that lowers it on purpose is not found; an untrusted
command belongs in a sandbox, which no process can leave.

Only the child itself can set the mark, before it executes its program. A nested command loses the
mark of the outer one. So this is used for limits, and `process.variable_marks` for all else.
"""

import os
import random
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from holdfast.engine.linux.daemon_threads import DaemonThreads
from holdfast.engine.linux.proc import stat_fields
from holdfast.engine.process.process_tree import signal_all

__all__ = ["has_live_process", "kill_by_rlimit", "kill_by_rlimit_soon", "mark_limit", "new_mark"]

# RLIMIT_LOCKS, for which Python has no constant.
_FILE_LOCKS = 10

# Range of marks: high enough to limit nothing, and so wide that two commands of one machine
# practically never draw the same number.
_LOWEST, _HIGHEST = 1 << 40, 1 << 50

# Rounds of searching: a process may fork between being found and being stopped.
_ROUNDS = 32

# A search holds the interpreter most of its time, so many at once would only delay each other.
_killers = DaemonThreads("holdfast-kill", 4, kept=1)

# States of `/proc/PID/stat`: zombie and dead.
_ZOMBIE = (b"Z", b"X")


def new_mark() -> int | None:
    """
    Return a mark for one command; None if this process cannot set one.

    A process can only lower its hard limits. So there is no mark left if another program has set
    this limit, or after about a dozen nested commands.
    """
    hard = resource.getrlimit(_FILE_LOCKS)[1]
    highest = _HIGHEST if hard == resource.RLIM_INFINITY else min(hard, _HIGHEST)
    return random.randrange(_LOWEST, highest) if highest > 2 * _LOWEST else None  # noqa: S311


def mark_limit(mark: int) -> tuple[int, int, int]:
    """Return the rlimit that sets a mark: the resource, its soft limit and its hard limit."""
    return _FILE_LOCKS, mark, mark


def has_live_process(mark: int) -> bool:
    """Return True if a process with the mark still runs."""
    return any(not _has_ended(pid) for pid in _marked(mark))


def kill_by_rlimit(mark: int) -> bool:
    """
    Kill every process with the mark.

    All are stopped before the first is killed: a stopped process cannot fork.

    Returns:
        True if there was such a process. Zombies do not count.
    """
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        found = {pid for pid in _marked(mark) if pid not in stopped and not _has_ended(pid)}
        if not found:
            break
        signal_all(found, signal.SIGSTOP)
        stopped |= found
    signal_all(stopped, signal.SIGKILL)
    return bool(stopped)


def kill_by_rlimit_soon(mark: int) -> None:
    """Call `kill_by_rlimit` in a thread: on a machine with many processes it takes long."""
    _killers.start(partial(kill_by_rlimit, mark), may_wait=True)


def _marked(mark: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            # The process has ended, or belongs to another user.
            with suppress(OSError):
                if resource.prlimit(int(name), _FILE_LOCKS)[1] == mark:
                    yield int(name)


def _has_ended(pid: int) -> bool:
    try:
        return stat_fields(f"/proc/{pid}")[0] in _ZOMBIE
    except OSError:
        return True
