"""
Commands of a client application: `command/exec` of an app-server on its standard streams.

The client does as little as possible: it searches for the beginning of an answer and counts. So the
measurement shows the server, and the start of the commands themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.errors import BenchError
from bench.figures import Benchmark, Context, Figure, Subject, Target
from bench.pipes import PipeClient
from bench.processes import peak_memory

__all__ = ["APP_SERVER"]

_MIB = 1024 * 1024
_ECHO = ("/bin/echo", "hello")

_WARM_UP = 10
"""Commands before the first one that counts."""

_HELLO = {"clientInfo": {"name": "bench", "version": "1"}}


class _AppClient(PipeClient):
    """One app-server, and the conversation with it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process)
        # The end of the data read so far, in which an answer may begin.
        self._rest = b""

    def echo(self) -> int:
        """Request a command that writes a word."""
        params = {"command": _ECHO, "sandboxPolicy": {"type": "dangerFullAccess"}}
        return self.send("command/exec", params)

    def answers(self, ids: set[int], *, holding: bytes = b"") -> int:
        """
        Read until all of these requests are answered; each answer has to contain `holding`.

        Returns:
            The bytes that arrived meanwhile.

        Raises:
            BenchError: An answer is unexpected, or the server has ended.
        """
        count = 0
        while ids:
            data = os.read(self.stdout.fileno(), _READ)
            if not data:
                raise BenchError("the app-server ended")
            count += len(data)
            data = self._rest + data
            # Output has no brace in it, so it is not examined further.
            starts = [at for mark in _MARKS if (at := data.find(mark)) >= 0]
            if not starts:
                self._rest = data[-len(_MARKS[0]) :]
                continue
            *lines, self._rest = data[min(starts) :].split(b"\n")
            for line in lines:
                if line.startswith(_MARKS):
                    if holding not in line:
                        raise BenchError(f"an unexpected answer: {line[:200]!r}")
                    ids.discard(json.loads(line)["id"])
        return count


_MARKS = (b'{"id"', b'{"err')
"""Beginning of an answer; no notification has it."""

_READ = 1 << 20
"""Most bytes to read at once."""


@contextmanager
def _serving(context: Context) -> Iterator[tuple[int, _AppClient]]:
    """Start an app-server; yields its pid and the client."""
    assert context.command is not None, "only servers are measured"
    program = context.command.argv[0]
    if Path(program).name.startswith("python"):  # `--holdfast-command "python -m …"`
        program = str(Path(sys.prefix) / "bin" / "holdfast")
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as home,
        subprocess.Popen(
            [program, "app-server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "CODEX_HOME": home},
        ) as process,
    ):
        try:
            client = _AppClient(process)
            client.answers({client.send("initialize", _HELLO)})
            yield process.pid, client
        finally:
            process.terminate()


async def _measure(context: Context) -> Mapping[str, float]:
    # Nothing else runs meanwhile, and a thread reads with fewer calls than an event loop.
    return await asyncio.to_thread(_measure_in_thread, context)


def _measure_in_thread(context: Context) -> Mapping[str, float]:
    sizes = context.sizes
    with _serving(context) as (pid, client):
        for _ in range(_WARM_UP):
            client.answers({client.echo()}, holding=b"hello")
        begun = time.perf_counter()
        for _ in range(sizes.app_commands):
            client.answers({client.echo()}, holding=b"hello")
        in_turn = time.perf_counter() - begun
        begun = time.perf_counter()
        client.answers({client.echo() for _ in range(sizes.app_burst)}, holding=b"hello")
        at_once = time.perf_counter() - begun
        begun = time.perf_counter()
        stream = client.send(
            "command/exec",
            {
                "command": ["/usr/bin/head", "-c", str(sizes.run_bytes), "/dev/zero"],
                "processId": "stream",
                "streamStdoutStderr": True,
                "disableOutputCap": True,
                "sandboxPolicy": {"type": "dangerFullAccess"},
            },
        )
        read = client.answers({stream}, holding=b'"exitCode":0')
        streamed = time.perf_counter() - begun
        if read < sizes.run_bytes * 4 // 3:
            raise BenchError(f"{read} bytes arrived, too few for {sizes.run_bytes} in base64")
        peak = peak_memory(pid)
    return {
        "app_in_turn": in_turn * 1000 / sizes.app_commands,
        "app_at_once": at_once * 1000 / sizes.app_burst,
        "app_stream": streamed,
        "app_peak": peak / _MIB,
    }


APP_SERVER = Benchmark(
    name="app-server",
    figures=(
        Figure(
            key="app_in_turn",
            title="`command/exec` of a buffered echo, one after the other",
            unit="ms",
            others=(Subject.CODEX,),
            targets=(Target(factor=0.4),),
        ),
        Figure(
            key="app_at_once",
            title="`command/exec` of a buffered echo, 50 at once",
            unit="ms",
            others=(Subject.CODEX,),
            targets=(Target(factor=0.4),),
        ),
        Figure(
            key="app_stream",
            title="`command/exec` that streams 100 MB",
            unit="s",
            others=(Subject.CODEX,),
            targets=(Target(factor=0.5),),
        ),
        Figure(
            key="app_peak",
            title="peak memory of the app-server meanwhile",
            unit="MiB",
            others=(Subject.CODEX,),
            targets=(Target(factor=0.5),),
        ),
    ),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), _measure),
)
