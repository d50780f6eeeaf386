"""
Kills a process with all its descendants, whatever process groups they are in.

`setsid` and a shell's job control move a process to another group, but never to another parent.
So descendants are found by their parents, which are stopped first. A stopped process forks
nothing and reaps nothing, so the pids that were found stay valid. A daemon whose parent has
exited is reparented, and is not found.
"""

import os
import signal
from contextlib import suppress

from holdfast.engine.linux.proc import children_of

__all__ = ["kill_tree", "signal_all"]

# Rounds of searching for new descendants. Each stops the processes that the round before found; the
# bound ends a race against a fork bomb, whose group is killed in any case.
_ROUNDS = 32


def kill_tree(pid: int) -> None:
    """
    Kill the descendants of a process, then its group including itself.

    Args:
        pid: A child of this process that is not reaped yet and leads a group.

    Raises:
        ProcessLookupError: The group no longer exists.
        PermissionError: All its members belong to other users.
    """
    below: set[int] = set()
    os.killpg(pid, signal.SIGSTOP)
    for _ in range(_ROUNDS):
        found = _below(pid) - below
        if not found:
            break
        below |= found
        signal_all(found, signal.SIGSTOP)
    signal_all(below, signal.SIGKILL)
    os.killpg(pid, signal.SIGKILL)


def signal_all(pids: set[int], number: signal.Signals) -> None:
    """Send a signal to each of these processes that is there and may be signalled."""
    for pid in pids:
        # The process ended, or changed its user.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _below(pid: int) -> set[int]:
    found: set[int] = set()
    ahead = [pid]
    while ahead:
        # A process that has ended has no children. Where the kernel lists none, only the group is
        # killed.
        with suppress(OSError):
            new = set(children_of(ahead.pop())) - found
            found |= new
            ahead += new
    return found
