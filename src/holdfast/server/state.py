"""State shared by all connections of a server."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from holdfast.backends import FileSystem, HttpClient
from holdfast.base.errors import Overloaded
from holdfast.engine.files.threads import FileThreads, Threads
from holdfast.server.operate.records import Records
from holdfast.server.principals import PrincipalLimits, Principals, Usage
from holdfast.server.sessions import Session, Sessions
from holdfast.telemetry import Telemetry
from holdfast.wire.protocol.fs import FileMetadata, GetMetadataParams, ReadFileParams
from holdfast.wire.protocol.handshake import EnvironmentInfo
from holdfast.wire.transports.transport import SIGN_INTERVAL

if TYPE_CHECKING:
    from holdfast.server.server_connection import ServerConnection

__all__ = ["DEFAULT_CONCURRENT_REQUESTS", "LocalFiles", "ServerState"]

# Maximum waiting requests of a connection; those answered at once do not count.
DEFAULT_CONCURRENT_REQUESTS = 1024

# Maximum connections of a principal that have not opened a session.
_MOST_NEWCOMERS = 1_024


@runtime_checkable
class LocalFiles(FileSystem, Protocol):
    """Optional for a local `FileSystem`: can answer from the kernel's caches."""

    def for_client(self, threads: Threads) -> "LocalFiles":
        """Return the same file system, using the threads of one client."""

    def cached_content(self, params: ReadFileParams) -> bytes | None:
        """Return the content of a file if that needs no wait, else None."""

    def cached_metadata(self, params: GetMetadataParams) -> FileMetadata | None:
        """Return the metadata of a path if that needs no wait, else None."""


class ServerState:
    """The sessions, backends and settings of a server."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        threads: FileThreads,
        filesystem: FileSystem,
        http: HttpClient,
        environment: EnvironmentInfo,
        records: Records,
        concurrent_requests: int = DEFAULT_CONCURRENT_REQUESTS,
        telemetry: Telemetry | None = None,
        resumable: bool = True,
        sign_interval: float = SIGN_INTERVAL,
        limits: PrincipalLimits | None = None,
    ) -> None:
        self.sessions = sessions
        self.principals = Principals(limits)
        self.threads = threads
        self.filesystem = filesystem
        self.local_files = filesystem if isinstance(filesystem, LocalFiles) else None
        self.http = http
        self.environment = environment
        self.concurrent_requests = concurrent_requests
        self.telemetry = telemetry
        self.sign_interval = sign_interval
        self.records = records
        self.connections: set[ServerConnection] = set()
        self.newcomers: dict[ServerConnection, None] = {}
        """Connections that have not opened or resumed a session yet, oldest first."""
        self.draining = False
        """True while the server is stopping: it refuses commands, HTTP requests and sessions."""
        # On stdio there is only one connection, so sessions cannot be resumed.
        self._resumable = resumable

    def admit(self, usage: Usage) -> None:
        """
        Make room for another connection of a principal.

        Connections that have not opened a session make room, oldest first: genuine clients open one
        at once.

        Raises:
            Overloaded: The principal is at its limit of connections with a session.
        """
        waiting = [one for one in self.newcomers if one.usage is usage]
        if len(waiting) >= _MOST_NEWCOMERS or (waiting and usage.is_full("connections")):
            waiting[0].abandon("it opened no session, and another client came")
        usage.check("connections")

    def check_draining(self) -> None:
        """
        Raise if the server accepts no new work.

        Raises:
            Overloaded: It is stopping.
        """
        if self.draining:
            raise Overloaded("the server is stopping and takes no new work")

    def connection_ended(self, session: Session, *, silent: bool, closed: bool) -> None:
        """Keep a session for a resume, if the server supports that; see `Sessions.detach`."""
        if self._resumable:
            self.sessions.detach(session, silent=silent, closed=closed)
