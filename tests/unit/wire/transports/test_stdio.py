"""Standard streams and pairs of pipes, which are real here."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from io import FileIO
from pathlib import Path

import pytest

from holdfast.wire.transports.stdio import connect_pipes
from holdfast.wire.transports.transport import HIGH_WATER
from tests.unit.wire.transports.recorder import LIMIT, Recorder

ECHO = """
import asyncio, os
from holdfast.wire.transports.stdio import serve_stdio

class Echo:
    def __init__(self, transport):
        self.transport = transport
        self.ended = asyncio.Event()
    def received(self, message):
        self.transport.send(b"re:" + message)
    def lost(self, reason):
        self.transport.close()
        self.ended.set()
    def pause_sending(self): ...
    def resume_sending(self): ...

async def main():
    echo = None
    def accept(transport):
        nonlocal echo
        echo = Echo(transport)
        return echo
    await serve_stdio(accept)
    print("printed by mistake", flush=True)
    assert os.read(0, 1) == b""
    await echo.ended.wait()

asyncio.run(main())
"""


class Pipes:
    """A transport on two pipes, and the far ends of both."""

    def __init__(self, recorder: Recorder, to_us: int, from_us: int) -> None:
        self.recorder = recorder
        self.to_us = FileIO(to_us, "wb")
        self.from_us = FileIO(from_us, "rb")

    def close(self) -> None:
        self.to_us.close()
        self.from_us.close()


@pytest.fixture
async def pipes() -> AsyncIterator[Pipes]:
    incoming, to_us = os.pipe()
    from_us, outgoing = os.pipe()
    recorder = Recorder()
    transport = await connect_pipes(incoming, outgoing, recorder.accept)
    pipes = Pipes(recorder, to_us, from_us)
    yield pipes
    transport.abort()
    await recorder.end()
    pipes.close()


@pytest.mark.requirement("stdio.lines")
async def test_lines_cross_two_pipes(pipes: Pipes) -> None:
    pipes.to_us.write(b"one\ntwo\r\n")
    assert await pipes.recorder.count(2) == [b"one", b"two"]
    pipes.recorder.line.send(b"out")
    assert pipes.from_us.read(100) == b"out\n"
    assert pipes.recorder.line.kind == "stdio"


@pytest.mark.requirement("stdio.last-line")
async def test_the_end_of_the_input_ends_the_connection(pipes: Pipes) -> None:
    pipes.to_us.write(b"last")
    pipes.to_us.close()
    assert await pipes.recorder.end() == "end of input"
    assert pipes.recorder.messages == [b"last"]


async def test_an_output_that_nobody_reads_any_more_ends_the_connection(pipes: Pipes) -> None:
    pipes.from_us.close()
    await pipes.recorder.end()
    pipes.recorder.line.send(b"late")


async def test_an_output_that_is_full_is_told_of(pipes: Pipes) -> None:
    message = bytes(2 * HIGH_WATER)
    pipes.recorder.line.send(message)
    await pipes.recorder.until(lambda: pipes.recorder.pauses == ["pause"])
    loop = asyncio.get_running_loop()
    sink = loop.run_in_executor(None, pipes.from_us.readall)
    await pipes.recorder.until(lambda: pipes.recorder.pauses == ["pause", "resume"])
    pipes.recorder.line.close()
    async with asyncio.timeout(LIMIT):
        assert await sink == message + b"\n"


@pytest.mark.requirement("stdio.clean-stdout")
def test_a_server_on_its_streams_speaks_lines_and_prints_nothing_else() -> None:
    served = subprocess.run(
        [sys.executable, "-c", ECHO], input=b"one\ntwo", capture_output=True, timeout=LIMIT
    )
    assert served.stdout == b"re:one\nre:two\n"
    assert (served.returncode, served.stderr) == (0, b"")


def test_the_streams_may_be_files(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one\ntwo\n")
    with open(tmp_path / "in", "rb") as source, open(tmp_path / "out", "wb") as target:
        served = subprocess.run(
            [sys.executable, "-c", ECHO],
            stdin=source,
            stdout=target,
            stderr=subprocess.PIPE,
            timeout=LIMIT,
        )
    assert (tmp_path / "out").read_bytes() == b"re:one\nre:two\n"
    assert (served.returncode, served.stderr) == (0, b"")
