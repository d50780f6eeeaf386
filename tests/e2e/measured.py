"""A server in a process of its own that tells what it holds, for tests that look for leaks."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.wire import LIMIT, first_line, readable


class Measured:
    """A server with short memory for closed processes, and a way to look inside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self.url = first_line(process)
        self._ask = process.stdin.fileno()
        self._told = process.stdout.fileno()

    async def measure(self) -> dict[str, int]:
        """Return what it holds now."""
        os.write(self._ask, b"\n")
        line = b""
        async with asyncio.timeout(LIMIT):
            while not line.endswith(b"\n"):
                await readable(self._told)
                line += os.read(self._told, 4096)
        measured = json.loads(line)
        assert isinstance(measured, dict)
        return measured

    async def settled(self) -> dict[str, int]:
        """Return the figures once no process is kept any more."""
        async with asyncio.timeout(2 * LIMIT):
            while (measured := await self.measure())["processes"]:
                pass
        return measured


@contextmanager
def measured(retention: float, *, ping_interval: float = 30.0, **env: str) -> Iterator[Measured]:
    """Start a server that keeps closed processes so many seconds, and end it."""
    script = Path(__file__).with_name("measured_server.py")
    with subprocess.Popen(
        [sys.executable, str(script), str(retention), str(ping_interval)],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            yield Measured(process)
            process.stdin.close()
            assert process.wait(2 * LIMIT) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()
