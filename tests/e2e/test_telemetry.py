"""A server that sends its telemetry to a collector, as the environment asks it to."""

import os
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.wire import connect, serving, start_params

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"


class Collector:
    """Takes what a server sends; whole once the server has ended."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.resources: list[dict[str, object]] = []
        self.spans: list[Span] = []
        self.metrics: list[Metric] = []
        self.events: list[dict[str, object]] = []

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for spans in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(plain(spans.resource.attributes))
                for scope in spans.scope_spans:
                    assert scope.scope.name == "codex"
                    self.spans += scope.spans
        elif path == "/v1/metrics":
            for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for measured in metrics.scope_metrics:
                    self.metrics += measured.metrics
        elif path == "/v1/logs":
            for logs in ExportLogsServiceRequest.FromString(body).resource_logs:
                for logged in logs.scope_logs:
                    self.events += [plain(record.attributes) for record in logged.log_records]
        else:
            raise AssertionError(path)

    def span(self, name: str) -> Span:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def metric(self, name: str) -> Metric:
        """The last report of a metric."""
        return [metric for metric in self.metrics if metric.name == name][-1]


def plain(attributes: Iterable[KeyValue]) -> dict[str, object]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value")
        for pair in attributes
    }


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def environment(**variables: str) -> dict[str, str]:
    """This process's own, with nothing about telemetry but what is given."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return {**ours, **variables}


@pytest.mark.slow
async def test_a_server_sends_what_it_measured_before_it_ends() -> None:
    with (
        collecting() as collector,
        serving(env=environment(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)) as server,
    ):
        async with connect(server.url) as client:
            traced = {
                "id": "traced",
                "method": "process/start",
                "params": start_params("p1", ["/bin/true"], metadata={"toolCallId": "call_1"}),
                "trace": {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"},
            }
            await client.send(traced)
            await client.finish("p1")
        assert server.stop() == 0
        assert server.errors == ""

    resource = collector.resources[0]
    assert resource["service.name"] == "holdfast"
    assert {"service.version", "service.instance.id", "os", "os_version"} <= resource.keys()

    asked = collector.span("process/start")
    assert asked.kind == Span.SPAN_KIND_SERVER
    assert asked.trace_id.hex() == TRACE_ID
    assert asked.parent_span_id.hex() == PARENT_ID
    assert plain(asked.attributes)["method"] == "process/start"
    assert plain(asked.attributes)["result"] == "success"
    for name in ("codex.process.spawn", "codex.exec_server.process"):
        assert collector.span(name).parent_span_id == asked.span_id
    assert collector.span("codex.exec_server").parent_span_id == b""

    requests = {
        tuple(plain(point.attributes).values()): point.as_int
        for point in collector.metric("exec_server_requests_total").sum.data_points
    }
    assert requests == {("initialize", "success"): 1, ("process/start", "success"): 1}
    transports = {
        plain(point.attributes)["transport"]: point.as_int
        for point in collector.metric("exec_server_connections_active").gauge.data_points
    }
    assert transports == {"relay": 0, "stdio": 0, "unix": 0, "websocket": 0}
    (duration,) = collector.metric("exec_server_process_duration_seconds").histogram.data_points
    assert plain(duration.attributes) == {"result": "success"}
    assert len(duration.explicit_bounds) == 21
    (started,) = collector.metric("codex.process.start").sum.data_points
    assert plain(started.attributes) == {"originator": "holdfast"}

    assert [event["event.name"] for event in collector.events] == [
        "codex.exec_server.process_start",
        "codex.exec_server.process_exit",
    ]
    assert {event["tool.call_id"] for event in collector.events} == {"call_1"}


@pytest.mark.slow
async def test_only_the_signals_that_were_asked_for_are_sent() -> None:
    with (
        collecting() as collector,
        serving(
            env=environment(
                OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{collector.url}/v1/metrics",
                OTEL_SERVICE_NAME="mine",
            )
        ) as server,
    ):
        async with connect(server.url) as client:
            await client.run(["/bin/true"])
        assert server.stop() == 0
        assert server.errors == ""
    assert collector.metric("exec_server_processes_finished_total").sum.data_points[0].as_int == 1
    assert collector.spans == []
    assert collector.events == []


@pytest.mark.slow
async def test_a_collector_that_never_answers_does_not_keep_a_server_from_ending() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with serving(env=environment(OTEL_EXPORTER_OTLP_ENDPOINT=url)) as server:
            async with connect(server.url) as client:
                assert (await client.run(["/bin/true"])).exit_code == 0
            assert server.stop() == 0
            assert "telemetry: some data was lost" in server.errors


async def test_without_the_extra_a_server_starts_and_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None;"
        "from holdfast.front.cli.__main__ import main; sys.exit(main())"
    )
    with serving(
        command=[sys.executable, "-c", program, "exec-server"],
        env=environment(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9"),
    ) as server:
        async with connect(server.url) as client:
            assert (await client.run(["/bin/true"])).exit_code == 0
        (line,) = server.errors.splitlines()
        assert "telemetry is off: " in line
        assert "pip install 'holdfast-exec[otel]'" in line
