"""A child and its descriptors, as one thing."""

import errno
import os
import select

import pytest

from holdfast.errors import SpawnFailed
from holdfast.process.child import Child
from holdfast.process.program import Launch

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
        except OSError as error:
            assert error.errno == errno.EIO  # how a terminal ends
            return output
        if not data:
            return output
        output += data


def reap(child: Child) -> int:
    """Wait for the end and close what belongs to it; its exit status."""
    wait_readable(child.pidfd)
    result = os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED)
    assert result is not None
    for fd in {child.pidfd, *(fd for _, fd in child.outputs)}:
        os.close(fd)
    if child.stdin is not None and child.terminal is None:
        os.close(child.stdin)
    return result.si_status


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
    child = Child.on_pipes(shell("kill -9 $$"), {})
    wait_readable(child.pidfd)
    assert reap(child) == 9


def test_a_start_that_fails_leaves_nothing_open() -> None:
    nowhere = Launch("/no/such/program", ["x"], "/")
    with pytest.raises(SpawnFailed):
        Child.on_pipes(nowhere, {}, pipe_stdin=True)
    with pytest.raises(SpawnFailed):
        Child.on_terminal(nowhere, {}, rows=24, cols=80)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_child_that_cannot_be_watched_does_not_stay(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        if terminal:
            Child.on_terminal(shell("sleep 60"), {"PATH": "/bin"}, rows=24, cols=80)
        else:
            Child.on_pipes(shell("sleep 60"), {"PATH": "/bin"})
