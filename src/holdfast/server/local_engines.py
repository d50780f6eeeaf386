"""
The engines of this machine, a server's default backends.

Only this module of the server names them.
"""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.backends import HttpBody, RunInThread
from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.engine.process.io.input_budget import InputBudget, InputTotal
from holdfast.engine.process.process_table import TableSettings
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.wire.protocol.http import HttpRequestParams, HttpResponse

if TYPE_CHECKING:
    from holdfast.engine.http.local_http import LocalHttpClient

__all__ = ["LazyHttpClient", "LocalSessions", "local_files"]


class LocalSessions:
    """
    Processes of this machine, with a registry per session.

    A fast path: otherwise a server uses a task per process, as for any other backend
    (`scripts/bench --without session-tables`).
    """

    def __init__(self, shell: str) -> None:
        """`shell` is the user's login shell, for terminals without a `SHELL`."""
        self._shell = shell
        # Shared by all sessions, since they use the memory of one server.
        self._input_total = InputTotal()

    def open_session(self, settings: TableSettings) -> ProcessRegistry:
        """Return an empty registry for a new session."""
        return ProcessRegistry(
            shell=self._shell,
            observers=settings.observers,
            make_log=settings.make_log,
            retention=settings.retention,
            # A budget per session, within the total of the server.
            input_budget=InputBudget(self._input_total),
        )


def local_files() -> LocalFileSystem:
    """Return the file system of this machine; the caller closes it."""
    return LocalFileSystem()


class LazyHttpClient:
    """HTTP calls from this machine, with a client that is created for the first call."""

    def __init__(self) -> None:
        self._made: LocalHttpClient | None = None

    @property
    def _client(self) -> "LocalHttpClient":
        if self._made is None:
            # Imported late: takes 15 ms, and most servers never get an `http/request`.
            from holdfast.engine.http.local_http import LocalHttpClient

            self._made = LocalHttpClient()
        return self._made

    def resolving_by(self, run: RunInThread) -> "LocalHttpClient":
        """Return the client, resolving names in the threads of one connection."""
        return self._client.resolving_by(run)

    # Plain functions: a coroutine here would only forward the result.
    def request(self, params: HttpRequestParams) -> Coroutine[Any, Any, HttpResponse]:
        return self._client.request(params)

    def stream(
        self, params: HttpRequestParams
    ) -> Coroutine[Any, Any, tuple[HttpResponse, HttpBody]]:
        return self._client.stream(params)

    async def aclose(self) -> None:
        """Close the client and its idle connections, if one was created."""
        if self._made is not None:
            await self._made.aclose()
