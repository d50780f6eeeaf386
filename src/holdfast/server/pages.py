"""
Plain HTTP pages of a listener: each is a function and a row of `PAGES`.

A listener serves them before it handles an upgrade to WebSocket [serve.listen.*].
"""

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

from holdfast.base.version import __version__
from holdfast.server.listen import PlainPage
from holdfast.server.principals import Principals
from holdfast.server.state import ServerState
from holdfast.wire.transports.http_head import Response

__all__ = ["PAGES", "metrics_text", "served_pages"]


class _PageRow(NamedTuple):
    answer: Callable[[ServerState], Response]
    token: bool
    """True if it needs a token, like a connection."""
    always: bool = False
    """True if it is served even without `Server(pages=True)`."""


def _ready(state: ServerState) -> Response:
    return Response(HTTPStatus.SERVICE_UNAVAILABLE if state.draining else HTTPStatus.OK)


def _alive(_: ServerState) -> Response:
    return Response(HTTPStatus.OK)


def _metrics(state: ServerState) -> Response:
    text = metrics_text(state.principals)
    return Response(HTTPStatus.OK, text, (("content-type", _CONTENT_TYPE),))


# Load balancers and systemd, which request the first two, have no token.
PAGES: Final[Mapping[str, _PageRow]] = {
    "/readyz": _PageRow(_ready, token=False, always=True),
    "/healthz": _PageRow(_alive, token=False),
    "/metrics": _PageRow(_metrics, token=True),
}


def served_pages(state: ServerState, *, every: bool) -> Mapping[str, PlainPage]:
    """Return the pages of a server by path: all, or those that every server has."""
    return {
        path: PlainPage(partial(row.answer, state), row.token)
        for path, row in PAGES.items()
        if every or row.always
    }


# -- metrics, in Prometheus's text format (version 0.0.4)

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# This module is imported with the server, so about when the server starts.
_STARTED: Final = time.time()

_GAUGES: Final = (
    ("connections", "Open connections."),
    ("sessions", "Sessions, including those without a connection."),
    ("processes", "Processes that are running or being started."),
    ("file_handles", "Open files of clients."),
    ("requests", "Requests that wait for their response."),
)

_COUNTERS: Final = (
    ("connections", "Connections since the start."),
    ("requests", "Requests since the start."),
    ("processes", "Processes since the start."),
    ("refusals", "Attempts to connect without a valid token."),
    ("overloads", "Refusals because a principal was at its limit."),
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
    # Named as by Prometheus's client libraries, so that common dashboards work.
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield from _family(
        "process_cpu_seconds_total",
        "counter",
        "CPU time of the server itself.",
        [("", round(usage.ru_utime + usage.ru_stime, 3))],
    )
    yield from _family(
        "process_resident_memory_bytes", "gauge", "Memory of the server.", [("", _resident())]
    )
    yield from _family(
        "process_open_fds",
        "gauge",
        "Open file descriptors of the server.",
        [("", len(os.listdir("/proc/self/fd")))],
    )
    yield from _family(
        "process_start_time_seconds",
        "gauge",
        "Start time of the server.",
        [("", round(_STARTED, 3))],
    )


def _family(name: str, kind: str, about: str, values: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values:
        yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def _quoted(text: str) -> str:
    # The text format's escapes for label values.
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
