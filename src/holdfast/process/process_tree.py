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

__all__ = ["kill_tree"]

# Rounds of looking for new descendants. Each stops the processes that the round before found;
# the bound ends a race against a fork bomb, whose group is killed in any case.
_ROUNDS = 32


def kill_tree(pid: int) -> None:
    """
    Kill the descendants of a process, then its group including itself.

    Args:
        pid: A child of this process that is not reaped yet and leads a group.

    Raises:
        ProcessLookupError: The group does not exist any more.
        PermissionError: All its members belong to other users.
    """
    below: set[int] = set()
    os.killpg(pid, signal.SIGSTOP)
    for _ in range(_ROUNDS):
        found = _below(pid) - below
        if not found:
            break
        below |= found
        _send(found, signal.SIGSTOP)
    _send(below, signal.SIGKILL)
    os.killpg(pid, signal.SIGKILL)


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        # The process ended, or changed its user.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _below(pid: int) -> set[int]:
    found: set[int] = set()
    ahead = [pid]
    while ahead:
        for child in _children(ahead.pop()):
            if child not in found:
                found.add(child)
                ahead.append(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as children:
                found.extend(map(int, children.read().split()))
    except OSError:
        # The process is gone, or the kernel has no `children` file (CONFIG_PROC_CHILDREN).
        # Then only the group is killed.
        pass
    return found
