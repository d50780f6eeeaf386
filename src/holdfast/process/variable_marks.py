"""
What a command left behind, found by a variable that everything it starts inherits.

A daemon leaves its group and its session, and its parent ends: nothing in the kernel's table
leads back from it to its command. Its variables do, as systemd's `INVOCATION_ID` does. Not
found is what cleared its variables (`env -i`) or changed its user (`sudo`).

The client chooses this mark, nested commands have those of all around them, and a start costs
nothing more by it. A limit needs a mark that a command cannot drop: see `limits.rlimit_marks`.
"""

import os
import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from time import monotonic
from typing import NamedTuple, Self

__all__ = ["MARK_VARIABLE", "FirstCommand", "is_mark", "kill_by_variable", "with_mark"]

MARK_VARIABLE = "HOLDFAST_INVOCATION_ID"
"""Its value is one or more marks with slashes between them, the outermost command's first."""

_MARK = re.compile(r"[0-9a-f]{16}(-[0-9]+)?")

_ROUNDS = 32
"""Rounds of looking: a process that is found may start others before it is killed."""

_MANY = 4096
"""Pids beyond which the list of all processes is shorter."""

_FORKS_PER_SECOND = 30_000
"""Pids that a machine gives out at the most; until then they only grow, up to the highest."""


def is_mark(text: str) -> bool:
    """Return True for a mark: 16 hex digits for all commands of an owner, `-N` for one of them."""
    return _MARK.fullmatch(text) is not None


def with_mark(outer: str | None, mark: str) -> str:
    """Return the value of the variable for a command that is started by a marked one, or not."""
    return f"{outer}/{mark}" if outer else mark


class FirstCommand(NamedTuple):
    """The first command of a mark: what was started by it, or later, has a higher pid."""

    pid: int
    at: float
    """By the monotonic clock."""

    @classmethod
    def now(cls, pid: int) -> Self:
        """Note a command that was started just now."""
        return cls(pid, monotonic())


def kill_by_variable(mark: str, first: FirstCommand | None = None) -> int:
    """
    Kill every process of this user that has a mark; waits for the file system, so for threads.

    Args:
        mark: That of one command, or without `-N` that of all commands of an owner.
        first: The first command with the mark, to look at less than all processes.

    Returns:
        How many were killed.
    """
    assert is_mark(mark), mark  # anything else could mean the processes of others
    wanted = re.compile(
        rb"(?:^|\0)%b=(?:[^\0]*/)?%b(?:-[0-9]+)?(?:/[^\0]*)?(?:\0|$)"
        % (MARK_VARIABLE.encode(), re.escape(mark.encode()))
    )
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = {pid for pid in _candidates(first) if pid not in killed and _kill(pid, wanted)}
        if not found:
            break
        killed |= found
    return len(killed)


def _kill(pid: int, wanted: re.Pattern[bytes]) -> bool:
    """Kill a process if it has the mark; the number cannot become another's in between."""
    if pid == os.getpid():
        return False
    with suppress(OSError):  # it ended, is a thread, or is another user's
        if wanted.search(_variables(pid)) is None:
            return False
        process = os.pidfd_open(pid)
        try:
            if wanted.search(_variables(pid)) is not None:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False


def _variables(pid: int) -> bytes:
    """Return the variables that a process was started with; none of a zombie."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()


def _candidates(first: FirstCommand | None) -> Iterable[int]:
    """Return the pids to look at: those since the first command, if they are few, or all."""
    if first is not None and monotonic() - first.at < _pids_grow():
        with open("/proc/loadavg", "rb") as file:
            last = int(file.read().split()[-1])  # the pid that was given out last
        if first.pid <= last < first.pid + _MANY:
            return range(first.pid, last + 1)
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


@cache
def _pids_grow() -> float:
    """Return the seconds in which the kernel cannot come back to the same pid."""
    with open("/proc/sys/kernel/pid_max", "rb") as file:
        return int(file.read()) / _FORKS_PER_SECOND
