"""
All that is below a process, wherever it moved.

A group is left by `setsid` and by the job control of a shell, a parent is not. So the
children of children are found by their parents, who are stopped first: one that is
stopped starts nothing more and reaps nothing, so the numbers stay those of what was found.
What let its parent end, as a daemon does, is nobody's child any more and is not found.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

__all__ = ["kill_tree"]

_ROUNDS = 32
"""How often to look for more; each round stops what the one before found."""


def kill_tree(pid: int) -> None:
    """
    Kill what is below a process, and then its group with itself.

    Args:
        pid: A child of this process that is not reaped yet and leads a group.

    Raises:
        ProcessLookupError: There is no such group any more.
        PermissionError: Nothing in it is ours to end.
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
        with suppress(ProcessLookupError, PermissionError):  # it ended, or changed its user
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
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.extend(map(int, (task / "children").read_text().split()))
    except OSError:
        pass  # it is gone, or a kernel without that list: the group is all there is
    return found
