"""A child and its descriptors, as one thing."""

import errno
import os
import select

import pytest

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.child import Child, owned_pids
from holdfast.engine.process.executable_lookup import Launch

LIMIT = 5_000
"""Milliseconds."""


def shell(script: str) -> Launch:
    return Launch("/bin/sh", ["sh", "-c", script], "/")


def wait_readable(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(LIMIT), "nothing came"


def drain(fd: int) -> bytes:
    """Everything up to the end."""
    output = b""
    while True:
        wait_readable(fd)
        try:
            data = os.read(fd, 4096)
        except OSError:
            return output  # EIO: how a terminal ends
        if not data:
            return output
        output += data


def reap(child: Child) -> int:
    """Wait for the end and close what belongs to it; its exit status."""
    wait_readable(child.pidfd)
    status = child.exit_status()
    assert status is not None
    assert child.pid in owned_pids()
    child.reap()
    assert child.pid not in owned_pids()
    for _, fd in child.outputs:
        os.close(fd)
    if child.stdin is not None and child.terminal is None:
        os.close(child.stdin)
    return status.si_status


@pytest.mark.requirement("start.state.stdin")
def test_a_child_on_pipes_has_one_for_each_stream() -> None:
    child = Child.on_pipes(shell("echo out; echo err >&2; exit 7"), {})
    assert child.stdin is None
    assert child.terminal is None
    assert [stream for stream, _ in child.outputs] == ["stdout", "stderr"]
    out, err = (fd for _, fd in child.outputs)
    assert drain(out) == b"out\n"
    assert drain(err) == b"err\n"
    assert reap(child) == 7


@pytest.mark.requirement("start.state.stdin")
def test_a_child_may_read_from_a_pipe_that_stays_open() -> None:
    child = Child.on_pipes(shell("read line; echo got $line"), {}, pipe_stdin=True)
    assert child.stdin is not None
    os.write(child.stdin, b"this\n")
    assert drain(child.outputs[0][1]) == b"got this\n"
    assert reap(child) == 0


def test_a_stream_nobody_wants_is_no_pipe() -> None:
    child = Child.on_pipes(shell("readlink /proc/$$/fd/2"), {}, pipe_stderr=False)
    assert [stream for stream, _ in child.outputs] == ["stdout"]
    assert drain(child.outputs[0][1]) == b"/dev/null\n"
    assert reap(child) == 0


@pytest.mark.requirement("pty.one-stream", "pty.size")
def test_a_child_on_a_terminal_has_one_stream_for_all() -> None:
    child = Child.on_terminal(shell("stty size; echo err >&2"), {"PATH": "/bin"}, rows=30, cols=99)
    ((stream, fd),) = child.outputs
    assert stream == "pty"
    assert child.stdin == child.terminal == fd
    assert drain(fd) == b"30 99\r\nerr\r\n"
    assert reap(child) == 0


def test_our_ends_do_not_block() -> None:
    child = Child.on_pipes(shell("read x"), {}, pipe_stdin=True)
    assert child.stdin is not None
    for fd in (child.stdin, *(fd for _, fd in child.outputs)):
        assert not os.get_blocking(fd)
    os.write(child.stdin, b"\n")
    assert reap(child) == 0


def test_the_end_of_a_child_can_be_seen_on_a_descriptor() -> None:
    child = Child.on_pipes(shell("read x; kill -9 $$"), {}, pipe_stdin=True)
    assert child.exit_status() is None
    assert child.stdin is not None
    os.write(child.stdin, b"\n")
    wait_readable(child.pidfd)
    status = child.exit_status()
    assert status is not None
    assert (status.si_code, status.si_status) == (os.CLD_KILLED, 9)
    assert reap(child) == 9


def test_killing_a_group_reaches_what_a_child_has_left_in_it() -> None:
    child = Child.on_pipes(shell("sleep 60 & echo here"), {"PATH": "/bin"}, pipe_stderr=False)
    out = child.outputs[0][1]
    wait_readable(child.pidfd)
    wait_readable(out)
    assert os.read(out, 100) == b"here\n"
    child.kill_group()
    assert drain(out) == b""  # the last holder of the pipe is gone
    child.kill_group()  # harmless
    assert reap(child) == 0


def test_a_child_that_somebody_else_has_reaped_can_still_be_given_back() -> None:
    child = Child.on_pipes(shell("exit 3"), {})
    os.waitpid(child.pid, 0)
    with pytest.raises(ChildProcessError):
        child.exit_status()
    child.kill_group()  # harmless
    child.reap()
    for _, fd in child.outputs:
        os.close(fd)


def test_a_start_that_fails_leaves_nothing_open() -> None:
    nowhere = Launch("/no/such/program", ["x"], "/")
    with pytest.raises(SpawnFailed):
        Child.on_pipes(nowhere, {}, pipe_stdin=True)
    with pytest.raises(SpawnFailed):
        Child.on_terminal(nowhere, {}, rows=24, cols=80)


def test_a_child_that_cannot_be_watched_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    sleeper = Launch("/bin/sleep", ["sleep", "60"], "/")
    with pytest.raises(OSError, match="Too many open files"):
        Child.on_pipes(sleeper, {})
    with pytest.raises(OSError, match="Too many open files"):
        Child.on_terminal(sleeper, {}, rows=24, cols=80)
