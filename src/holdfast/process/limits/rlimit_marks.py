"""
All that a command started, wherever it went: found by a mark that every process inherits.

A daemon has left its group, its session and its parent. It has not left its resource limits,
and one of them has meant nothing since Linux 2.4: how many locks on files there may be. A
command with limits gets a number there that nobody else has. Whoever changes it on purpose is
not found. A command that may not be trusted belongs in a sandbox, which nothing leaves.

Only the child itself can set it, before its program begins, and a command started by a marked one
loses the mark of the outer one: so it is for limits, and `process.variable_marks` for all else.
"""

import os
import random
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

__all__ = ["is_left", "kill_by_rlimit", "kill_by_rlimit_soon", "mark_limit", "new_mark"]

# The number of that limit, which Python has no name for.
_FILE_LOCKS = 10

# Between them are enough numbers that no two commands of a machine have the same.
_LOWEST, _HIGHEST = 1 << 40, 1 << 50

# Rounds of looking; each one stops the processes that the one before found.
_ROUNDS = 32

_ZOMBIE = (b"Z", b"X")


def new_mark() -> int | None:
    """
    A number for one command; nothing if this process may give none.

    So it is where somebody has set the limit, or commands are nested a dozen times: a process
    can only lower its limits.
    """
    hard = resource.getrlimit(_FILE_LOCKS)[1]
    highest = _HIGHEST if hard == resource.RLIM_INFINITY else min(hard, _HIGHEST)
    return random.randrange(_LOWEST, highest) if highest > 2 * _LOWEST else None  # noqa: S311


def mark_limit(mark: int) -> tuple[int, int, int]:
    """The limit that a process has to be given: a resource, and the number twice."""
    return _FILE_LOCKS, mark, mark


def is_left(mark: int) -> bool:
    """Return True if a process with the mark has not ended."""
    return any(not _has_ended(pid) for pid in _marked(mark))


def kill_by_rlimit(mark: int) -> bool:
    """
    Kill every process with the mark.

    They are stopped first: one that is stopped starts nothing more.

    Returns:
        True if there was one. Zombies do not count.
    """
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        found = {pid for pid in _marked(mark) if pid not in stopped and not _has_ended(pid)}
        if not found:
            break
        _send(found, signal.SIGSTOP)
        stopped |= found
    _send(stopped, signal.SIGKILL)
    return bool(stopped)


def kill_by_rlimit_soon(mark: int) -> None:
    """Do the same in a thread: with thousands of processes it takes a while."""
    threading.Thread(target=kill_by_rlimit, args=(mark,), name="holdfast-kill", daemon=True).start()


def _marked(mark: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            # It has ended, or is another user's.
            with suppress(OSError):
                if resource.prlimit(int(name), _FILE_LOCKS)[1] == mark:
                    yield int(name)


def _has_ended(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of a program may have any character in it, but ends at the last `)`.
            return file.read().rpartition(b")")[2].split()[0] in _ZOMBIE
    except OSError:
        return True


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        # It ended, or changed its user.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
