"""Translation of each record to metrics, spans and log events (docs/telemetry.md)."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics.export import Gauge
from opentelemetry.trace import SpanKind, StatusCode

from holdfast.telemetry import ClientTelemetry, Telemetry
from holdfast.telemetry.otel import BUCKETS, OpenTelemetry
from holdfast.wire.protocol.envelope import Trace
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import (
    ShellSnapshotParams,
    ShellSnapshotShell,
    StartMetadata,
    StartParams,
    ThreadId,
)
from tests.unit.telemetry.recorded import Recorded, attributes_of

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TRACE = Trace(traceparent=f"00-{TRACE_ID}-{PARENT_ID}-01", tracestate="vendor=1")
THREAD = ThreadId("11111111-1111-4111-8111-111111111111")


def start_params(
    process_id: str = "p1",
    *,
    metadata: StartMetadata | None = None,
    snapshot: ShellSnapshotParams | None = None,
) -> StartParams:
    return StartParams(
        process_id=process_id,
        argv=["true"],
        cwd=PathUri.from_path("/"),
        env={},
        tty=False,
        metadata=metadata,
        shell_snapshot=snapshot,
    )


def test_one_class_is_all_the_interfaces() -> None:
    def check(server: Telemetry, client: ClientTelemetry) -> None:
        """The type checker does the work."""

    telemetry = OpenTelemetry()
    check(telemetry, telemetry)


# Connections.


def test_every_transport_is_reported_with_or_without_connections(recorded: Recorded) -> None:
    metric = recorded.metrics()["exec_server_connections_active"]
    assert isinstance(metric.data, Gauge)
    assert recorded.values("exec_server_connections_active") == {
        ("relay",): 0,
        ("stdio",): 0,
        ("unix",): 0,
        ("websocket",): 0,
    }


def test_connections_are_counted_while_they_last_and_for_ever(recorded: Recorded) -> None:
    for transport in ("websocket", "websocket", "memory"):
        recorded.telemetry.connection_opened(transport)
    recorded.telemetry.connection_closed("websocket")
    active = recorded.values("exec_server_connections_active")
    assert (active["websocket",], active["memory",], active["stdio",]) == (1, 1, 0)
    assert recorded.values("exec_server_connections_total") == {("websocket",): 2, ("memory",): 1}


# Requests.


def test_a_request_is_counted_and_timed_by_method_and_result(recorded: Recorded) -> None:
    telemetry = recorded.telemetry
    for result in ("success", "success", "error", "disconnected"):
        telemetry.request("process/read", None, None).finish(result)
    assert recorded.values("exec_server_requests_total") == {
        ("process/read", "success"): 2,
        ("process/read", "error"): 1,
        ("process/read", "disconnected"): 1,
    }
    for name in (
        "exec_server_request_duration_seconds",
        "exec_server_request_total_duration_seconds",
    ):
        durations = recorded.durations(name)
        assert durations["process/read", "success"].count == 2
        assert durations["process/read", "success"].explicit_bounds == BUCKETS
    assert (
        recorded.durations("exec_server_request_queue_duration_seconds")["process/read",].count == 4
    )


def test_the_time_in_the_queue_is_part_of_the_total_only(recorded: Recorded) -> None:
    telemetry = recorded.telemetry
    telemetry.request("process/read", None, telemetry.now() - 100).finish("success")
    key = ("process/read", "success")
    queued = recorded.durations("exec_server_request_queue_duration_seconds")["process/read",].sum
    assert queued >= 100
    assert recorded.durations("exec_server_request_total_duration_seconds")[key].sum >= queued
    assert recorded.durations("exec_server_request_duration_seconds")[key].sum < 100
    attributes = attributes_of(recorded.span("process/read"))
    dispatched, answered = (
        attributes[f"rpc.{name}_offset_ns"] for name in ("dispatch", "response_enqueue")
    )
    assert isinstance(dispatched, int)
    assert isinstance(answered, int)
    assert 100e9 <= dispatched <= answered
    span = recorded.span("process/read")
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time >= 100e9


def test_a_request_that_need_not_wait_spends_no_time_in_the_queue(recorded: Recorded) -> None:
    recorded.telemetry.request("process/read", None, None).finish("success")
    assert (
        recorded.durations("exec_server_request_queue_duration_seconds")["process/read",].sum == 0
    )
    assert attributes_of(recorded.span("process/read"))["rpc.dispatch_offset_ns"] == 0


def test_made_up_methods_share_one_name(recorded: Recorded) -> None:
    recorded.telemetry.request("no/such", None, None).finish("error")
    recorded.telemetry.request("x" * 1000, None, None).finish("error")
    assert recorded.values("exec_server_requests_total") == {("unknown", "error"): 2}
    assert [span.name for span in recorded.spans] == ["unknown", "unknown"]
    assert [attributes_of(span)["method"] for span in recorded.spans] == ["no/such", "x" * 64]


def test_the_span_of_a_request_is_a_child_of_the_trace_it_brings(recorded: Recorded) -> None:
    recorded.telemetry.request("process/read", TRACE, None).finish("success")
    span = recorded.span("process/read")
    assert span.kind is SpanKind.SERVER
    assert span.context is not None
    assert span.parent is not None
    assert trace.format_trace_id(span.context.trace_id) == TRACE_ID
    assert trace.format_span_id(span.parent.span_id) == PARENT_ID
    assert span.context.trace_state.get("vendor") == "1"
    assert attributes_of(span)["result"] == "success"
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    "given", [None, Trace(), Trace(tracestate="a=1"), Trace(traceparent="not a traceparent")]
)
def test_a_request_without_a_readable_trace_begins_one_whatever_runs_around_it(
    recorded: Recorded, given: Trace | None
) -> None:
    with recorded.telemetry.request("process/start", TRACE, None):
        recorded.telemetry.request("process/read", given, None).finish("success")
    assert recorded.span("process/read").parent is None


def test_a_request_that_fails_marks_its_span(recorded: Recorded) -> None:
    recorded.telemetry.request("process/read", None, None).finish("error")
    assert recorded.span("process/read").status.status_code is StatusCode.ERROR


def test_a_request_is_the_current_one_in_its_block(recorded: Recorded) -> None:
    before = trace.get_current_span()
    request = recorded.telemetry.request("process/read", TRACE, None)
    with request:
        current = trace.get_current_span().get_span_context()
        assert trace.format_trace_id(current.trace_id) == TRACE_ID
    assert trace.get_current_span() is before


# Processes.


def test_a_process_is_a_part_of_the_request_that_started_it(recorded: Recorded) -> None:
    request = recorded.telemetry.request("process/start", TRACE, None)
    with request:
        start = recorded.telemetry.start(start_params())
        start.prepared("sandbox")
        start.prepared("shell_snapshot")
        process = start.started()
    request.finish("success")
    process.finish("success", 0)
    names = [span.name for span in recorded.spans]
    assert names == [
        "codex.exec_server.process_prepare_sandbox",
        "codex.exec_server.process_prepare_shell_snapshot",
        "codex.process.spawn",
        "process/start",
        "codex.exec_server.process",
    ]
    sandbox, snapshot, spawn, asked, ran = recorded.spans
    assert asked.context is not None
    for span in (sandbox, snapshot, spawn, ran):
        assert span.parent is not None
        assert span.parent.span_id == asked.context.span_id
        assert attributes_of(span)["process.id"] == "p1"
    assert sandbox.end_time == snapshot.start_time
    assert snapshot.end_time == spawn.start_time
    assert attributes_of(snapshot)["snapshot_requested"] is False
    assert attributes_of(ran)["result"] == "success"


def test_a_start_tells_whether_a_snapshot_was_asked_for(recorded: Recorded) -> None:
    shell = ShellSnapshotShell(name="bash", path="/bin/bash")
    snapshot = ShellSnapshotParams(scope_id="s", shell=shell)
    recorded.telemetry.start(start_params(snapshot=snapshot)).prepared("shell_snapshot")
    span = recorded.span("codex.exec_server.process_prepare_shell_snapshot")
    assert attributes_of(span)["snapshot_requested"] is True


def test_processes_are_counted_while_they_run_and_by_how_they_end(recorded: Recorded) -> None:
    telemetry = recorded.telemetry
    assert recorded.values("exec_server_processes_active") == {(): 0}
    processes = [telemetry.start(start_params()).started() for _ in range(5)]
    assert recorded.values("exec_server_processes_active") == {(): 5}
    for process, result in zip(
        processes, ("success", "error", "terminated", "unknown"), strict=False
    ):
        process.finish(result, None if result == "unknown" else 0)
    assert recorded.values("exec_server_processes_active") == {(): 1}
    assert recorded.values("exec_server_processes_finished_total") == {
        ("success",): 1,
        ("error",): 1,
        ("terminated",): 1,
        ("unknown",): 1,
    }
    durations = recorded.durations("exec_server_process_duration_seconds")
    assert {key: point.count for key, point in durations.items()} == {
        (result,): 1 for result in ("success", "error", "terminated", "unknown")
    }
    assert durations["error",].explicit_bounds == BUCKETS


def test_start_and_exit_are_logged_with_whose_call_it_is(recorded: Recorded) -> None:
    metadata = StartMetadata(thread_id=THREAD, tool_call_id="call_1")
    request = recorded.telemetry.request("process/start", TRACE, None)
    with request:
        process = recorded.telemetry.start(start_params(metadata=metadata)).started("linuxSeccomp")
    request.finish("success")
    process.finish("terminated", 137)
    whose = {
        "conversation.id": THREAD,
        "tool.call_id": "call_1",
        "sandbox.type": "LinuxSeccomp",
    }
    started, exited = recorded.logs
    assert attributes_of(started) == {"event.name": "codex.exec_server.process_start", **whose}
    assert attributes_of(exited) == {
        "event.name": "codex.exec_server.process_exit",
        "process.exit_code": 137,
        "process.termination_requested": True,
        **whose,
    }
    for log, span in (
        (started, recorded.span("process/start")),
        (exited, recorded.span("codex.exec_server.process")),
    ):
        assert log.log_record.body is None
        assert log.log_record.event_name == attributes_of(log)["event.name"]
        assert span.context is not None
        assert log.log_record.span_id == span.context.span_id
        assert trace.format_trace_id(log.log_record.trace_id or 0) == TRACE_ID


def test_a_failed_spawn_is_no_process(recorded: Recorded) -> None:
    recorded.telemetry.start(start_params()).failed()
    (log,) = recorded.logs
    assert attributes_of(log) == {
        "event.name": "codex.exec_server.process_spawn_failed",
        "sandbox.type": "None",
    }
    assert recorded.span("codex.process.spawn").status.status_code is StatusCode.ERROR
    assert recorded.values("exec_server_processes_active") == {(): 0}
    assert "exec_server_processes_finished_total" not in recorded.metrics()


def test_an_exit_without_a_code_is_logged_without_one(recorded: Recorded) -> None:
    recorded.telemetry.start(start_params()).started().finish("unknown", None)
    exited = attributes_of(recorded.logs[-1])
    assert exited["process.termination_requested"] is False
    assert "process.exit_code" not in exited


def test_long_and_empty_texts_of_clients_are_left_out(recorded: Recorded) -> None:
    for process_id, call in (("x" * 65, "y" * 65), ("", "")):
        params = start_params(process_id, metadata=StartMetadata(tool_call_id=call))
        recorded.telemetry.start(params).started()
    for span in recorded.spans:
        assert "process.id" not in attributes_of(span)
    for log in recorded.logs:
        assert "tool.call_id" not in attributes_of(log)


# The rest.


def test_the_life_of_a_server_is_a_span_at_the_root(recorded: Recorded) -> None:
    with recorded.telemetry.request("process/read", TRACE, None):
        server = recorded.telemetry.server()
    assert recorded.spans == ()
    server.finish()
    assert recorded.span("codex.exec_server").parent is None


def test_the_program_itself_is_counted_once_by_who_it_is(recorded: Recorded) -> None:
    recorded.telemetry.program_started("holdfast")
    assert recorded.values("codex.process.start") == {("holdfast",): 1}


def test_a_client_counts_its_requests_and_passes_its_trace_on(recorded: Recorded) -> None:
    client = recorded.telemetry
    assert client.client_request("process/read") is None
    with client.request("process/start", TRACE, None):
        passed = client.client_request("process/start")
    assert passed is not None
    assert passed.traceparent is not None
    assert passed.traceparent.startswith(f"00-{TRACE_ID}-")
    assert passed.tracestate == "vendor=1"
    assert recorded.values("exec_server_client_requests_total") == {
        ("process/read",): 1,
        ("process/start",): 1,
    }
