"""
Implements the telemetry interfaces with the OpenTelemetry API (docs/telemetry.md).

Only the API is used, not the SDK. The given providers, or the global ones of the application,
decide where the data goes.
"""

from collections.abc import Iterable
from time import monotonic, time_ns

from opentelemetry import _logs, context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.base.dialect import names
from holdfast.base.version import __version__
from holdfast.telemetry import (
    Preparation,
    ProcessRecord,
    RequestRecord,
    ServerRecord,
    StartRecord,
)
from holdfast.wire.protocol.envelope import Trace
from holdfast.wire.protocol.methods import METHODS
from holdfast.wire.protocol.process import StartParams

__all__ = ["BUCKETS", "TRANSPORTS", "Attributes", "OpenTelemetry"]

_SCOPE = names.TELEMETRY_SCOPE

BUCKETS = (
    *(0.0, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 12.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
"""Upper bounds of the histogram buckets for durations, in seconds."""

TRANSPORTS = ("relay", "stdio", "unix", "websocket")
"""Transports that are reported even without a connection; `unix` is an extension."""

Attributes = dict[str, str | bool | int]


class _Instruments:
    """All instruments, the tracer and the logger of one recorder."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
        logger_provider: _logs.LoggerProvider | None,
    ) -> None:
        self.tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider)
        self._logger = _logs.get_logger(_SCOPE, __version__, logger_provider)
        meter = metrics.get_meter(_SCOPE, __version__, meter_provider)

        def counter(name: str, description: str) -> metrics.Counter:
            return meter.create_counter(name, description=description)

        # Advisory: a view of the application may override the buckets.
        def seconds(name: str, description: str) -> metrics.Histogram:
            return meter.create_histogram(
                name,
                unit="s",
                description=description,
                explicit_bucket_boundaries_advisory=BUCKETS,
            )

        # Observable, so that each collection reports the value even if it has not changed.
        self.connections_by_transport = dict.fromkeys(TRANSPORTS, 0)
        self.running_processes = 0
        meter.create_observable_gauge(
            "exec_server_connections_active",
            [self._observe_connections],
            description="Open connections.",
        )
        meter.create_observable_gauge(
            "exec_server_processes_active",
            [self._observe_processes],
            description="Running processes.",
        )

        self.connections = counter("exec_server_connections_total", "Accepted connections.")
        self.requests = counter("exec_server_requests_total", "Requests that ended.")
        self.request_queue_duration = seconds(
            "exec_server_request_queue_duration_seconds", "From a request's arrival to its turn."
        )
        self.request_duration = seconds(
            "exec_server_request_duration_seconds", "From a request's turn to its response."
        )
        self.request_total_duration = seconds(
            "exec_server_request_total_duration_seconds",
            "From a request's arrival to its response.",
        )
        self.processes = counter("exec_server_processes_finished_total", "Processes that ended.")
        self.process_duration = seconds(
            "exec_server_process_duration_seconds", "From a process's spawn to its exit."
        )
        self.client_requests = counter(
            "exec_server_client_requests_total", "Requests of this client."
        )
        self.programs = counter(names.TELEMETRY_PROGRAMS, "Starts of the program itself.")

    def log(self, event: str, attributes: Attributes, within: Context) -> None:
        """Emit a log event that belongs to the span of a context."""
        self._logger.emit(
            timestamp=time_ns(),
            context=within,
            severity_number=_logs.SeverityNumber.INFO,
            severity_text="INFO",
            event_name=event,
            # Readers also look for the name among the attributes.
            attributes={"event.name": event, **attributes},
        )

    # Metric readers call these in their own threads. Only the loop's thread changes the numbers,
    # each by one atomic assignment.

    def _observe_connections(
        self, options: metrics.CallbackOptions
    ) -> Iterable[metrics.Observation]:
        return [
            metrics.Observation(count, {"transport": transport})
            for transport, count in self.connections_by_transport.copy().items()
        ]

    def _observe_processes(self, options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        return [metrics.Observation(self.running_processes)]


# Maximum characters of a text from a client: a collector stores each distinct one.
_MAX_TEXT = 64

_SERVER = names.TELEMETRY_SERVER

_METHODS = frozenset(method.name for method in METHODS)
_TRACE_CONTEXT = TraceContextTextMapPropagator()


class OpenTelemetry:
    """
    Recorder for any number of servers and clients.

    Implements `Telemetry` and `ClientTelemetry`.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        logger_provider: _logs.LoggerProvider | None = None,
    ) -> None:
        """
        Args:
            tracer_provider: Provider for spans; by default the global one.
            meter_provider: Provider for metrics; by default the global one.
            logger_provider: Provider for log events; by default the global one.
        """
        self._to = _Instruments(tracer_provider, meter_provider, logger_provider)

    def program_started(self, originator: str) -> None:
        """Count a start of this program, as opposed to a served process."""
        self._to.programs.add(1, {"originator": originator})

    # -- Telemetry

    def server(self) -> ServerRecord:
        return _ServerSpan(self._to)

    def now(self) -> float:
        return monotonic()

    def connection_opened(self, transport: str) -> None:
        active = self._to.connections_by_transport
        active[transport] = active.get(transport, 0) + 1
        self._to.connections.add(1, {"transport": transport})

    def connection_closed(self, transport: str) -> None:
        self._to.connections_by_transport[transport] -= 1

    def request(self, method: str, trace: Trace | None, queued: float | None) -> RequestRecord:
        return _RequestSpan(self._to, method, trace, queued)

    def start(self, params: StartParams) -> StartRecord:
        return _Start(self._to, params)

    # -- ClientTelemetry

    def client_request(self, method: str) -> Trace | None:
        self._to.client_requests.add(1, {"method": method})
        carrier: dict[str, str] = {}
        # Empty unless the application has a current span.
        _TRACE_CONTEXT.inject(carrier)
        if not carrier:
            return None
        return Trace(traceparent=carrier["traceparent"], tracestate=carrier.get("tracestate"))


class _ServerSpan:
    """Span of a server."""

    def __init__(self, to: _Instruments) -> None:
        # An empty context: a server is not part of a trace of the embedding application.
        self._span = to.tracer.start_span(_SERVER, context=Context())

    def finish(self) -> None:
        self._span.end()


class _RequestSpan:
    """Span and durations of a request."""

    __slots__ = ("_arrived", "_began", "_method", "_span", "_to", "_token")

    def __init__(
        self, to: _Instruments, method: str, origin: Trace | None, queued: float | None
    ) -> None:
        self._to = to
        # Clients may send any method name, and unknown ones must not become labels.
        self._method = method if method in _METHODS else "unknown"
        # Durations use the monotonic clock; spans need wall-clock time.
        self._began = monotonic()
        self._arrived = self._began if queued is None else queued
        waited = self._began - self._arrived
        self._span = to.tracer.start_span(
            self._method,
            context=_parent(origin),
            kind=trace.SpanKind.SERVER,
            attributes={"method": method[:_MAX_TEXT], "rpc.dispatch_offset_ns": _ns(waited)},
            start_time=time_ns() - _ns(waited),
        )
        to.request_queue_duration.record(waited, {"method": self._method})

    def __enter__(self) -> None:
        self._token = context.attach(trace.set_span_in_context(self._span))

    def __exit__(self, *exc: object) -> None:
        context.detach(self._token)

    def finish(self, result: str) -> None:
        now = monotonic()
        self._span.set_attributes(
            {"result": result, "rpc.response_enqueue_offset_ns": _ns(now - self._arrived)}
        )
        # A disconnect of the client is not a server error.
        if result == "error":
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()
        attributes = {"method": self._method, "result": result}
        self._to.requests.add(1, attributes)
        self._to.request_duration.record(now - self._began, attributes)
        self._to.request_total_duration.record(now - self._arrived, attributes)


class _Start:
    """Spans of the steps of a start."""

    def __init__(self, to: _Instruments, params: StartParams) -> None:
        self._to = to
        # The start may finish in another task, with another current context.
        self._context = context.get_current()
        self._snapshot_requested = params.shell_snapshot is not None
        self._identity = _short("process.id", params.process_id)
        # Attributes of the log events: the ids sent by the client.
        self._labels: Attributes = {}
        if params.metadata is not None:
            self._labels |= _short("conversation.id", params.metadata.thread_id)
            self._labels |= _short("tool.call_id", params.metadata.tool_call_id)
        self._part_began = time_ns()

    def prepared(self, what: Preparation) -> None:
        attributes = self._identity
        if what == "shell_snapshot":
            attributes = {**attributes, "snapshot_requested": self._snapshot_requested}
        self._part_ended(f"{_SERVER}.process_prepare_{what}", attributes)

    def started(self, sandbox_type: str = "none") -> ProcessRecord:
        self._part_ended(names.TELEMETRY_SPAWN, self._identity)
        self._labels["sandbox.type"] = _sandbox_name(sandbox_type)
        self._to.log(f"{_SERVER}.process_start", self._labels, self._context)
        return _Process(self._to, self._context, self._identity, self._labels)

    def failed(self, sandbox_type: str = "none") -> None:
        self._part_ended(names.TELEMETRY_SPAWN, self._identity, trace.StatusCode.ERROR)
        # Without the reason, which may contain paths; it is sent to the client.
        self._labels["sandbox.type"] = _sandbox_name(sandbox_type)
        self._to.log(f"{_SERVER}.process_spawn_failed", self._labels, self._context)

    def _part_ended(
        self,
        name: str,
        attributes: Attributes,
        status: trace.StatusCode = trace.StatusCode.UNSET,
    ) -> None:
        now = time_ns()
        span = self._to.tracer.start_span(
            name, context=self._context, attributes=attributes, start_time=self._part_began
        )
        span.set_status(status)
        span.end(now)
        self._part_began = now


class _Process:
    """Span and duration of a process."""

    def __init__(
        self, to: _Instruments, origin: Context, identity: Attributes, labels: Attributes
    ) -> None:
        self._to = to
        self._labels = labels
        self._began = monotonic()
        # A child span of the request, which it outlives.
        self._span = to.tracer.start_span(f"{_SERVER}.process", context=origin, attributes=identity)
        to.running_processes += 1

    def finish(self, result: str, exit_code: int | None) -> None:
        self._to.running_processes -= 1
        self._to.processes.add(1, {"result": result})
        self._to.process_duration.record(monotonic() - self._began, {"result": result})
        self._labels["process.termination_requested"] = result == "terminated"
        if exit_code is not None:
            self._labels["process.exit_code"] = exit_code
        self._to.log(f"{_SERVER}.process_exit", self._labels, trace.set_span_in_context(self._span))
        self._span.set_attribute("result", result)
        self._span.end()


def _parent(origin: Trace | None) -> Context:
    """
    Return the context of a request's trace, or an empty one without a valid trace.

    A request without a trace starts a new one. A single trace for all requests of a server that
    runs for weeks would be too large for a collector.
    """
    if origin is None or origin.traceparent is None:
        return Context()
    carrier = {"traceparent": origin.traceparent}
    if origin.tracestate is not None:
        carrier["tracestate"] = origin.tracestate
    return _TRACE_CONTEXT.extract(carrier, Context())


def _short(name: str, text: str | None) -> Attributes:
    """Return a client's text as an attribute, or no attribute if it is too long."""
    return {name: text} if text and len(text) <= _MAX_TEXT else {}


def _sandbox_name(sandbox_type: str) -> str:
    """Return the name as logs have it: `linuxSeccomp` becomes `LinuxSeccomp`."""
    return sandbox_type[:1].upper() + sandbox_type[1:]


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
