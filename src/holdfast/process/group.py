"""
What an exited process left in its group: a job of a shell, a server in the background.

Every child leads a session and a group of its own, both with its pid as their number.
The kernel gives a number to nobody else while a process, a group or a session has it. So
a group is safe to signal while its leader is a zombie. After the leader was reaped, it has
to be made sure that the number still means the same group.
"""

import os
import signal
import time
from contextlib import suppress
from typing import NamedTuple

__all__ = ["kill_left", "left_since"]

_TICKS = os.sysconf("SC_CLK_TCK")
"""Units of a second in which `/proc` tells when a process was started."""

_STATE, _GROUP, _SESSION, _THREADS, _STARTED = 0, 2, 3, 17, 19
"""Words of `/proc/PID/stat` after the name, see proc(5)."""


class _Member(NamedTuple):
    """A process of a group that has not ended."""

    pid: int
    started: int
    """Ticks after the boot."""


def left_since(group: int) -> float | None:
    """
    Return the time if a group outlives its leader, which was reaped just now, else `None`.

    The time is in seconds after the boot. It is what `kill_left` needs later.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return None  # the usual case, and all that it costs
    except PermissionError:
        pass  # there is something, under another user
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def kill_left(group: int, since: float | None = None) -> bool:
    """
    Kill what is left in the group of a child that has exited.

    Args:
        group: The pid that the child has, or had.
        since: `None` while the child is a zombie; after that, what `left_since` returned.

    Returns:
        True if there was something to kill. Zombies do not count.

    Raises:
        OSError: The system refused.
    """
    members = _live_members(group)
    if not members or (since is not None and not _is_same(group, members, since)):
        return False
    os.killpg(group, signal.SIGKILL)
    return True


def _is_same(group: int, members: list[_Member], since: float) -> bool:
    """
    Return True if the members were left by the leader that was reaped at `since`.

    A process with the number of the group means that the number was given away again. So
    does a group in which nobody is as old as the reaping: nobody joins a session from
    outside. Then nothing is killed rather than something of others.
    """
    if os.path.exists(f"/proc/{group}"):
        return False
    return any(member.started <= int(since * _TICKS) for member in members)


def _live_members(group: int) -> list[_Member]:
    """Return the processes that are in the group, and in the session of the same number."""
    found: list[_Member] = []
    number = str(group).encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError):  # it has ended meanwhile
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name of a program may have any character in it, but ends at the last `)`.
                words = file.read().rpartition(b")")[2].split()
            if words[_GROUP] != number or words[_SESSION] != number:
                continue
            # A process is a zombie also if only its first thread has ended.
            if words[_STATE] not in (b"Z", b"X") or int(words[_THREADS]) > 1:
                found.append(_Member(int(name), int(words[_STARTED])))
    return found
