"""
Telemetry for a server with a process of its own: on when the environment asks for it.

The variables are OpenTelemetry's own; most of them are read by its SDK. This module
looks at those that say whether there is anything to do, and imports OpenTelemetry
only if there is.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from holdfast._version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

    from holdfast.telemetry.otel import OpenTelemetry

__all__ = ["FLUSH_LIMIT", "Exporting", "configure_telemetry", "wanted_exporters"]

logger = logging.getLogger(__name__)

FLUSH_LIMIT = 3.0
"""Seconds a server waits at its end for a collector that does not answer."""

_SIGNALS = ("TRACES", "METRICS", "LOGS")
_KNOWN = ("otlp", "console")
_PROTOCOL = "http/protobuf"


class Exporting:
    """Telemetry on its way out of this process."""

    def __init__(self, telemetry: "OpenTelemetry", shutdowns: list[Callable[[], object]]) -> None:
        self.telemetry = telemetry
        self._shutdowns = shutdowns

    def close(self, limit: float = FLUSH_LIMIT) -> None:
        """Send what is left, for so many seconds at most."""
        # Not every exporter keeps to a deadline it is given. Threads can be left behind.
        threads = [
            threading.Thread(target=shutdown, name="telemetry-flush", daemon=True)
            for shutdown in self._shutdowns
        ]
        deadline = monotonic() + limit
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))
        if any(thread.is_alive() for thread in threads):
            logger.warning("telemetry: gave up on a collector that does not answer")


def configure_telemetry() -> Exporting | None:
    """
    Set up telemetry if the environment asks for it.

    A problem never keeps a server from starting: it is one line in the log.
    """
    wanted = wanted_exporters(os.environ)
    if not any(wanted.values()):
        return None
    try:
        return _configure(wanted)
    except ImportError as error:
        logger.warning(
            "telemetry is off: OTEL_… variables ask for it, but there is no way to send it (%s);"
            " to install one: pip install 'holdfast[otel]'",
            error,
        )
    except Exception as error:  # noqa: BLE001 - whatever the variables made of the exporters
        logger.warning("telemetry is off: %s", error)
    return None


def wanted_exporters(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """
    The exporters the environment asks for, by signal.

    An endpoint alone asks for the signals it is for. Without endpoint or exporter
    there is none, unlike in OpenTelemetry's own defaults: a server must not look for
    a collector that nobody told it of.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {}
    return {signal: _exporters(signal, environ) for signal in _SIGNALS}


def _exporters(signal: str, environ: Mapping[str, str]) -> list[str]:
    variable = f"OTEL_{signal}_EXPORTER"
    # An empty variable is as good as none, by OpenTelemetry's rules.
    names = [name.strip().lower() for name in environ.get(variable, "").split(",") if name.strip()]
    if not names:
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
        names = ["otlp"] if any(environ.get(name) for name in endpoints) else []
    if "none" in names:
        return []
    for name in names:
        if name not in _KNOWN:
            logger.warning("telemetry: %s=%s is not one of otlp, console, none", variable, name)
    if "otlp" in names:
        protocol = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL"
        )
        if protocol and protocol.strip() != _PROTOCOL:
            logger.warning(
                "telemetry: %s are sent as %s, not as %s", signal.lower(), _PROTOCOL, protocol
            )
    return [name for name in names if name in _KNOWN]


def _configure(wanted: dict[str, list[str]]) -> Exporting:
    from opentelemetry._logs import LoggerProvider, NoOpLoggerProvider
    from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
    from opentelemetry.trace import NoOpTracerProvider, TracerProvider

    from holdfast.telemetry.otel import OpenTelemetry

    resource = _resource()
    # The providers are given to our recorder only. What is global belongs to the
    # applications that embed a server.
    tracers: TracerProvider = NoOpTracerProvider()
    meters: MeterProvider = NoOpMeterProvider()
    loggers: LoggerProvider = NoOpLoggerProvider()
    shutdowns: list[Callable[[], object]] = []

    if spans := [_span_exporter(name) for name in wanted["TRACES"]]:
        from opentelemetry.sdk import trace

        tracers = sdk_tracers = trace.TracerProvider(resource=resource, shutdown_on_exit=False)
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        for span_exporter in spans:
            sdk_tracers.add_span_processor(BatchSpanProcessor(span_exporter))
        shutdowns.append(sdk_tracers.shutdown)
