"""Killing all that is below a process."""

import os
import select
import subprocess

import pytest

from holdfast.engine.process.process_tree import kill_tree

# A child with a session of its own, and one below that with another: both outlive the group.
FAMILY = "setsid sh -c 'echo $$; setsid sh -c \"echo \\$\\$; exec sleep 60\" & wait' & wait"


def gone(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 5.0)[0])


def test_what_moved_to_other_sessions_is_killed_too() -> None:
    with subprocess.Popen(
        ["sh", "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        below = [os.pidfd_open(int(leader.stdout.readline())) for _ in range(2)]
        kill_tree(leader.pid)
        assert leader.wait(5.0) == -9
        assert all(map(gone, below))
        for pidfd in below:
            os.close(pidfd)


def test_a_group_alone_is_not_enough_for_them() -> None:
    with subprocess.Popen(
        ["sh", "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        pids = [int(leader.stdout.readline()) for _ in range(2)]
        os.killpg(leader.pid, 9)
        assert leader.wait(5.0) == -9
        for pid in pids:
            os.kill(pid, 9)  # raises if it were gone


def test_a_group_that_is_gone_is_an_error() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as leader:
        leader.wait(5.0)
    with pytest.raises(ProcessLookupError):
        kill_tree(leader.pid)
