"""
Configures OpenTelemetry's SDK and its exporters (extra `otel`).

`configure` imports this module if an exporter is selected. The SDK reads endpoints, headers,
limits and intervals from environment variables.
"""

import logging
import os
import platform
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from opentelemetry import _logs, metrics, trace
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, ConsoleLogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from holdfast.base.version import __version__
from holdfast.telemetry.otel import OpenTelemetry

__all__ = ["FLUSH_LIMIT", "Exporting", "export"]

logger = logging.getLogger(__name__)

FLUSH_LIMIT = 3.0
"""Seconds that a stopping server waits for a collector."""


class Exporting:
    """A recorder with exporters."""

    def __init__(self, telemetry: OpenTelemetry, shutdowns: Sequence[Callable[[], object]]) -> None:
        self.telemetry = telemetry
        self._shutdowns = shutdowns

    def close(self, limit: float = FLUSH_LIMIT) -> None:
        """Flush and shut down the exporters, within `limit` seconds."""
        # In daemon threads, which can be abandoned: exporters ignore their own timeouts.
        threads = [
            threading.Thread(target=shutdown, name="telemetry-flush", daemon=True)
            for shutdown in self._shutdowns
        ]
        deadline = monotonic() + limit
        # All started first, since they share the time limit.
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))
        if any(thread.is_alive() for thread in threads):
            logger.error("telemetry: some data was lost: the collector does not respond")


def export(*, traces: Sequence[str], metrics: Sequence[str], logs: Sequence[str]) -> Exporting:
    """
    Return a recorder that sends each signal to its exporters, `otlp` or `console`.

    Its providers are private: the global ones belong to the embedding application.
    """
    resource = _resource()
    shutdowns: list[Callable[[], object]] = []
    telemetry = OpenTelemetry(
        tracer_provider=_tracers(traces, resource, shutdowns),
        meter_provider=_meters(metrics, resource, shutdowns),
        logger_provider=_loggers(logs, resource, shutdowns),
    )
    telemetry.program_started("holdfast")
    return Exporting(telemetry, shutdowns)


def _resource() -> Resource:
    """Return the resource of this server; environment variables override its attributes."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    ours = Resource.create(
        {
            "service.name": "holdfast",
            "service.version": __version__,
            # Distinguishes the counters of servers on one machine.
            "service.instance.id": os.urandom(16).hex(),
            "os": release.get("NAME", platform.system()),
            "os_version": release.get("VERSION_ID", platform.release()),
        }
    )
    # In this order: the merged resource overrides common attributes.
    return ours.merge(OTELResourceDetector().detect())


# A signal without exporters gets a no-op provider. Console exporters write to stderr, since stdout
# has the server's URL or the protocol.


def _tracers(
    exporters: Sequence[str], resource: Resource, shutdowns: list[Callable[[], object]]
) -> trace.TracerProvider:
    if not exporters:
        return trace.NoOpTracerProvider()
    # No exit handler: `close` shuts the providers down within its time limit.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for name in exporters:
        exporter = ConsoleSpanExporter(out=sys.stderr) if name == "console" else OTLPSpanExporter()
        provider.add_span_processor(BatchSpanProcessor(exporter))
    shutdowns.append(provider.shutdown)
    return provider


def _meters(
    exporters: Sequence[str], resource: Resource, shutdowns: list[Callable[[], object]]
) -> metrics.MeterProvider:
    if not exporters:
        return metrics.NoOpMeterProvider()
    readers = [
        PeriodicExportingMetricReader(
            ConsoleMetricExporter(out=sys.stderr) if name == "console" else OTLPMetricExporter()
        )
        for name in exporters
    ]
    provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    shutdowns.append(provider.shutdown)
    return provider


def _loggers(
    exporters: Sequence[str], resource: Resource, shutdowns: list[Callable[[], object]]
) -> _logs.LoggerProvider:
    if not exporters:
        return _logs.NoOpLoggerProvider()
    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    for name in exporters:
        exporter = (
            ConsoleLogRecordExporter(out=sys.stderr) if name == "console" else OTLPLogExporter()
        )
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    shutdowns.append(provider.shutdown)
    return provider
