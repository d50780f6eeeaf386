"""Starts a server, reads its URL, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import IO

from bench import processes
from bench.client import RawClient, connected
from bench.errors import BenchError
from bench.figures import Acks

__all__ = ["RunningServer", "ServerCommand", "running", "talking"]

_START_SECONDS = 20.0
"""Seconds for a server to print its URL."""

_STOP_SECONDS = 5.0
"""Seconds for a server to end after SIGTERM, before SIGKILL."""


@dataclass(frozen=True)
class ServerCommand:
    """An argv that starts a server on a free loopback port and prints `ws://IP:PORT`."""

    argv: tuple[str, ...]
    token: str | None = None
    """Token that its clients have to send, if any."""


@dataclass(frozen=True)
class RunningServer:
    """A server that has printed its URL."""

    pid: int
    url: str
    launch_seconds: float
    """Seconds from the start of the process to its URL."""

    def processes(self, *, command: Sequence[str] | None = None) -> list[int]:
        """Return the pids of the server itself, without those of the given command."""
        return [ref.pid for ref in processes.tree(self.pid, without=command)]


@contextmanager
def running(command: ServerCommand) -> Iterator[RunningServer]:
    """
    Start a server and end it, with all that it started, when the block ends.

    Raises:
        BenchError: It printed no URL in time.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as home, tempfile.TemporaryFile() as errors:
        # The real server has no sandbox if its home is in the folder for temporary files.
        temporary = os.path.join(home, "tmp")
        os.mkdir(temporary)
        begun = time.perf_counter()
        process = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            # A separate home, so that neither server reads or writes the user's settings.
            env={**os.environ, "CODEX_HOME": home, "TMPDIR": temporary},
            start_new_session=True,
        )
        try:
            url = _read_url(process, errors)
            yield RunningServer(process.pid, url, time.perf_counter() - begun)
        finally:
            _stop(process)


def _read_url(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    assert process.stdout is not None, "it was started with a pipe"
    deadline = time.monotonic() + _START_SECONDS
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not part:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").splitlines() or ["nothing on stderr"]
            raise BenchError(f"the server printed no URL: {lines[-1]}")
        line += part
    url = line.decode().strip()
    if not url.startswith("ws://127.0.0.1:"):
        raise BenchError(f"expected one line ws://127.0.0.1:PORT, got {url!r}")
    return url


def _stop(process: subprocess.Popen[bytes]) -> None:
    everything = processes.tree(process.pid)
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_SECONDS)
    finally:
        assert process.stdout is not None, "it was started with a pipe"
        process.stdout.close()
        processes.end(everything, signal.SIGKILL)


@asynccontextmanager
async def talking(
    command: ServerCommand | None, acks: Acks
) -> AsyncIterator[tuple[RunningServer, RawClient]]:
    """Start a server and connect to it."""
    assert command is not None, "the bare system calls have their own runners"
    with running(command) as server:
        async with connected(server.url, acks, token=command.token) as client:
            yield server, client
