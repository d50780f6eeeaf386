"""
Kills the descendants of a command, found by an environment variable that they inherit.

A daemon leaves its group and its session, and its parent exits: nothing in the process table
leads back from it to its command. Its environment does, like systemd's `INVOCATION_ID`. A
process that clears its variables (`env -i`) or changes its user (`sudo`) is not found.

The client chooses the mark, and nested commands have the marks of all commands around them. A
mark costs a start nothing. A limit needs a mark that a command cannot drop: see
`limits.rlimit_marks`.
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

# The variable: one or more marks with slashes between them, the outermost command's first.
MARK_VARIABLE = "HOLDFAST_INVOCATION_ID"

# 16 hex digits for an owner, `-N` for one of its commands. Nothing in it is special in a regular
# expression or could be mistaken for the separator.
_MARK = re.compile(r"[0-9a-f]{16}(-[0-9]+)?")

# Rounds of searching: a process may fork between being found and being killed.
_ROUNDS = 32

# Pids to try one by one. For a wider range, listing `/proc` is cheaper.
_MANY = 4096

# Upper bound of the pids that a machine assigns per second. Pids grow until `pid_max` and then
# wrap, so for `pid_max` divided by this they cannot have wrapped.
_FORKS_PER_SECOND = 30_000


def is_mark(text: str) -> bool:
    """Return True for a mark: 16 hex digits for all commands of an owner, `-N` for one of them."""
    return _MARK.fullmatch(text) is not None


def with_mark(outer: str | None, mark: str) -> str:
    """Return the variable's value for a command with this mark, started by one with `outer`."""
    return f"{outer}/{mark}" if outer else mark


class FirstCommand(NamedTuple):
    """The first command with a mark; all later processes with the mark have a higher pid."""

    pid: int
    at: float
    """Time of its start, by the monotonic clock."""

    @classmethod
    def now(cls, pid: int) -> Self:
        """Return the record of a command that was started just now."""
        return cls(pid, monotonic())


def kill_by_variable(mark: str, first: FirstCommand | None = None) -> int:
    """
    Kill every process of this user that has a mark. Blocks, so call it in a thread.

    Args:
        mark: The mark of one command, or without `-N` the mark of all commands of an owner.
        first: The first command with the mark, which narrows the search.

    Returns:
        The number of killed processes.
    """
    # Any other string, such as an empty one, could match unrelated processes.
    assert is_mark(mark), mark
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
    """Kill a process if it has the mark; return True if it was killed."""
    if pid == os.getpid():
        return False
    # The process ended, the number is that of a thread, or it is another user's process.
    with suppress(OSError):
        if wanted.search(_variables(pid)) is None:
            return False
        process = os.pidfd_open(pid)
        # Once more with the pidfd open: the pid may have been reused before that, but not since.
        try:
            if wanted.search(_variables(pid)) is not None:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False


def _variables(pid: int) -> bytes:
    """Return the initial environment of a process; empty for a zombie."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()


def _candidates(first: FirstCommand | None) -> Iterable[int]:
    """Return the pids assigned since the first command if they are few, else all pids."""
    if first is not None and monotonic() - first.at < _pids_grow():
        with open("/proc/loadavg", "rb") as file:
            # The last field is the most recently assigned pid, see proc_loadavg(5).
            last = int(file.read().split()[-1])
        if first.pid <= last < first.pid + _MANY:
            return range(first.pid, last + 1)
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


@cache
def _pids_grow() -> float:
    """Return a number of seconds in which pids cannot wrap around."""
    with open("/proc/sys/kernel/pid_max", "rb") as file:
        return int(file.read()) / _FORKS_PER_SECOND
