"""
Commands of a client application: `command/exec` of an app-server on its standard streams.

The client does as little as it can: it looks for the beginning of an answer and counts. So
what is measured is the server, and the start of the commands themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from bench.errors import BenchError
from bench.figures import Benchmark, Context, Figure, Subject, Target
from bench.processes import peak_memory

__all__ = ["APP_SERVER"]

_MIB = 1024 * 1024
_ECHO = ("/bin/echo", "hello")

_WARM_UP = 10
"""Commands before the first that counts."""

_HELLO = {"clientInfo": {"name": "bench", "version": "1"}}


class _AppClient(asyncio.SubprocessProtocol):
    """One app-server, and the conversation with it."""

    def __init__(self) -> None:
        self._stdin: asyncio.WriteTransport
        self._last_id = 0
        self._read = 0
        self._holding = b""
        # The part of an answer that has come, and the end of what came before it.
        self._answer = bytearray()
        self._end = b""
        self._wanted: set[int] = set()
        self._done: asyncio.Future[None] | None = None
        self.exited = asyncio.Event()

    def request(self, method: str, params: Mapping[str, object]) -> int:
        """Send a request and return its id."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        self._stdin.write(json.dumps(message).encode() + b"\n")
        return self._last_id

    def echo(self) -> int:
        """Ask for a command that writes a word."""
        params = {"command": _ECHO, "sandboxPolicy": {"type": "dangerFullAccess"}}
        return self.request("command/exec", params)

    async def answers(self, ids: set[int], *, holding: bytes = b"") -> int:
        """
        Wait until all of these requests are answered; each answer has to hold a text.

        Returns:
            The bytes that came meanwhile.

        Raises:
            BenchError: An answer is another one, or the server has ended.
        """
        self._read = 0
        self._wanted = ids
        self._holding = holding
        self._done = asyncio.get_running_loop().create_future()
        await self._done
        return self._read

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the pipe to the server."""
        # Those of uvloop are of no class of asyncio.
        started = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, started.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        """Count what comes, and look at answers only: output has no brace in it."""
        assert isinstance(data, bytes), "pipes carry bytes"
        self._read += len(data)
        if not self._answer:
            start = _answer_start(data, self._end)
            self._end = data[-_MARK:]
            if start is None:
                return
            data = start
        self._answer += data
        while (line := self._answer.partition(b"\n"))[1]:
            self._answer = bytearray(_answer_start(bytes(line[2]), b"") or b"")
            self._take(bytes(line[0]))

    def process_exited(self) -> None:
        """Let nobody wait for an answer any more."""
        self.exited.set()
        if self._done is not None and not self._done.done():
            self._done.set_exception(BenchError("the app-server ended"))

    def _take(self, answer: bytes) -> None:
        assert self._done is not None, "nothing comes that was not asked for"
        self._wanted.discard(json.loads(answer)["id"])
        if self._done.done():
            return
        if self._holding not in answer:
            self._done.set_exception(BenchError(f"an unexpected answer: {answer[:200]!r}"))
        elif not self._wanted:
            self._done.set_result(None)


_MARK = 5
"""Bytes of `{"id"` and of `{"err`, with which an answer begins, as no notification does."""


def _answer_start(data: bytes, before: bytes) -> bytes | None:
    """Return the data from where an answer begins, or None; it may begin in what came before."""
    data = before + data
    found = [at for mark in (b'{"id"', b'{"err') if (at := data.find(mark)) >= 0]
    return data[min(found) :] if found else None


@asynccontextmanager
async def _serving(context: Context) -> AsyncIterator[tuple[int, _AppClient]]:
    """Start an app-server; yields its pid and the client."""
    assert context.command is not None, "only servers are measured"
    program = context.command.argv[0]
    if Path(program).name.startswith("python"):  # `--holdfast-command "python -m …"`
        program = str(Path(sys.prefix) / "bin" / "holdfast")
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        transport, client = await loop.subprocess_exec(
            _AppClient,
            *(program, "app-server"),
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "CODEX_HOME": home},
        )
        try:
            await client.answers({client.request("initialize", _HELLO)})
            yield transport.get_pid(), client
        finally:
            transport.terminate()
            await client.exited.wait()
            transport.close()


async def _measure(context: Context) -> Mapping[str, float]:
    sizes = context.sizes
    async with _serving(context) as (pid, client):
        for _ in range(_WARM_UP):
            await client.answers({client.echo()}, holding=b"hello")
        begun = time.perf_counter()
        for _ in range(sizes.app_commands):
            await client.answers({client.echo()}, holding=b"hello")
        in_turn = time.perf_counter() - begun
        begun = time.perf_counter()
        await client.answers({client.echo() for _ in range(sizes.app_burst)}, holding=b"hello")
        at_once = time.perf_counter() - begun
        begun = time.perf_counter()
        stream = client.request(
            "command/exec",
            {
                "command": ["/usr/bin/head", "-c", str(sizes.run_bytes), "/dev/zero"],
                "processId": "stream",
                "streamStdoutStderr": True,
                "disableOutputCap": True,
                "sandboxPolicy": {"type": "dangerFullAccess"},
            },
        )
        read = await client.answers({stream}, holding=b'"exitCode":0')
        streamed = time.perf_counter() - begun
        if read < sizes.run_bytes * 4 // 3:
            raise BenchError(f"{read} bytes came, too few for {sizes.run_bytes} in base64")
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
