"""
The engines of this machine, which a server uses unless it is given others.

The only module of the server that names them.
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
    Processes of this machine: each session has its own registry.

    A fast path: without it a server takes a task per process, as for any other backend
    (`scripts/bench --without session-tables`).
    """

    def __init__(self, shell: str) -> None:
        """`shell` is the user's login shell, for terminals without a `SHELL`."""
        self._shell = shell
        # Of all sessions together: the memory of the server is one.
        self._input_total = InputTotal()

    def open_session(self, settings: TableSettings) -> ProcessRegistry:
        """Return the empty registry of a new session."""
        return ProcessRegistry(
            shell=self._shell,
            observers=settings.observers,
            make_log=settings.make_log,
            retention=settings.retention,
            # One budget per session; all of them share the total of the server.
            input_budget=InputBudget(self._input_total),
        )


def local_files() -> LocalFileSystem:
    """Return the files of this machine; the caller closes them."""
    return LocalFileSystem()


class LazyHttpClient:
    """HTTP calls of this machine, by a client that is made for the first call."""

    def __init__(self) -> None:
        self._made: LocalHttpClient | None = None

    @property
    def _client(self) -> "LocalHttpClient":
        if self._made is None:
            # Imported late: most servers never get an `http/request`, and the import takes 15 ms.
            from holdfast.engine.http.local_http import LocalHttpClient

            self._made = LocalHttpClient()
        return self._made

    def resolving_by(self, run: RunInThread) -> "LocalHttpClient":
        """Return the client for calls that resolve names in the threads of one connection."""
        return self._client.resolving_by(run)

    # Neither is a coroutine of its own: one more for each call would only pass on the result.
    def request(self, params: HttpRequestParams) -> Coroutine[Any, Any, HttpResponse]:
        return self._client.request(params)

    def stream(
        self, params: HttpRequestParams
    ) -> Coroutine[Any, Any, tuple[HttpResponse, HttpBody]]:
        return self._client.stream(params)

    async def aclose(self) -> None:
        """Close the client with its idle connections, if one was made."""
        if self._made is not None:
            await self._made.aclose()
