"""Backends that fail in ways of their own: a server outlives them all."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.backends import ExecBackend, HttpBody
from holdfast.base.errors import ConnectionLost, HoldfastError, InvalidParams
from holdfast.engine.process.event_stream import LogEventStream
from holdfast.engine.process.process_table import ProcessTable, TableSettings
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import Reason
from holdfast.server.app import Server
from holdfast.testing import FakeBackend, FakeFileSystem, FakeProcess
from holdfast.testing.fake_files import FakeWatch
from holdfast.testing.file_tree import FileTree
from holdfast.wire.protocol.fs import WatchMissingParams
from holdfast.wire.protocol.http import HttpRequestParams, HttpResponse
from holdfast.wire.protocol.process import StartParams
from tests.unit.engine.process.starting import eventually
from tests.unit.server.serving import Client


class FailingHttp:
    """Calls that fail with a given error, before or in the middle of their bodies."""

    def __init__(self, error: Exception, *, in_body: bool) -> None:
        self._error = error
        self._in_body = in_body
        self.closed = 0

    async def request(self, params: HttpRequestParams) -> HttpResponse:
        raise self._error

    async def stream(self, params: HttpRequestParams) -> tuple[HttpResponse, HttpBody]:
        if not self._in_body:
            raise self._error
        return HttpResponse(status=200, headers=[], body_base64=b""), self

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"half"
        raise self._error

    async def aclose(self) -> None:
        self.closed += 1


async def call_out(client: Client, number: int, *, stream: bool) -> Any:
    """Ask for an HTTP call; its answer."""
    params = {"method": "GET", "url": "http://x/", "headers": [], "requestId": "r"}
    client.say(id=number, method="http/request", params={**params, "streamResponse": stream})
    return await client.transport.answer(number)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InvalidParams("no such scheme"), -32602, "no such scheme"),
        (ConnectionLost("the proxy is gone"), -32603, "the proxy is gone"),
    ],
)
async def test_an_http_client_of_others_fails_one_request(
    error: HoldfastError, code: int, text: str
) -> None:
    async with Server(http=FailingHttp(error, in_body=False)) as server:
        client = Client(server)
        await client.initialize()
        assert await call_out(client, 100, stream=False) == (code, text)
        # The id is free again after each.
        for number in (101, 102):
            assert await call_out(client, number, stream=True) == (code, text)
        client.hang_up()


@pytest.mark.parametrize(
    ("error", "text"),
    [(ConnectionLost("cut"), "cut"), (RuntimeError("a bug"), "internal error")],
)
async def test_a_body_of_others_that_fails_ends_only_itself(
    error: Exception, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    http = FailingHttp(error, in_body=True)
    async with Server(http=http) as server:
        client = Client(server)
        await client.initialize()
        assert (await call_out(client, 100, stream=True))["status"] == 200
        last = await client.hears("http/request/bodyDelta", 2)
        assert (last["done"], last["error"], http.closed) == (True, text, 1)
        assert await client.call("environment/status") == {"status": "ready"}
        client.hang_up()
    assert ("a bug" in caplog.text) == isinstance(error, RuntimeError)


class UnclosableBody(FailingHttp):
    """Bodies that cannot be closed."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"all"

    async def aclose(self) -> None:
        raise self._error


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError()])
async def test_a_body_that_cannot_be_closed_is_complete_all_the_same(error: Exception) -> None:
    async with Server(http=UnclosableBody(error, in_body=True)) as server:
        client = Client(server)
        await client.initialize()
        assert (await call_out(client, 100, stream=True))["status"] == 200
        last = await client.hears("http/request/bodyDelta", 2)
        assert (last["done"], last["error"]) == (True, None)
        assert await client.call("environment/status") == {"status": "ready"}
        client.hang_up()


async def test_a_call_that_a_backend_cancels_is_answered() -> None:
    """As by a backend that awaits a task of its own, which something else has cancelled."""
    error: Any = asyncio.CancelledError()
    text = "the backend cancelled the call"
    backend = FakeBackend()
    backend.refuse_next_start(error)
    async with Server(processes=backend, http=FailingHttp(error, in_body=True)) as server:
        client = Client(server)
        await client.initialize()
        assert await client.start("x") == (-32603, text)
        assert await call_out(client, 100, stream=False) == (-32603, text)
        assert (await call_out(client, 101, stream=True))["status"] == 200
        last = await client.hears("http/request/bodyDelta", 2)
        assert (last["done"], last["error"]) == (True, "the backend cancelled the body")
        client.hang_up()


class LostWatch(FakeWatch):
    """A watch that fails with a given error."""

    error: BaseException

    async def changed(self) -> None:
        raise self.error


class LosingFiles(FakeFileSystem):
    """Files whose watches fail."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    async def watch_missing(self, params: WatchMissingParams) -> LostWatch:
        watch = LostWatch(FileTree(), [path.native for path in params.missing], None)
        watch.error = self._error
        return watch


@pytest.mark.parametrize(
    "error",
    [ConnectionLost("the disk is gone"), RuntimeError("a bug"), asyncio.CancelledError()],
    ids=["lost", "bug", "cancelled"],
)
async def test_a_watch_that_is_lost_makes_the_client_look(error: BaseException) -> None:
    async with Server(files=LosingFiles(error)) as server:
        client = Client(server)
        await client.initialize()
        watched = await client.call("fs/watchMissing", watchId=1, missing=["file:///a"])
        assert watched == {"watching": True}
        assert (await client.hears("fs/missingChanged"))["watchId"] == 1
        assert await client.call("environment/status") == {"status": "ready"}
        client.hang_up()


class BrokenProcess(FakeProcess):
    """A process of a backend with a bug."""

    at_kill: BaseException
    at_read: BaseException

    async def terminate(self, **options: Any) -> bool:
        raise self.at_kill

    def events(self, *arguments: Any, **options: Any) -> LogEventStream:
        raise self.at_read


class BrokenBackend:
    """Starts nothing but those."""

    def __init__(self, at_read: BaseException, at_kill: BaseException) -> None:
        self._at_read = at_read
        self._at_kill = at_kill

    async def start(self, params: StartParams) -> BrokenProcess:
        process = BrokenProcess(params)
        process.at_read, process.at_kill = self._at_read, self._at_kill
        return process


async def ends_lost(backend: ExecBackend) -> str | None:
    """Start a process, which has to end as lost; return the detail that its client gets."""
    async with Server(processes=backend) as server:
        client = Client(server)
        await client.initialize(acknowledges=True)
        await client.start("x")
        exited = await client.hears("process/exited")
        assert (exited["exitCode"], exited["reason"]) == (-1, Reason.LOST.value)
        await client.hears("process/closed")
        client.hang_up()
        detail: str | None = exited["detail"]
        return detail


@pytest.mark.parametrize(
    "at_kill",
    [ConnectionLost("nobody listens"), OSError(5, "a bug, too"), asyncio.CancelledError()],
    ids=["lost", "bug", "cancelled"],
)
async def test_a_bug_of_a_backend_ends_the_process_with_its_reason(
    at_kill: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    detail = await ends_lost(BrokenBackend(RuntimeError("a bug of the backend"), at_kill))
    assert detail == "the backend failed: RuntimeError('a bug of the backend')"
    assert "the backend failed on process p" in caplog.text


async def test_events_that_a_backend_cancels_end_the_process() -> None:
    backend = BrokenBackend(asyncio.CancelledError(), ConnectionLost("nobody listens"))
    assert await ends_lost(backend) == "the backend cancelled its events"


class GapsProcess(FakeProcess):
    """A process whose stream has gaps, though nobody asked for them."""

    def events(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> LogEventStream:
        return super().events(after_seq, gaps=True, stream_ends=stream_ends)


class GapsBackend:
    """Starts processes that lose three numbers."""

    async def start(self, params: StartParams) -> GapsProcess:
        process = GapsProcess(params)
        process.gap(3)
        return process


async def test_a_gap_that_nobody_asked_for_ends_the_process() -> None:
    assert await ends_lost(GapsBackend()) == "its output 1 to 3 was lost"


async def test_a_chunk_of_any_size_is_sent_in_pieces() -> None:
    """A client refuses an event of more than 1 MiB, and the protocol promises 64 KiB."""
    data = bytes(range(256)) * 12_000
    async with FakeBackend() as backend, Server(processes=backend) as server:
        client = Client(server)
        await client.initialize()
        await client.start("x")
        (process,) = backend.processes
        process.output(data)
        process.end()
        await client.hears("process/closed")
        assert client.output() == data
        events = client.notifications("process/output")
        assert max(len(base64.b64decode(event["chunk"])) for event in events) == 64 << 10
        client.hang_up()


async def test_requests_behind_a_start_wait_for_it_and_an_end_calls_it_off() -> None:
    backend = FakeBackend()
    backend.hold_starts()
    async with Server(processes=backend) as server:
        client = Client(server)
        await client.initialize()
        params = {"argv": ["x"], "cwd": "file:///", "env": {}, "tty": False, "pipeStdin": True}
        first = client.ask("process/start", processId="p", **params)
        written = client.ask("process/write", processId="p", chunk="aGk=", writeId="w")
        again = client.ask("process/start", processId="p", **params)
        assert await client.transport.answer(again) == (-32600, "process p already exists")
        second = client.ask("process/start", processId="q", **params)
        await backend.until(lambda: len(backend.starts) == 2)
        ended = await client.call("process/terminate", processId="q")
        assert ended == {"running": True}
        backend.let_start()
        assert isinstance(await client.transport.answer(first), dict)
        assert await client.transport.answer(written) == {"status": "accepted"}
        cancelled = (-32600, "process q start was cancelled")
        assert await client.transport.answer(second) == cancelled
        assert (await backend.process(0)).written == b"hi"
        assert not (await backend.process(1)).running
        # After a termination, input is an error on the wire, as on this machine.
        backend.processes[0].dies_when_killed = False
        await client.call("process/terminate", processId="p")
        refused = await client.write(b"late", "late")
        assert refused == (-32603, "failed to write to process stdin")
        backend.processes[0].end()
        client.hang_up()


async def test_a_start_that_outlives_its_connection_is_found_by_the_next_one() -> None:
    """The process may run already, so a resumed client must not have to start it again."""
    backend = FakeBackend()
    backend.hold_starts()
    async with Server(processes=backend) as server:
        first = Client(server)
        session_id = await first.initialize(acknowledges=True)
        params = {"argv": ["x"], "cwd": "file:///", "env": {}, "tty": False, "pipeStdin": True}
        first.ask("process/start", processId="p", **params)
        await backend.until(lambda: len(backend.starts) == 1)
        first.hang_up()
        second = Client(server)
        await second.initialize(acknowledges=True, resumeSessionId=session_id)
        assert await second.write(b"", "probe") == {"status": "starting"}
        assert (await second.start("x"))[0] == -32600
        # Not waited for any longer by a client that ends it.
        other = second.ask("process/start", processId="q", **params)
        await backend.until(lambda: len(backend.starts) == 2)
        second.hang_up()
        await second.settled()
        second = Client(server)
        await second.initialize(acknowledges=True, resumeSessionId=session_id)
        assert await second.call("process/terminate", processId="q") == {"running": True}
        await second.settled()
        gone = await second.write(b"", "probe", process_id="q")
        assert (gone, other in second.transport.answers) == ({"status": "unknownProcess"}, False)
        backend.let_start()
        process = await backend.process()
        await second.settled()
        assert await second.write(b"", "probe") == {"status": "accepted"}
        # More than a log keeps for a client that acknowledges nothing.
        process.output(bytes(3 << 20))
        found = await second.call("process/read", processId="p", afterSeq=0, waitMs=5000)
        assert found["chunks"][0]["seq"] == 1
        assert [params.process_id for params in backend.starts] == ["p", "q"]
        process.end()
        assert (await second.hears("process/exited"))["reason"] == Reason.EXITED.value
        second.hang_up()


async def test_the_end_of_a_session_gives_up_a_start_that_hangs() -> None:
    async with FakeBackend() as backend:
        backend.hold_starts()
        async with Server(processes=backend, session_expiry=0.01) as server:
            client = Client(server)
            await client.initialize()
            params = {"argv": ["x"], "cwd": "file:///", "env": {}, "tty": False}
            client.ask("process/start", processId="p", **params)
            await backend.until(lambda: len(backend.starts) == 1)
            client.hang_up()
            await eventually(lambda: not len(server.state.sessions))
            backend.let_start()
            await client.settled()
        assert not backend.processes


class DeafProcess(FakeProcess):
    """A process whose signals hang or fail."""

    async def signal(self, name: str) -> None:
        await super().signal(name)
        if self.process_id == "hangs":
            await asyncio.Event().wait()
        elif self.process_id == "fails":
            raise RuntimeError("a bug of the backend")


class DeafBackend:
    """Starts those, and has a list of them."""

    def __init__(self) -> None:
        self.processes: list[DeafProcess] = []

    async def start(self, params: StartParams) -> DeafProcess:
        self.processes.append(DeafProcess(params))
        return self.processes[-1]


async def test_every_process_is_asked_to_end_whatever_the_others_do() -> None:
    backend = DeafBackend()
    async with Server(processes=backend) as server:
        client = Client(server)
        await client.initialize()
        for process_id in ("hangs", "fails", "last"):
            await client.start("x", process_id=process_id)
        await server.drain(0.05)
        sent = [process.signals for process in backend.processes]
        # A stopped process takes a signal only when it goes on.
        assert sent == [["SIGTERM"], ["SIGTERM"], ["SIGTERM", "SIGCONT"]]
        client.hang_up()


class StubbornProcess(FakeProcess):
    """A process that ends only when the test says so."""

    async def signal(self, name: str) -> None:
        self.signals.append(name)


class SlowBackend:
    """Starts those; a start with the id `late` waits for `started`."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.starts: dict[str, StubbornProcess] = {}

    async def start(self, params: StartParams) -> StubbornProcess:
        process = self.starts[params.process_id] = StubbornProcess(params)
        if params.process_id == "late":
            await self.started.wait()
        return process


async def test_what_starts_while_a_server_drains_is_asked_to_end_and_waited_for() -> None:
    backend = SlowBackend()
    async with Server(processes=backend) as server:
        client = Client(server)
        await client.initialize()
        await client.start("x", process_id="first")
        client.ask("process/start", processId="late", argv=["x"], cwd="file:///", env={}, tty=False)
        await eventually(lambda: "late" in backend.starts)
        draining = asyncio.ensure_future(server.drain(60))
        first, late = backend.starts.values()
        await eventually(lambda: "SIGTERM" in first.signals)
        backend.started.set()
        await eventually(lambda: "SIGTERM" in late.signals)
        first.end()
        await client.hears("process/closed")
        assert not draining.done()
        late.end()
        await draining
        client.hang_up()


class OwnTables:
    """A backend that makes the table of each session itself."""

    def __init__(self) -> None:
        self.tables: list[ProcessTable] = []

    def open_session(self, settings: TableSettings) -> ProcessTable:
        table = ProcessRegistry(make_log=settings.make_log, observers=settings.observers)
        self.tables.append(table)
        return table


async def test_a_backend_may_have_its_own_table_for_each_session() -> None:
    backend = OwnTables()
    async with Server(processes=backend) as server:
        client = Client(server)
        await client.initialize()
        await client.start("true")
        await client.hears("process/closed")
        (table,) = backend.tables
        assert [process.process_id for process in table] == ["p"]
        async with asyncio.timeout(5):
            await client.settled()
        client.hang_up()


async def test_the_journal_claims_no_sandbox_that_a_backend_does_not_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    profile = {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": []},
        "network": "restricted",
    }
    sandbox = {"permissions": profile, "windowsSandboxLevel": "disabled"}
    async with FakeBackend() as backend, Server(processes=backend) as server:
        client = Client(server)
        await client.initialize()
        with caplog.at_level("INFO", "holdfast.server.operate.records"):
            assert (await client.start("x", sandbox=sandbox))["sandboxType"] == "linuxSeccomp"
        client.hang_up()
    assert "sandbox=unknown" in caplog.text
