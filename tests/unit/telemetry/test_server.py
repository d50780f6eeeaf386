"""Reports of a server to its recorder: real processes, and a client in the same program."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from holdfast.events import Reason, Verdict
from holdfast.server.app import Server
from holdfast.server.operate.process_telemetry import _result
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams
from holdfast.wire.transports.memory import connect_memory
from holdfast.wire.transports.transport import Transport
from tests.unit.telemetry.recorded import Recorded, attributes_of

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Client:
    """Plain JSON, one message at a time."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.transport: Transport

    async def call(self, method: str, params: object = None, **envelope: object) -> dict[str, Any]:
        """Ask and wait for the answer, result or error."""
        self.send(method, params, **envelope)
        return await self.next("id")

    def send(self, method: str, params: object = None, **envelope: object) -> None:
        message = {"id": 1, "method": method, "params": params, **envelope}
        self.transport.send(json.dumps(message).encode())

    async def start(self, argv: list[str], **params: object) -> dict[str, Any]:
        plain = {"processId": "p1", "argv": argv, "cwd": "file:///", "env": {}, "tty": False}
        return await self.call("process/start", {**plain, **params})

    async def next(self, kind: str) -> dict[str, Any]:
        """The next message with a member, or of a method, of that name; others are skipped."""
        async with asyncio.timeout(5):
            while True:
                message = await self.messages.get()
                if kind in message or message.get("method") == kind:
                    return message

    # -- Receiver

    def received(self, message: bytes) -> None:
        self.messages.put_nowait(json.loads(message))

    def lost(self, reason: str) -> None:
        self.messages.put_nowait({"lost": reason})

    def pause_sending(self) -> None:
        pass

    def resume_sending(self) -> None:
        pass


@asynccontextmanager
async def serving(recorded: Recorded, *, concurrent_requests: int = 64) -> AsyncIterator[Client]:
    client = Client()
    async with Server(
        telemetry=recorded.telemetry, concurrent_requests=concurrent_requests
    ) as server:
        client.transport = connect_memory(lambda _: client, server.accept)
        await client.call("initialize", {"clientName": "test"})
        client.transport.send(b'{"method":"initialized"}')
        yield client


@pytest.fixture
async def client(recorded: Recorded) -> AsyncIterator[Client]:
    async with serving(recorded) as client:
        yield client


async def test_requests_are_recorded_by_how_they_were_answered(
    recorded: Recorded, client: Client
) -> None:
    assert "result" in await client.call("environment/status")
    assert "error" in await client.call("process/read", {"processId": "none"})
    assert "error" in await client.call("no/such")
    assert recorded.values("exec_server_requests_total") == {
        ("initialize", "success"): 1,
        ("environment/status", "success"): 1,
        ("process/read", "error"): 1,
        ("unknown", "error"): 1,
    }


async def test_the_trace_of_a_request_reaches_the_process_it_starts(
    recorded: Recorded, client: Client
) -> None:
    params = {
        "processId": "p1",
        "argv": ["/bin/true"],
        "cwd": "file:///",
        "env": {},
        "tty": False,
        "metadata": {"toolCallId": "call_1"},
    }
    await client.call("process/start", params, trace={"traceparent": TRACEPARENT})
    await client.next("process/closed")
    process = recorded.span("codex.exec_server.process")
    for name in ("process/start", "codex.process.spawn", "codex.exec_server.process"):
        context = recorded.span(name).context
        assert context is not None
        assert trace.format_trace_id(context.trace_id) == TRACEPARENT.split("-")[1]
    assert attributes_of(process) == {"process.id": "p1", "result": "success"}
    started, exited = recorded.logs
    assert attributes_of(started)["tool.call_id"] == "call_1"
    assert attributes_of(exited)["process.exit_code"] == 0


@pytest.mark.parametrize(
    ("script", "result", "exit_code"),
    [("echo out", "success", 0), ("exit 3", "error", 3), ("kill -9 $$", "error", 137)],
)
async def test_a_process_is_recorded_by_how_it_ended(
    recorded: Recorded, client: Client, script: str, result: str, exit_code: int
) -> None:
    await client.start(["/bin/sh", "-c", script])
    await client.next("process/closed")
    assert recorded.values("exec_server_processes_finished_total") == {(result,): 1}
    assert recorded.values("exec_server_processes_active") == {(): 0}
    exited = attributes_of(recorded.logs[-1])
    assert exited["process.exit_code"] == exit_code
    assert exited["process.termination_requested"] is False


async def test_a_process_that_was_to_end_is_recorded_as_terminated(
    recorded: Recorded, client: Client
) -> None:
    await client.start(["/bin/sleep", "100"])
    assert recorded.values("exec_server_processes_active") == {(): 1}
    await client.call("process/terminate", {"processId": "p1"})
    await client.next("process/closed")
    assert recorded.values("exec_server_processes_finished_total") == {("terminated",): 1}
    assert attributes_of(recorded.logs[-1])["process.termination_requested"] is True


def test_an_end_that_nobody_saw_is_recorded_as_unknown(recorded: Recorded) -> None:
    params = StartParams(process_id="p1", argv=["x"], cwd=PathUri.from_path("/"), env={}, tty=False)
    record = recorded.telemetry.start(params).started()
    record.finish(_result(Verdict(reason=Reason.LOST)), None)
    assert recorded.values("exec_server_processes_finished_total") == {("unknown",): 1}


async def test_the_exit_counts_not_the_last_output(recorded: Recorded, client: Client) -> None:
    # What stays in the background keeps the output open.
    await client.start(["/bin/sh", "-c", "sleep 100 & exit 0"])
    await client.next("process/exited")
    assert recorded.values("exec_server_processes_active") == {(): 0}
    assert recorded.values("exec_server_processes_finished_total") == {("success",): 1}


async def test_a_program_that_is_not_there_is_a_failed_request_and_no_process(
    recorded: Recorded, client: Client
) -> None:
    assert "error" in await client.start(["/no/such/program"])
    (log,) = recorded.logs
    assert attributes_of(log)["event.name"] == "codex.exec_server.process_spawn_failed"
    assert recorded.span("codex.process.spawn").status.status_code is StatusCode.ERROR
    assert recorded.values("exec_server_requests_total")["process/start", "error"] == 1
    assert "exec_server_processes_finished_total" not in recorded.metrics()


async def test_a_start_that_is_refused_before_the_spawn_leaves_only_its_request(
    recorded: Recorded, client: Client
) -> None:
    assert "error" in await client.start([])
    assert recorded.logs == []
    assert [span.name for span in recorded.spans] == ["initialize", "process/start"]


async def test_a_snapshot_is_a_part_of_the_start_that_waits_for_it(
    recorded: Recorded, client: Client
) -> None:
    shell = {"name": "sh", "path": "/bin/sh"}
    await client.start(["/bin/sh", "-lc", "exit 0"], shellSnapshot={"scopeId": "s", "shell": shell})
    await client.next("process/closed")
    prepared = recorded.span("codex.exec_server.process_prepare_shell_snapshot")
    assert attributes_of(prepared) == {"process.id": "p1", "snapshot_requested": True}
    asked = recorded.span("process/start")
    assert asked.context is not None
    assert prepared.parent is not None
    assert prepared.parent.span_id == asked.context.span_id
    assert recorded.span("codex.process.spawn").start_time == prepared.end_time


async def test_a_request_that_waits_for_its_turn_is_timed_from_its_arrival(
    recorded: Recorded,
) -> None:
    async with serving(recorded, concurrent_requests=1) as client:
        await client.start(["/bin/cat"], pipeStdin=True)
        client.send("process/read", {"processId": "p1", "afterSeq": 0, "waitMs": 20})
        await client.call("environment/status")
        await client.next("id")
    attributes = attributes_of(recorded.span("environment/status"))
    waited = attributes["rpc.dispatch_offset_ns"]
    assert isinstance(waited, int)
    assert waited > 0
    queued = recorded.durations("exec_server_request_queue_duration_seconds")
    assert queued["environment/status",].sum == pytest.approx(waited / 1e9)
    assert queued["process/read",].sum == 0
    assert recorded.span("environment/status").parent is None


async def test_requests_of_a_connection_that_ends_are_disconnected(recorded: Recorded) -> None:
    async with serving(recorded) as client:
        await client.start(["/bin/cat"], pipeStdin=True)
        client.send("process/read", {"processId": "p1", "waitMs": 60_000})
        await client.call("environment/status")  # the read is under way
        assert recorded.values("exec_server_connections_active")["memory",] == 1
        client.transport.abort()
        await client.next("lost")
    assert recorded.values("exec_server_requests_total")["process/read", "disconnected"] == 1
    assert recorded.values("exec_server_connections_active")["memory",] == 0
    assert recorded.values("exec_server_connections_total") == {("memory",): 1}


async def test_the_end_of_a_server_ends_all_that_was_under_way(recorded: Recorded) -> None:
    async with serving(recorded) as client:
        await client.start(["/bin/sleep", "100"])
    assert recorded.values("exec_server_processes_active") == {(): 0}
    assert recorded.values("exec_server_processes_finished_total") == {("terminated",): 1}
    assert [span.name for span in recorded.spans][-2:] == [
        "codex.exec_server.process",
        "codex.exec_server",
    ]
