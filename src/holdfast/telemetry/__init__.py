"""
What server and client measure of themselves, behind small interfaces (docs/telemetry.md).

The interfaces are all that the others know. Without a recorder there is no object,
so a server that nobody watches does not pay for being watchable: OpenTelemetry is
not even imported. `otel` implements them, `configure` decides for a server with a
process of its own.
"""

from typing import Literal, Protocol

from holdfast.protocol.envelope import Trace
from holdfast.protocol.process import StartParams

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
"""What may take its time before a process is spawned."""


class ServerRecord(Protocol):
    """One server under way."""

    def finish(self) -> None:
        """It ended, and everything it started."""


class RequestRecord(Protocol):
    """
    One request under way.

    As a context manager it is the current one for what runs in the block, and for
    the tasks that are made there.
    """

    def __enter__(self) -> object: ...

    def __exit__(self, *exc: object) -> None: ...

    def finish(self, result: str) -> None:
        """Its answer is on the way, or never will be: `success`, `error` or `disconnected`."""


class ProcessRecord(Protocol):
    """One process under way."""

    def finish(self, result: str, exit_code: int | None) -> None:
        """It ended: `success`, `error`, `terminated` or `unknown`."""


class StartRecord(Protocol):
    """One start under way. One that is refused before the spawn is simply forgotten."""

    def prepared(self, what: Preparation) -> None:
        """This part is done. It began where the part before it ended."""

    def started(self, sandbox_type: str = "none") -> ProcessRecord:
        """There is a process; `sandbox_type` as on the wire."""

    def failed(self, sandbox_type: str = "none") -> None:
        """The system refused to spawn it."""


class Telemetry(Protocol):
    """What happens in a server. Every method returns at once and never raises."""

    def server(self) -> ServerRecord:
        """A server begins to serve."""

    def now(self) -> float:
        """A clock for `queued` of `request`."""

    def connection_opened(self, transport: str) -> None: ...

    def connection_closed(self, transport: str) -> None: ...

    def request(self, method: str, trace: Trace | None, queued: float | None) -> RequestRecord:
        """A request begins to run; `queued` is when it came, if it had to wait."""

    def start(self, params: StartParams) -> StartRecord:
        """A process is about to be started by the current request."""


class ClientTelemetry(Protocol):
    """What happens in a client."""

    def client_request(self, method: str) -> Trace | None:
        """
        A request is about to be sent; counted however it ends.

        Returns:
            The trace it belongs to, to be sent along.
        """
