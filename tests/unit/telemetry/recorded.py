"""A recorder whose records stay in memory, and ways to look at them."""

from collections.abc import Mapping, Sequence

from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Histogram,
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.telemetry.otel import OpenTelemetry


class Recorded:
    """One recorder and all that it recorded so far."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._logs = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
        self._metrics = InMemoryMetricReader()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        loggers = LoggerProvider(shutdown_on_exit=False)
        loggers.add_log_record_processor(SimpleLogRecordProcessor(self._logs))
        self.telemetry = OpenTelemetry(
            tracer_provider=tracers,
            meter_provider=MeterProvider([self._metrics], shutdown_on_exit=False),
            logger_provider=loggers,
        )

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """The spans that ended, in the order in which they did."""
        return self._spans.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        """The one span of that name."""
        (span,) = [span for span in self.spans if span.name == name]
        return span

    @property
    def logs(self) -> list[ReadableLogRecord]:
        """The log events."""
        return list(self._logs.get_finished_logs())

    def metrics(self) -> dict[str, Metric]:
        """Every metric that has a value, by name."""
        data = self._metrics.get_metrics_data()
        if data is None:
            return {}
        ((scope,),) = [resource.scope_metrics for resource in data.resource_metrics]
        assert scope.scope.name == "codex"
        return {metric.name: metric for metric in scope.metrics}

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of a counter or gauge by the values of its attributes, in order of name."""
        data = self.metrics()[name].data
        assert isinstance(data, Sum | Gauge)
        return {_key(point): point.value for point in data.data_points}

    def durations(self, name: str) -> dict[tuple[str, ...], HistogramDataPoint]:
        """The points of a histogram by the values of its attributes, in order of name."""
        metric = self.metrics()[name]
        assert metric.unit == "s"
        assert isinstance(metric.data, Histogram)
        return {_key(point): point for point in metric.data.data_points}


def attributes_of(found: ReadableSpan | ReadableLogRecord) -> Mapping[str, object]:
    """The attributes of a span or a log event, as a plain mapping."""
    if isinstance(found, ReadableLogRecord):
        return dict(found.log_record.attributes or {})
    return dict(found.attributes or {})


def _key(point: NumberDataPoint | HistogramDataPoint) -> tuple[str, ...]:
    attributes = point.attributes or {}
    return tuple(str(attributes[name]) for name in sorted(attributes))
