"""The backends of a server: those it was given, and this machine for the rest."""

from contextlib import AsyncExitStack
from typing import Self

from holdfast.backends import ExecBackend, FileSystem, HttpClient
from holdfast.process.process_table import OpensSessions
from holdfast.protocol.handshake import EnvironmentInfo
from holdfast.server.backend_processes import BackendSessions
from holdfast.server.info import environment_info, login_shell, served_capabilities
from holdfast.server.local_engines import LazyHttpClient, LocalSessions, local_files

__all__ = ["ServedBackends"]


class ServedBackends:
    """
    The processes, files and HTTP calls that a server offers.

    A context manager: it makes what was not given, and closes only that.
    """

    processes: OpensSessions
    """Makes the process table of each session."""
    files: FileSystem
    http: HttpClient
    environment: EnvironmentInfo
    """The description that clients get."""

    def __init__(
        self,
        processes: ExecBackend | OpensSessions | None,
        files: FileSystem | None,
        http: HttpClient | None,
        environment: EnvironmentInfo | None,
    ) -> None:
        """See `Server`; None stands for this machine."""
        self._given = (processes, files, http, environment)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        processes, files, http, environment = self._given
        self.processes = self._open_processes(processes)
        self.files = self._open_files() if files is None else files
        self.http = self._open_http() if http is None else http
        if environment is None:
            environment = environment_info(capabilities=served_capabilities(processes, files))
        self.environment = environment
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def _open_processes(self, given: ExecBackend | OpensSessions | None) -> OpensSessions:
        if given is None:
            return LocalSessions(login_shell())
        # The fast path, if there is one.
        if isinstance(given, OpensSessions):
            return given
        sessions = BackendSessions(given)
        self._stack.push_async_callback(sessions.aclose)
        return sessions

    def _open_files(self) -> FileSystem:
        files = local_files()
        self._stack.push_async_callback(files.aclose)
        return files

    def _open_http(self) -> HttpClient:
        http = LazyHttpClient()
        self._stack.push_async_callback(http.aclose)
        return http
