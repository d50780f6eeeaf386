"""Metrics of a server in Prometheus's text format (version 0.0.4)."""

import os
import resource
import time
from collections.abc import Iterable, Iterator
from typing import Final

from holdfast.base.version import __version__
from holdfast.server.principals import Principals

__all__ = ["CONTENT_TYPE", "metrics_text"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# This module is imported with the server, so this is about the time of its start.
_STARTED: Final = time.time()

_GAUGES: Final = (
    ("connections", "Open connections."),
    ("sessions", "Sessions, those that wait for a new connection as well."),
    ("processes", "Processes that run, or are about to."),
    ("file_handles", "Files that clients have open."),
    ("requests", "Requests that wait for their answer."),
)

_COUNTERS: Final = (
    ("connections", "Connections since the start."),
    ("requests", "Requests since the start."),
    ("processes", "Processes since the start."),
    ("refusals", "Attempts to connect without a valid token."),
    ("overloads", "What was refused because a principal was at its limit."),
)


def metrics_text(principals: Principals) -> bytes:
    """Return the page `/metrics`."""
    return ("\n".join(_lines(principals)) + "\n").encode()


def _lines(principals: Principals) -> Iterator[str]:
    yield from _family("holdfast_info", "gauge", "The server.", [(f'version="{__version__}"', 1)])
    for name, about in _GAUGES:
        values = [(f'principal="{_quoted(it.principal)}"', getattr(it, name)) for it in principals]
        yield from _family(f"holdfast_{name}", "gauge", about, values)
    for name, about in _COUNTERS:
        value = getattr(principals.totals, name)
        yield from _family(f"holdfast_{name}_total", "counter", about, [("", value)])
    # The names that Prometheus's own client libraries use, so that common dashboards work.
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield from _family(
        "process_cpu_seconds_total",
        "counter",
        "Processor time of the server itself.",
        [("", round(usage.ru_utime + usage.ru_stime, 3))],
    )
    yield from _family(
        "process_resident_memory_bytes", "gauge", "Memory of the server.", [("", _resident())]
    )
    yield from _family(
        "process_open_fds",
        "gauge",
        "Descriptors of the server.",
        [("", len(os.listdir("/proc/self/fd")))],
    )
    yield from _family(
        "process_start_time_seconds", "gauge", "When it started.", [("", round(_STARTED, 3))]
    )


def _family(name: str, kind: str, about: str, values: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values:
        yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def _quoted(text: str) -> str:
    # The escapes of label values in the text format.
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
