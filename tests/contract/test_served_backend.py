"""
A server on backends that are not this machine, with a real client over a WebSocket.

What every backend has to do is in the other suites, which also run on `fake-served`. Here is what
only a server adds: sessions, holds, several clients, and the ends of all of them.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.backends import ExecProcess, FileSystem
from holdfast.base.errors import (
    ConnectionLost,
    InvalidRequest,
    NotFound,
    OperationFailed,
    SpawnFailed,
    Unsupported,
)
from holdfast.client.client import ExecServerClient
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver
from holdfast.events import Closed, Exited, ProcessEvent, Reason, StreamEnded
from holdfast.server.app import Server
from holdfast.testing import CODEX, FakeBackend, FakeFileSystem, FakeProcess, FileRequest
from holdfast.wire.protocol.fs import GetMetadataParams, OpenParams, ReadFileParams
from holdfast.wire.protocol.handshake import Capabilities
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputChunk
from tests.contract.running import finish, program
from tests.e2e.wire import LIMIT

pytestmark = pytest.mark.both_loops


@dataclass(frozen=True)
class Served:
    """Fakes behind a server, and one client of it."""

    backend: FakeBackend
    files: FakeFileSystem
    url: str
    client: ExecServerClient

    async def start(self, **options: Any) -> tuple[ExecProcess, FakeProcess]:
        """Start a process: as the client has it, and as the test plays it."""
        process = await self.client.start(program("fake", **options))
        return process, self.backend.processes[-1]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    backend, files = FakeBackend(), FakeFileSystem({"/data/a": "alpha"})
    async with Server(processes=backend, files=files) as server:
        url = await server.listen("ws://127.0.0.1:0")
        async with await ExecServerClient.connect(url) as client:
            yield Served(backend, files, url, client)
    await backend.aclose()


async def collected(process: ExecProcess) -> list[ProcessEvent]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in process.events(stream_ends=True)]


def uri(path: str) -> PathUri:
    return PathUri.from_path(path)


# -- processes


async def test_events_arrive_as_the_backend_numbered_them(served: Served) -> None:
    process, fake = await served.start(pipe_stdin=True)
    assert (process.pid, process.process_id) == (fake.pid, "p")
    fake.output(b"one")
    fake.output(b"two", "stderr")
    fake.stream_ended("stderr")
    fake.output(b"three")
    fake.exit(7)
    fake.output(b"late")
    fake.close()
    events = await collected(process)
    assert [event for event in events if not isinstance(event, StreamEnded)] == [
        OutputChunk(seq=1, stream="stdout", chunk=b"one"),
        OutputChunk(seq=2, stream="stderr", chunk=b"two"),
        OutputChunk(seq=3, stream="stdout", chunk=b"three"),
        Exited(4, await process.wait()),
        OutputChunk(seq=5, stream="stdout", chunk=b"late"),
        Closed(6),
    ]
    assert StreamEnded("stderr", 2) in events
    assert (await process.wait()).exit_code == 7


async def test_a_process_whose_output_is_lost_on_the_way_ends(served: Served) -> None:
    process, fake = await served.start()
    fake.output(b"one")
    fake.gap(3)
    fake.output(b"five")
    # Clients wait for every number, so that no server may leave one out.
    async with asyncio.timeout(LIMIT):
        verdict = await process.wait()
    assert (verdict.reason, verdict.exit_code) == (Reason.LOST, -1)
    assert verdict.detail == "its output 2 to 4 was lost"
    assert not fake.running


async def test_calls_reach_the_process_and_its_refusals_come_back(served: Served) -> None:
    process, fake = await served.start(pipe_stdin=True)
    await process.write(b"in", "id")
    await process.write(b"again", "id")
    await process.signal("SIGUSR1")
    await process.signal("interrupt")
    await process.close_stdin()
    assert (fake.written, fake.signals, fake.stdin_closed) == (
        b"in",
        ["SIGUSR1", "interrupt"],
        True,
    )
    with pytest.raises(InvalidRequest, match=r"^process p has no terminal to resize$"):
        await process.resize(1, 2)
    fake.refuse("signal", OperationFailed("not yours", errno=errno.EPERM))
    with pytest.raises(OperationFailed, match=r"^not yours$") as refused:
        await process.signal("SIGTERM")
    assert refused.value.errno == errno.EPERM
    # Not of the client's own connection, so the client must not take it for that.
    fake.refuse("signal", ConnectionLost("the machine is gone"))
    with pytest.raises(OperationFailed, match=r"^the machine is gone$"):
        await process.signal("SIGTERM")
    assert await process.terminate()
    assert (await process.wait()).reason is Reason.TERMINATED


async def test_a_start_that_fails_leaves_its_id_free(served: Served) -> None:
    served.backend.refuse_next_start(SpawnFailed("no such program", errno=errno.ENOENT))
    with pytest.raises(SpawnFailed, match=r"^no such program$"):
        await served.client.start(program("fake"))
    served.backend.hold_starts()
    starting = asyncio.create_task(served.client.start(program("fake")))
    await served.backend.until(lambda: len(served.backend.starts) == 2)
    starting.cancel()
    served.backend.let_start()
    # The client gives up what it did not wait for.
    fake = await served.backend.process(0)
    await fake.until(lambda: not fake.running)
    process, again = await served.start(process_id="q")
    again.end(3)
    assert (await finish(process)).exit_code == 3


async def test_a_slow_reader_makes_the_backend_wait(served: Served) -> None:
    process, fake = await served.start()
    stream = process.events()
    size = 12 << 20
    writing = asyncio.create_task(fake.flow(bytes(size)))
    await fake.until(lambda: fake.held)
    assert not writing.done()
    total = 0
    async with asyncio.timeout(2 * LIMIT):
        async for event in stream:
            if isinstance(event, OutputChunk):
                total += len(event.chunk)
            if total == size and fake.running:
                await writing
                fake.end()
    assert total == size


async def test_two_clients_may_use_the_same_id(served: Served) -> None:
    process, fake = await served.start()
    async with await ExecServerClient.connect(served.url) as second:
        other = await second.start(program("fake"))
        assert other.process_id == "p"
        (first_fake, second_fake) = served.backend.processes
        first_fake.output(b"first")
        second_fake.output(b"second")
        second_fake.end(2)
        first_fake.end(1)
        assert (await finish(process)).stdout == b"first"
        assert (await finish(other)).stdout == b"second"
    assert fake is first_fake


async def test_a_backend_that_is_lost_ends_its_processes_and_nothing_else() -> None:
    backend = FakeBackend(remote=True)
    async with Server(processes=backend) as server:
        url = await server.listen("ws://127.0.0.1:0")
        async with await ExecServerClient.connect(url) as client:
            process = await client.start(program("fake"))
            (fake,) = backend.processes
            fake.output(b"last words")
            await fake.until(lambda: not fake.held)
            backend.lose_for_good()
            async with asyncio.timeout(LIMIT):
                verdict = await process.wait()
            assert (verdict.reason, verdict.exit_code) == (Reason.LOST, -1)
            assert verdict.detail == "the fake server is lost"
            with pytest.raises(OperationFailed, match=r"^the fake server is lost$"):
                await client.start(program("fake", process_id="q"))
            assert (await client.info()).capabilities.process_ack


async def test_a_server_announces_no_more_than_its_backend_can(served: Served) -> None:
    can = (await served.client.info()).capabilities
    assert can.process_limits
    assert can.process_resize
    # Daemons are searched and configurations read on the server's own machine.
    assert not can.process_end_marked
    assert not can.environment_config_read
    backend = FakeBackend(capabilities=CODEX)
    async with Server(processes=backend) as server:
        url = await server.listen("ws://127.0.0.1:0")
        async with await ExecServerClient.connect(url) as client:
            assert not client.capabilities.process_resize
            assert client.capabilities.process_ack
            process = await client.start(program("fake"))
            with pytest.raises(Unsupported):
                await process.resize(1, 1)
    await backend.aclose()
    assert isinstance(client.capabilities, Capabilities)


async def test_the_end_of_a_session_kills_its_processes_and_of_no_other(served: Served) -> None:
    reasons: list[Reason] = []

    class Ends(ProcessObserver):
        def exited(self, process: LoggedProcess, verdict: object) -> None:
            assert process.log.verdict is not None
            reasons.append(process.log.verdict.reason)

    _, kept = await served.start()
    backend = served.backend
    async with Server(processes=backend, session_expiry=0.0, observers=[Ends()]) as server:
        url = await server.listen("ws://127.0.0.1:0")
        async with await ExecServerClient.connect(url) as client:
            await client.start(program("fake", process_id="q"))
            last = backend.processes[-1]
            child = last.child()
        await last.until(lambda: not last.running and not child.alive)
        async with await ExecServerClient.connect(url) as client:
            process = await client.start(program("fake", process_id="q"))
            await server.__aexit__(None, None, None)
            assert (await process.wait()).reason is Reason.SERVER_STOPPING
    assert reasons == [Reason.SESSION_EXPIRED, Reason.SERVER_STOPPING]
    assert kept.running


async def test_a_server_may_stand_on_another_server(served: Served) -> None:
    near = Server(processes=served.client, files=served.client.files, http=served.client.http)
    async with near as server:
        url = await server.listen("ws://127.0.0.1:0")
        async with await ExecServerClient.connect(url) as client:
            process = await client.start(program("fake", pipe_stdin=True))
            (fake,) = served.backend.processes
            await process.write(b"through two servers")
            assert await fake.next_input() == b"through two servers"
            fake.output(b"and back")
            fake.end(5)
            assert (await finish(process)).stdout == b"and back"
            assert await client.files.read_file(ReadFileParams(uri("/data/a"))) == b"alpha"


# -- files


@pytest.fixture
def remote_files(served: Served) -> FileSystem:
    return served.client.files


async def test_refusals_and_delays_of_files_reach_the_client(
    served: Served, remote_files: FileSystem
) -> None:
    served.files.refuse("read_file", OperationFailed("worn out", errno=errno.EIO), "/data/a")
    with pytest.raises(OperationFailed, match=r"^worn out$"):
        await remote_files.read_file(ReadFileParams(uri("/data/a")))
    served.files.refuse("read_file", None, "/data/a")
    served.files.hold("read_file")
    waiting = asyncio.create_task(remote_files.read_file(ReadFileParams(uri("/data/a"))))
    await served.files.until(lambda: len(served.files.asked) == 2)
    # Other requests of the client do not wait for it.
    assert (await remote_files.get_metadata(GetMetadataParams(uri("/data/a")))).size == 5
    assert not waiting.done()
    served.files.let()
    assert await waiting == b"alpha"


async def test_requests_on_one_handle_keep_their_order(
    served: Served, remote_files: FileSystem
) -> None:
    handle = await remote_files.open(OpenParams(handle_id="", path=uri("/data/b"), mode="replace"))
    served.files.hold("write_block")
    writes = [asyncio.create_task(handle.write_block(at, b"%d" % at)) for at in range(5)]
    closing = asyncio.create_task(handle.aclose())
    write = FileRequest("write_block", ("/data/b",))
    await served.files.until(lambda: write in served.files.asked)
    assert served.files.asked.count(write) == 1
    served.files.let()
    await asyncio.gather(*writes, closing)
    assert served.files.path("/data/b").read_text() == "01234"
    with pytest.raises(NotFound):
        await handle.read_block(0, 1)


async def test_a_client_that_goes_leaves_no_half_written_file(served: Served) -> None:
    async with await ExecServerClient.connect(served.url) as client:
        handle = await client.files.open(
            OpenParams(handle_id="", path=uri("/data/a"), mode="replace")
        )
        await handle.write_block(0, b"half")
    assert served.files.path("/data/a").read_text() == "alpha"


async def test_a_replacement_that_is_given_up_frees_its_handle(served: Served) -> None:
    """On the way through two servers as well, whose connection to each other does not end."""
    far = served.client.files
    async with Server(files=far) as server:
        url = await server.listen("ws://127.0.0.1:0")
        # More than one connection may have open at once.
        for _ in range(13):
            async with await ExecServerClient.connect(url) as client:
                for _ in range(10):
                    handle = await client.files.open(
                        OpenParams(handle_id="", path=uri("/data/a"), mode="replace")
                    )
                    await handle.write_block(0, b"half")
        last = await far.open(OpenParams(handle_id="", path=uri("/data/a"), mode="replace"))
        last.discard()
        last.discard()
    assert served.files.path("/data/a").read_text() == "alpha"


async def test_an_opening_that_is_given_up_frees_its_handle(served: Served) -> None:
    files = served.client.files
    served.files.hold("open")
    for number in range(130):
        opening = asyncio.create_task(
            files.open(OpenParams(handle_id="", path=uri("/data/a"), mode="replace"))
        )
        await served.files.until(lambda: len(served.files.asked) == 2 * number + 1)  # noqa: B023
        opening.cancel()
        served.files.let(1)
        await served.files.until(lambda: len(served.files.asked) == 2 * number + 2)  # noqa: B023
    assert served.files.path("/data/a").read_text() == "alpha"
