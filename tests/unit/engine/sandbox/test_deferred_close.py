"""Descriptors that are closed a moment later."""

import os
import select

import pytest

from holdfast.engine.sandbox.bubblewrap import mount_points as module
from holdfast.engine.sandbox.bubblewrap.mount_points import close_in_background

LIMIT_MS = 5_000


def test_all_are_closed_in_time_whoever_comes_when() -> None:
    for _ in range(3):
        pipes = [os.pipe() for _ in range(8)]
        close_in_background([write for _, write in pipes[:5]])
        close_in_background([write for _, write in pipes[5:]])
        assert_ended([read for read, _ in pipes])


def test_who_comes_when_too_many_wait_closes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_WAITING", 0)
    read, write = os.pipe()
    close_in_background([write])
    assert select.select([read], [], [], 0)[0]
    os.close(read)


def test_what_cannot_be_closed_keeps_no_other_open() -> None:
    read, write = os.pipe()
    close_in_background([-1, write])
    assert_ended([read])


def test_a_fork_has_a_thread_of_its_own() -> None:
    read, write = os.pipe()
    close_in_background([os.dup(write)])  # so that there is one before
    pid = os.fork()
    if pid == 0:
        try:
            own, other = os.pipe()
            close_in_background([other])
            assert_ended([own])
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    os.close(write)
    assert_ended([read])


def assert_ended(descriptors: list[int]) -> None:
    """Each is the end of a pipe that nobody can write to any more."""
    for fd in descriptors:
        poll = select.poll()
        poll.register(fd, 0)
        assert poll.poll(LIMIT_MS) == [(fd, select.POLLHUP)]
        os.close(fd)
