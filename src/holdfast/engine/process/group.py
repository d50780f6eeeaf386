"""
Kills the processes that an exited child left in its group, such as a server in the background.

Every child leads a session and a process group of its own, both with its pid as their id. The
kernel does not reuse a number while a process, a group or a session has it. So a group is safe
to signal while its leader is a zombie. Once the leader is reaped, a check has to make sure that
the number still means the same group.
"""

import os
import signal
import time
from contextlib import suppress
from typing import NamedTuple

from holdfast.engine.linux.proc import stat_fields

__all__ = ["kill_left", "left_since"]

# Clock ticks per second: the unit of start times in `/proc/PID/stat`.
_TICKS = os.sysconf("SC_CLK_TCK")

# Indices of the fields of `/proc/PID/stat` after the command name, see proc(5).
_STATE, _GROUP, _SESSION, _THREADS, _STARTED = 0, 2, 3, 17, 19


class _Member(NamedTuple):
    """A live process of a group."""

    pid: int
    started: int
    """Start time in clock ticks since boot."""


def left_since(group: int) -> float | None:
    """
    Return the current time if a group outlives its leader, which was just reaped, else None.

    The time is in seconds since boot. Pass it to `kill_left` later.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        # The usual case. One system call is all that this check costs it.
        return None
    except PermissionError:
        # The group has members, but all of them belong to other users.
        pass
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def kill_left(group: int, since: float | None = None) -> bool:
    """
    Kill the processes left in the group of a child that has exited.

    Args:
        group: The pid of the child, reaped or not.
        since: None while the child is a zombie; after that, the result of `left_since`.

    Returns:
        True if a live process was in the group. Zombies do not count.

    Raises:
        OSError: The kernel refused.
    """
    members = _live_members(group)
    if not members or (since is not None and not _is_same(group, members, since)):
        return False
    os.killpg(group, signal.SIGKILL)
    return True


def _is_same(group: int, members: list[_Member], since: float) -> bool:
    """
    Return True if the members were left by the leader that was reaped at `since`.

    Two findings mean that the number was reused: a process has it as its pid, or no member is
    older than the reaping. No process can join a session from outside. In doubt nothing is
    killed, rather than a process of somebody else.
    """
    if os.path.exists(f"/proc/{group}"):
        return False
    return any(member.started <= int(since * _TICKS) for member in members)


def _live_members(group: int) -> list[_Member]:
    """Return the live processes of the group that are also in the session of the same id."""
    found: list[_Member] = []
    number = str(group).encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        # The process may end between the listing and the read.
        with suppress(OSError):
            words = stat_fields(f"/proc/{name}")
            if words[_GROUP] != number or words[_SESSION] != number:
                continue
            # The state is that of the main thread: others may run on after it has ended.
            if words[_STATE] not in (b"Z", b"X") or int(words[_THREADS]) > 1:
                found.append(_Member(int(name), int(words[_STARTED])))
    return found
