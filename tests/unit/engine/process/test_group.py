"""Members left in a group. A number that means another group by now is not signalled."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from holdfast.engine.process.child import kill_left, left_since

ORPHAN = "sleep 60 & echo $!"
"""A leader that ends, and what it leaves in its group."""


@contextmanager
def ended_leader(script: str, *, reap: bool) -> Iterator[tuple[int, int]]:
    """The number of a group whose leader has ended, and a descriptor of what it left."""
    with subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        pidfd = os.pidfd_open(int(leader.stdout.readline()))
        os.waitid(os.P_PID, leader.pid, os.WEXITED | (0 if reap else os.WNOWAIT))
        try:
            yield leader.pid, pidfd
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def ended(pidfd: int, limit: float = 5.0) -> bool:
    return bool(select.select([pidfd], [], [], limit)[0])


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_what_a_zombie_left_is_killed() -> None:
    with ended_leader(ORPHAN, reap=False) as (group, pidfd):
        assert kill_left(group)
        assert ended(pidfd)
        assert not kill_left(group)  # only zombies are in it


def test_what_a_reaped_leader_left_is_killed() -> None:
    with ended_leader(ORPHAN, reap=True) as (group, pidfd):
        since = left_since(group)
        assert since is not None
        assert kill_left(group, since)
        assert ended(pidfd)


def test_a_zombie_alone_is_nothing_to_kill() -> None:
    with ended_leader("setsid sleep 60 & echo $!", reap=False) as (group, pidfd):
        while os.getsid(int(_pid(pidfd))) == group:
            time.sleep(0.001)  # `setsid` is on its way
        assert not kill_left(group)
        assert not ended(pidfd, 0)


def test_a_group_that_is_gone_has_nothing_left() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as leader:
        leader.wait(5.0)
    assert left_since(leader.pid) is None
    assert not kill_left(leader.pid, now())


def test_a_leader_that_lives_is_not_the_one_that_was_reaped() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        assert left_since(stranger.pid) is not None
        assert not kill_left(stranger.pid, now())
        assert stranger.poll() is None
        stranger.kill()


def test_a_group_in_which_all_are_younger_than_the_reaping_is_another_one() -> None:
    earlier = now() - 1
    with ended_leader(ORPHAN, reap=True) as (group, pidfd):
        assert not kill_left(group, earlier)
        assert not ended(pidfd, 0)


def test_a_group_of_another_user_counts_as_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    assert left_since(1) is not None


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    code = (
        "import ctypes, os, threading, time\n"
        "print(os.getpid(), flush=True)\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with ended_leader(f"python3 -I -S -c '{code}' &", reap=False) as (group, pidfd):
        while _state(_pid(pidfd)) != "Z":
            time.sleep(0.001)
        assert not ended(pidfd, 0)
        assert kill_left(group)
        assert ended(pidfd)


def _pid(pidfd: int) -> str:
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return next(line.split()[1] for line in file if line.startswith("Pid:"))


def _state(pid: str) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
