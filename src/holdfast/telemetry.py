"""
What the server measures of itself, behind one small interface (exec-server spec 15).

The interface is all that the server knows. Without a recorder there is no object,
so a server that nobody watches does not pay for being watchable.
"""

from typing import Protocol

from holdfast.protocol.envelope import Trace

__all__ = ["ProcessRecord", "RequestRecord", "Telemetry"]


class RequestRecord(Protocol):
    """One request under way."""

    def finish(self, result: str) -> None:
        """It ended: `success`, `error` or `disconnected`."""


class ProcessRecord(Protocol):
    """One process under way."""

    def finish(self, result: str, exit_code: int | None) -> None:
        """It ended: `success`, `error`, `terminated` or `unknown`."""


class Telemetry(Protocol):
    """Records what happens; every method returns at once and never raises."""

    def now(self) -> float:
        """A clock for `queued` of `request`."""

    def connection_opened(self, transport: str) -> None: ...

    def connection_closed(self, transport: str) -> None: ...

    def request(self, method: str, trace: Trace | None, queued: float | None) -> RequestRecord:
        """A request begins to run; `queued` is when it came, if it had to wait."""

    def process(self, process_id: str) -> ProcessRecord:
        """A process was started."""
