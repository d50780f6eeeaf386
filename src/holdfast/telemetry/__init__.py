"""
Interfaces for the telemetry of server and client (docs/telemetry.md).

Other packages only use these interfaces. Without telemetry there is no object, no cost and no
import of OpenTelemetry. `otel` implements the interfaces; `configure` sets up telemetry for a
server process.
"""

from typing import Literal, Protocol

from holdfast.wire.protocol.envelope import Trace
from holdfast.wire.protocol.process import StartParams

__all__ = [
    "ClientTelemetry",
    "Preparation",
    "ProcessRecord",
    "RequestRecord",
    "ServerRecord",
    "StartRecord",
    "Telemetry",
]

Preparation = Literal["sandbox", "shell_snapshot"]
"""Possibly long steps before a process is spawned."""


class ServerRecord(Protocol):
    """Record of a running server."""

    def finish(self) -> None:
        """Record the end of the server and of all its processes."""


class RequestRecord(Protocol):
    """
    Record of a running request.

    As a context manager, it is the current request for the block and the tasks created in it.
    """

    def __enter__(self) -> object: ...

    def __exit__(self, *exc: object) -> None: ...

    def finish(self, result: str) -> None:
        """Record the end of the request: `success`, `error` or `disconnected`."""


class ProcessRecord(Protocol):
    """Record of a running process."""

    def finish(self, result: str, exit_code: int | None) -> None:
        """Record the end of the process: `success`, `error`, `terminated` or `unknown`."""


class StartRecord(Protocol):
    """Record of a start, unless it is refused before the spawn."""

    def prepared(self, what: Preparation) -> None:
        """Record the end of a step, which began when the previous one ended."""

    def started(self, sandbox_type: str = "none") -> ProcessRecord:
        """Record the spawn of a process; `sandbox_type` is as on the wire."""

    def failed(self, sandbox_type: str = "none") -> None:
        """Record that the system refused the spawn."""


class Telemetry(Protocol):
    """Telemetry of a server. No method blocks or raises."""

    def server(self) -> ServerRecord:
        """Record the start of a server."""

    def now(self) -> float:
        """Return the time for `queued` of `request`."""

    def connection_opened(self, transport: str) -> None: ...

    def connection_closed(self, transport: str) -> None: ...

    def request(self, method: str, trace: Trace | None, queued: float | None) -> RequestRecord:
        """Record the start of a request; `queued` is its arrival time, if it had to wait."""

    def start(self, params: StartParams) -> StartRecord:
        """Record that the current request is about to start a process."""


class ClientTelemetry(Protocol):
    """Telemetry of a client."""

    def client_request(self, method: str) -> Trace | None:
        """
        Count a request that is about to be sent.

        Returns:
            The trace context to send with it, or None.
        """
