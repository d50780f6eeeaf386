"""
The same work with bare system calls: no server, no socket, no event loop.

The figures of starts, terminals and files are compared with this floor.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pybase64

from bench.errors import BenchError

__all__ = [
    "copy_through_base64",
    "pipe_rate",
    "start_with_pipes",
    "start_with_terminal",
    "terminal_rate",
]

_READ_SIZE = 65536


def start_with_pipes(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
) -> None:
    """Start a command with pipes, read both to their end, and wait for it."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None, "it was started with pipes"
        assert child.stderr is not None, "it was started with pipes"
        for stream in (child.stdout, child.stderr):
            while os.read(stream.fileno(), _READ_SIZE):
                pass
    _check(child)


def start_with_terminal(argv: Sequence[str]) -> None:
    """Start a command on a new terminal, read that to its end, and wait for it."""
    master, slave = os.openpty()
    try:
        child = _start_on(slave, argv)
        while _read_terminal(master):
            pass
        child.wait()
    finally:
        os.close(master)
    _check(child)


def pipe_rate(argv: Sequence[str], size: int) -> float:
    """Return the bytes per second read from a command that writes `size` bytes to a pipe."""
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None, "it was started with a pipe"
        return _rate(child.stdout.fileno(), size)


def terminal_rate(argv: Sequence[str], size: int) -> float:
    """Return the bytes per second read from a command that writes `size` bytes to a terminal."""
    master, slave = os.openpty()
    try:
        child = _start_on(slave, argv)
        rate = _rate(master, size)
        while _read_terminal(master):
            pass
        child.wait()
    finally:
        os.close(master)
    _check(child)
    return rate


def copy_through_base64(source: Path, destination: Path, block: int | None) -> None:
    """Copy a file, in blocks or in one piece, each encoded as base64 and decoded on the way."""
    with source.open("rb", buffering=0) as old, destination.open("wb", buffering=0) as new:
        while data := old.read(source.stat().st_size if block is None else block):
            new.write(pybase64.b64decode(pybase64.b64encode(data), validate=True))


def _rate(fd: int, size: int) -> float:
    """Time a read loop from its first byte on, so that the start of the command is excluded."""
    first = len(os.read(fd, _READ_SIZE))
    left = size - first
    begun = time.perf_counter()
    while left > 0:
        got = len(os.read(fd, _READ_SIZE))
        if not got:
            raise BenchError("the command wrote less than requested")
        left -= got
    return (size - first) / (time.perf_counter() - begun)


def _start_on(slave: int, argv: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
    finally:
        os.close(slave)


def _read_terminal(master: int) -> bytes:
    try:
        return os.read(master, _READ_SIZE)
    except OSError as error:
        if error.errno != errno.EIO:  # Linux reports this once the last slave is closed
            raise
        return b""


def _check(child: subprocess.Popen[bytes]) -> None:
    if child.returncode != 0:
        raise BenchError(f"{child.args!r} ended with {child.returncode}")
