"""Connections cut at random under load: no byte is lost, doubled, reordered or written twice."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.client import ExecServerClient
from holdfast.client.remote_process import RemoteProcess
from holdfast.events import Exited
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputChunk, StartParams, WriteStatus
from tests.e2e.cutting import CuttingProxy, cutting
from tests.e2e.wire import LIMIT, PATH, ServerProcess
from tests.real.codex import codex_serving
from tests.real.versions import VERSIONS

STREAMS, ECHOES = 4, 4
"""Processes that write by themselves, and processes that repeat what is written to them."""

PAUSE = 0.01
"""Seconds between writes: a recovery takes its time, and nothing is gained by haste meanwhile."""

LINES_AHEAD = 4_000
"""Lines that a stream writes before one of them is read: about 500 kB of the longest."""


def params(process_id: str, script: str, **options: Any) -> StartParams:
    return StartParams(
        process_id=process_id,
        argv=["/bin/bash", "-c", script],
        cwd=PathUri.parse("file:///"),
        env={"PATH": PATH},
        tty=False,
        **options,
    )


class Load:
    """Work that can be checked byte for byte, and that goes on until it is told to end."""

    def __init__(self, client: ExecServerClient, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._stop = folder / "stop"
        self._writing = True
        self.done = 0
        """Lines that came as they should."""
        self._moved = asyncio.Event()

    async def progress(self) -> None:
        """Wait until something has come since the last call."""
        self._moved.clear()
        async with asyncio.timeout(2 * LIMIT):
            await self._moved.wait()

    def _seen(self, number: int) -> Path:
        """Return the file in which the reader of a stream writes how many lines have come."""
        return self._folder / f"seen-{number}"

    def stop(self) -> None:
        self._writing = False
        self._stop.touch()

    async def start_stream(self, number: int) -> RemoteProcess:
        """Numbered lines, never further ahead of their reader than what a server retains.

        A Codex server forgets what is older than 1 MiB, however long a recovery takes.
        """
        script = (
            f"n=0; while [ ! -e {self._stop} ]; do"
            f" read seen < {self._seen(number)}; [ $((n - seen)) -gt {LINES_AHEAD} ] ||"
            f" for i in {{1..50}}; do echo $n {'x' * (40 * number + 1)}; n=$((n+1)); done;"
            " sleep 0.05; done; exit 9"
        )
        self._seen(number).write_text("0\n")
        return await self._client.start(params(f"stream-{number}", script))

    async def start_echo(self, number: int) -> RemoteProcess:
        return await self._client.start(params(f"echo-{number}", "cat", pipe_stdin=True))

    async def stream(self, number: int, process: RemoteProcess) -> None:
        """Each line comes once and in its turn."""
        expected, rest = 0, b""
        code = None
        async for event in process.events():
            if isinstance(event, OutputChunk):
                *lines, rest = (rest + event.chunk).split(b"\n")
                for line in lines:
                    assert line == b"%d %s" % (expected, b"x" * (40 * number + 1))
                    expected += 1
                self._seen(number).write_text(f"{expected}\n")
                self._moves(len(lines))
            elif isinstance(event, Exited):
                code = event.verdict.exit_code
        assert (rest, code) == (b"", 9)
        assert expected % 50 == 0

    async def echo(self, number: int, process: RemoteProcess) -> None:
        """Numbered writes, several on the way at once, that come back once each and in order."""
        written = 0

        async def write() -> None:
            nonlocal written
            on_the_way: list[asyncio.Task[WriteStatus]] = []
            async with asyncio.TaskGroup() as tasks:
                while self._writing:
                    for _ in range(8):
                        line = b"%d of %d\n" % (written, number)
                        on_the_way.append(tasks.create_task(process.write(line)))
                        written += 1
                    for task in on_the_way:
                        assert await task is WriteStatus.ACCEPTED
                    on_the_way.clear()
                    await asyncio.sleep(PAUSE)
            await process.write(b"end\n")

        async def read() -> None:
            expected, rest = 0, b""
            async for event in process.events():
                if not isinstance(event, OutputChunk):
                    continue
                *lines, rest = (rest + event.chunk).split(b"\n")
                for line in lines:
                    if line == b"end":
                        assert expected == written
                        await process.terminate()
                        return
                    assert line == b"%d of %d" % (expected, number)
                    expected += 1
                self._moves(len(lines))
            raise AssertionError("it ended too early")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            tasks.create_task(read())

    def _moves(self, lines: int) -> None:
        self.done += lines
        self._moved.set()


async def survives(url: str, folder: Path, *, cuts: int) -> None:
    """Cut the connection so many times under load."""
    chance = random.Random(2026)
    async with cutting(url) as proxy, await ExecServerClient.connect(proxy.url) as client:
        load = Load(client, folder)
        # A start is not repeated, so the cuts begin when all are there.
        streams = [await load.start_stream(number) for number in range(STREAMS)]
        echoes = [await load.start_echo(number) for number in range(ECHOES)]
        async with asyncio.TaskGroup() as tasks:
            for number, process in enumerate(streams):
                tasks.create_task(load.stream(number, process))
            for number, process in enumerate(echoes):
                tasks.create_task(load.echo(number, process))
            await load.progress()
            for _ in range(cuts):
                await cut_once(proxy, load, chance)
            await load.progress()
            load.stop()
        assert proxy.accepted > cuts
        assert load.done > 10 * cuts


async def cut_once(proxy: CuttingProxy, load: Load, chance: random.Random) -> None:
    if chance.random() < 0.3:
        # In the middle of the handshake or of the catching up.
        await proxy.connected(2 * LIMIT)
        for _ in range(chance.randrange(30)):
            await asyncio.sleep(0)
    else:
        for _ in range(chance.randrange(1, 6)):
            await load.progress()
        await proxy.connected(2 * LIMIT)
    assert proxy.cut()


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path
    (tmp_path / "stop").touch()  # however the test went, nothing goes on


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.requirement("client.recovery.reads", "client.recovery.write-repeated")
async def test_a_few_cuts_under_load_lose_double_and_reorder_nothing(
    server: ServerProcess, folder: Path
) -> None:
    await survives(server.url, folder, cuts=8)


@pytest.fixture(scope="module")
def codex_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    if not VERSIONS:
        yield None  # the test that wants it is skipped
        return
    with codex_serving(tmp_path_factory.mktemp("codex")) as url:
        yield url


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_cuts_before_the_real_server_lose_double_and_reorder_nothing(
    codex_url: str | None, folder: Path
) -> None:
    assert codex_url is not None  # the mark sees to it
    await survives(codex_url, folder, cuts=8)
