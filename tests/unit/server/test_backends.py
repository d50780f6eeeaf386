"""Backends that fail in ways of their own: a server outlives them all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast.backends import HttpBody
from holdfast.errors import ConnectionLost, HoldfastError, InvalidParams
from holdfast.events import Reason
from holdfast.process.event_stream import LogEventStream
from holdfast.process.process_table import ProcessTable, TableSettings
from holdfast.process.registry import ProcessRegistry
from holdfast.process.served import ServedProcess
from holdfast.protocol.http import HttpRequestParams, HttpResponse
from holdfast.protocol.paths import PathUri
from holdfast.protocol.process import StartParams
from holdfast.server.app import Server
from holdfast.testing import FakeBackend, FakeFileSystem, FakeProcess
from holdfast.testing.file_tree import FileTree
from holdfast.testing.filesystem import FakeWatch
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


class LostWatch(FakeWatch):
    """A watch whose files cannot be reached any more."""

    async def changed(self) -> None:
        raise ConnectionLost("the disk is gone")


class LosingFiles(FakeFileSystem):
    """Files whose watches are lost."""

    async def watch_missing(
        self, missing: Sequence[PathUri], present: PathUri | None = None
    ) -> LostWatch:
        return LostWatch(FileTree(), [path.native for path in missing], None)


async def test_a_watch_that_is_lost_makes_the_client_look() -> None:
    async with Server(files=LosingFiles()) as server:
        client = Client(server)
        await client.initialize()
        watched = await client.call("fs/watchMissing", watchId=1, missing=["file:///a"])
        assert watched == {"watching": True}
        assert (await client.hears("fs/missingChanged"))["watchId"] == 1
        client.hang_up()


class BrokenProcess(FakeProcess):
    """A process of a backend with a bug."""

    async def terminate(self, **options: Any) -> bool:
        raise ConnectionLost("nobody listens")

    def events(self, *arguments: Any, **options: Any) -> LogEventStream:
        raise RuntimeError("a bug of the backend")


class BrokenBackend:
    """Starts nothing but those."""

    async def start(self, params: StartParams) -> BrokenProcess:
        return BrokenProcess(params)


async def test_a_bug_of_a_backend_ends_the_process_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Server(processes=BrokenBackend()) as server:
        client = Client(server)
        await client.initialize(acknowledges=True)
        await client.start("x")
        exited = await client.hears("process/exited")
        assert (exited["exitCode"], exited["reason"]) == (-1, Reason.LOST.value)
        assert exited["detail"] == "the backend failed: RuntimeError('a bug of the backend')"
        await client.hears("process/closed")
        client.hang_up()
    assert "the backend failed on process p" in caplog.text


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


class OwnTables:
    """A backend that makes the table of each session itself."""

    def __init__(self) -> None:
        self.tables: list[ProcessTable[ServedProcess]] = []

    def open_session(self, settings: TableSettings) -> ProcessTable[ServedProcess]:
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
        with caplog.at_level("INFO", "holdfast.server.journal"):
            assert (await client.start("x", sandbox=sandbox))["sandboxType"] == "linuxSeccomp"
        client.hang_up()
    assert "sandbox=unknown" in caplog.text
