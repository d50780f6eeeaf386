"""The guard of a question: processes that start others while it looks at them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.engine.linux.proc import stat_fields
from holdfast.front.drop_in.terminal_guard import Guard

CHAIN = """
import ctypes, os, signal, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
# Without this, each member of the chain would stay as a zombie.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork():
    sys.stdin.read()
else:
    print(flush=True)
    while True:
        if os.fork():
            os._exit(0)
"""
"""Adopts processes like a sandbox: those of a chain, each of which starts the next and ends."""


@contextmanager
def started(program: str) -> Iterator[int]:
    """Start a program, and end all its processes after the block."""
    command = [sys.executable, "-I", "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            # In one step, so that none of them starts another.
            os.killpg(process.pid, signal.SIGKILL)


def states_below(first: int) -> set[bytes]:
    """Return the states of the processes that a process has started or adopted."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = stat_fields(os.fspath(folder))[:2]
        except OSError:
            continue
        if int(parent) == first:
            found.add(state)
    return found


def test_a_chain_of_short_processes_does_not_pass_for_stopped() -> None:
    for _ in range(5):
        with started(CHAIN) as first:
            guard = Guard(terminal=-1, device=-1, first=frozenset([first]))
            # It may or may not catch up with the chain, which always has a living member.
            if any(guard.stop_commands() for _ in range(20)):
                assert b"T" in states_below(first)
            guard.release()


def test_the_number_of_a_sandbox_that_has_ended_stands_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(["true"]) as other:
        ended = os.pidfd_open(other.pid)
    with started(CHAIN.replace("while True:", "sys.stdin.read()\n    if False:")) as first:
        with monkeypatch.context() as patch:
            patch.setattr("os.pidfd_open", lambda pid: ended)
            guard = Guard(terminal=-1, device=-1, first=frozenset([first]))
        assert any(guard.stop_commands() for _ in range(20))
        assert b"T" not in states_below(first)
        guard.release()
