"""What all connections of a server share."""

from typing import TYPE_CHECKING

from holdfast.filesystem.local import LocalFileSystem
from holdfast.protocol.handshake import EnvironmentInfo
from holdfast.server.principals import PrincipalLimits, Principals
from holdfast.server.sessions import Session, Sessions
from holdfast.telemetry import Telemetry
from holdfast.transports.base import SIGN_INTERVAL

if TYPE_CHECKING:
    from holdfast.http.local import LocalHttpClient
    from holdfast.server.audit import AuditLog
    from holdfast.server.connection import ServerConnection

__all__ = ["DEFAULT_CONCURRENT_REQUESTS", "ServerState"]

DEFAULT_CONCURRENT_REQUESTS = 1024
"""Requests of one connection that may be waiting at once; quick answers do not count."""


class ServerState:
    """The sessions, and the facts that do not change while the server runs."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        filesystem: LocalFileSystem,
        environment: EnvironmentInfo,
        concurrent_requests: int = DEFAULT_CONCURRENT_REQUESTS,
        telemetry: Telemetry | None = None,
        resumable: bool = True,
        sign_interval: float = SIGN_INTERVAL,
        limits: PrincipalLimits | None = None,
        audit: "AuditLog | None" = None,
    ) -> None:
        self.sessions = sessions
        self.principals = Principals(limits)
        self.filesystem = filesystem
        self.environment = environment
        self.concurrent_requests = concurrent_requests
        self.telemetry = telemetry
        self.sign_interval = sign_interval
        self.audit = audit
        self.connections: set[ServerConnection] = set()
        self._http: LocalHttpClient | None = None
        # On stdio there is one connection, and nothing to come back with.
        self._resumable = resumable

    @property
    def http(self) -> "LocalHttpClient":
        """Makes HTTP calls for all connections. A server that is asked for none does without."""
        if self._http is None:
            from holdfast.http.local import LocalHttpClient

            self._http = LocalHttpClient()
        return self._http

    async def close_http(self) -> None:
        """End the connections to others that are kept for the next call."""
        if self._http is not None:
            await self._http.aclose()

    def connection_ended(self, session: Session, *, silent: bool) -> None:
        """Keep a session for whoever may resume it; see `Sessions.detach`."""
        if self._resumable:
            self.sessions.detach(session, silent=silent)
