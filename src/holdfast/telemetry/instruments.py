"""
Metrics, spans and log events by name (docs/telemetry.md).

Names, units, bounds and labels are fixed, so that existing dashboards work.
`otel` decides when they are recorded.
"""

from collections.abc import Iterable
from time import time_ns

from opentelemetry import _logs, metrics, trace
from opentelemetry.context import Context

from holdfast.base.dialect import names
from holdfast.base.version import __version__

__all__ = ["BUCKETS", "SCOPE", "TRANSPORTS", "Attributes", "Instruments"]

SCOPE = names.TELEMETRY_SCOPE

BUCKETS = (
    *(0.0, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 12.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
"""Upper bounds of the histogram buckets for durations, in seconds."""

TRANSPORTS = ("relay", "stdio", "unix", "websocket")
"""Transports that are reported even without a connection; `unix` is an extension."""

Attributes = dict[str, str | bool | int]


class Instruments:
    """All instruments, the tracer and the logger of one recorder."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
        logger_provider: _logs.LoggerProvider | None,
    ) -> None:
        self.tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        self._logger = _logs.get_logger(SCOPE, __version__, logger_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)

        def counter(name: str, description: str) -> metrics.Counter:
            return meter.create_counter(name, description=description)

        # Buckets are only advice to the SDK: a view of the application may override them.
        def seconds(name: str, description: str) -> metrics.Histogram:
            return meter.create_histogram(
                name,
                unit="s",
                description=description,
                explicit_bucket_boundaries_advisory=BUCKETS,
            )

        # Observable gauges, so that a value is reported at each collection even if it has
        # not changed for long.
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
            "exec_server_request_duration_seconds", "From a request's turn to its answer."
        )
        self.request_total_duration = seconds(
            "exec_server_request_total_duration_seconds", "From a request's arrival to its answer."
        )
        self.processes = counter("exec_server_processes_finished_total", "Processes that ended.")
        self.process_duration = seconds(
            "exec_server_process_duration_seconds", "From a process's spawn to its exit."
        )
        self.client_requests = counter("exec_server_client_requests_total", "Requests we made.")
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

    # Metric readers call these in threads of their own. Only the loop's thread changes the
    # numbers, each by one atomic assignment.

    def _observe_connections(
        self, options: metrics.CallbackOptions
    ) -> Iterable[metrics.Observation]:
        return [
            metrics.Observation(count, {"transport": transport})
            for transport, count in self.connections_by_transport.copy().items()
        ]

    def _observe_processes(self, options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        return [metrics.Observation(self.running_processes)]
