"""One connection on the standard streams [stdio.*]."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wire import HOLDFAST, LIMIT, from_base64, gone, is_alive, start_params

MIB = 1 << 20
STATUS = b'{"id":7,"method":"environment/status"}'
READY = {"id": 7, "result": {"status": "ready"}}
INITIALIZE = (
    b'{"id":1,"method":"initialize","params":{"clientName":"lines"}}\n{"method":"initialized"}'
)


class Lines:
    """A server at the other end of two pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._stderr = process.stderr

    async def send(self, *lines: bytes, end: bytes = b"\n") -> None:
        async with asyncio.timeout(2 * LIMIT):
            self._stdin.write(b"".join(line + end for line in lines))
            await self._stdin.drain()

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(2 * LIMIT):
            line = await self._stdout.readline()
        assert line.endswith(b"\n"), "the server has ended"
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    async def initialize(self) -> dict[str, Any]:
        await self.send(INITIALIZE)
        return await self.receive()

    async def end(self) -> tuple[int, bytes]:
        """End its input: the exit status, and what it still printed."""
        with suppress(ConnectionError):
            self._stdin.close()
        return await self.ended()

    async def ended(self) -> tuple[int, bytes]:
        """Wait for its end: the exit status, and what it still printed."""
        async with asyncio.timeout(2 * LIMIT):
            rest = await self._stdout.read()
            assert await self._stderr.read() == b""
            return await self.process.wait(), rest


@asynccontextmanager
async def lines(*options: str) -> AsyncIterator[Lines]:
    process = await asyncio.create_subprocess_exec(
        *(*HOLDFAST, "serve", "--listen", "stdio", *options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        limit=1 << 20,
    )
    try:
        yield Lines(process)
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(2 * LIMIT):
            await process.communicate()


@pytest.mark.requirement("stdio.lines", "stdio.clean-stdout", "stdio.eof")
async def test_a_message_is_a_line_in_both_directions() -> None:
    async with lines() as server:
        assert "sessionId" in (await server.initialize())["result"]
        await server.send(STATUS, STATUS)
        assert await server.receive() == READY
        assert await server.receive() == READY
        assert await server.end() == (0, b"")


@pytest.mark.requirement("stdio.last-line")
async def test_a_last_line_without_its_end_is_taken() -> None:
    async with lines() as server:
        await server.initialize()
        await server.send(STATUS, end=b"")
        status, rest = await server.end()
        assert (status, json.loads(rest)) == (0, READY)


@pytest.mark.requirement("envelope.malformed.prefix")
async def test_a_malformed_line_is_reported_with_the_name_of_the_transport() -> None:
    async with lines() as server:
        await server.send(b"not-json", b"[]")
        assert (await server.receive())["error"]["message"].startswith(
            "failed to parse JSON-RPC message from exec-server stdio: "
        )
        assert await server.receive() == {
            "id": -1,
            "error": {
                "code": -32600,
                "message": (
                    "failed to parse JSON-RPC message from exec-server stdio:"
                    " expected a JSON-RPC object"
                ),
            },
        }
        await server.initialize()


@pytest.mark.slow
@pytest.mark.requirement("stdio.limit")
async def test_a_line_has_64_mib_at_most() -> None:
    async with lines() as server:
        await server.initialize()
        padded = STATUS[:-1] + b',"pad":"' + b"x" * (64 * MIB - len(STATUS) - 9) + b'"}'
        assert len(padded) == 64 * MIB
        await server.send(padded, end=b"\r\n")
        assert await server.receive() == READY
        with suppress(ConnectionError):
            await server.send(padded + b" ")
        assert await server.ended() == (0, b"")


@pytest.mark.requirement("stdio.utf8")
async def test_invalid_utf8_ends_the_connection_without_a_reply() -> None:
    async with lines() as server:
        await server.initialize()
        await server.send(b'{"id":1,"method":"\xc3"}', STATUS)
        assert await server.ended() == (0, b"")


@pytest.mark.requirement("envelope.violation.notification")
async def test_a_violation_ends_the_connection() -> None:
    async with lines() as server:
        await server.initialize()
        await server.send(STATUS, b'{"method":"nope"}', STATUS)
        assert await server.receive() == READY
        assert await server.end() == (0, b"")


@pytest.mark.requirement("stdio.eof")
async def test_the_end_of_the_input_kills_all_processes() -> None:
    async with lines() as server:
        await server.initialize()
        script = "trap '' HUP TERM INT; sleep 600 & exec sleep 600"
        for tty in (False, True):
            params = start_params(f"p{tty}", ["/bin/sh", "-c", f"echo pid=$$; {script}"], tty=tty)
            start = {"id": 2, "method": "process/start", "params": params}
            await server.send(json.dumps(start).encode())
        pids = [await _announced_pid(server), await _announced_pid(server)]
        assert all(map(is_alive, pids))
        status, _ = await server.end()
        assert status == 0
        for pid in pids:
            assert not is_alive(pid)


async def _announced_pid(server: Lines) -> int:
    """The pid in the next output that has one."""
    while True:
        params = (await server.receive()).get("params", {})
        text = from_base64(params.get("chunk", "")).decode()
        if text.startswith("pid="):
            return int(text.split()[0].removeprefix("pid="))


@pytest.mark.requirement("serve.end.signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_server_on_stdio_too(number: signal.Signals) -> None:
    async with lines() as server:
        await server.initialize()
        server.process.send_signal(number)
        assert await server.ended() == (0, b"")


async def _silent_end(process: asyncio.subprocess.Process) -> int:
    """Wait for the end of a server, which has nothing to complain of: its status."""
    try:
        async with asyncio.timeout(2 * LIMIT):
            _, errors = await process.communicate()
    except TimeoutError:
        process.terminate()
        await process.communicate()
        raise
    assert errors == b""
    return await process.wait()


async def test_a_client_that_closes_both_pipes_ends_the_server() -> None:
    ours, theirs = os.pipe(), os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(*HOLDFAST, "serve", "--listen", "stdio"),
        stdin=ours[0],
        stdout=theirs[1],
        stderr=subprocess.PIPE,
    )
    for fd in (*ours, *theirs):
        os.close(fd)
    assert await _silent_end(process) == 0


async def test_files_may_stand_in_for_the_pipes(tmp_path: Path) -> None:
    requests, replies = tmp_path / "in", tmp_path / "out"
    requests.write_bytes(INITIALIZE + b"\n" + STATUS + b"\n")
    with requests.open("rb") as stdin, replies.open("wb") as stdout:
        process = await asyncio.create_subprocess_exec(
            *(*HOLDFAST, "serve", "--listen", "stdio"),
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        assert await _silent_end(process) == 0
    assert [json.loads(line)["id"] for line in replies.read_text().splitlines()] == [1, 7]


@pytest.mark.slow
async def test_a_guardian_that_is_killed_leaves_nothing_on_stdio() -> None:
    async with lines() as server:
        await server.initialize()
        start = start_params("p", ["/bin/sh", "-c", "echo pid=$$; trap '' TERM; exec sleep 600"])
        request = {"id": 2, "method": "process/start", "params": start}
        await server.send(json.dumps(request).encode())
        pid = await _announced_pid(server)
        server.process.kill()
        await gone(pid, limit=2 * LIMIT)
