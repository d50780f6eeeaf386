"""Adds audit records to the handlers that change files or call other hosts."""

from collections.abc import Awaitable, Callable
from typing import Self, TypeVar
from urllib.parse import urlsplit

from holdfast.backends import FileSystem
from holdfast.base.errors import HoldfastError, InvalidParams, InvalidRequest
from holdfast.server.operate.records import CallRecord, FileRecord
from holdfast.server.server_connection import ServerConnection
from holdfast.server.sessions import short_session
from holdfast.wire.log_event import clip, path_text
from holdfast.wire.protocol.fs import (
    CopyParams,
    CreateDirectoryParams,
    OpenParams,
    RemoveParams,
    RenameParams,
    WriteFileParams,
)
from holdfast.wire.protocol.http import HttpRequestParams
from holdfast.wire.protocol.wire_types import Empty, Method
from holdfast.wire.rpc.router import Router

__all__ = ["AuditedCall", "add_change", "note_opened"]

_EMPTY = Empty()

Change = TypeVar(
    "Change", WriteFileParams, CreateDirectoryParams, RemoveParams, CopyParams, RenameParams
)


def add_change(
    router: Router[ServerConnection],
    method: Method[Change, Empty],
    change: Callable[[FileSystem, Change], Awaitable[None]],
) -> None:
    """Serve a method that changes files, and add an audit line whether it succeeds or not."""
    operation = method.name.removeprefix("fs/")

    async def handle(client: ServerConnection, params: Change) -> Empty:
        # Stays like this if the task is cancelled, which is no `Exception`.
        outcome: str | None = "cancelled"
        try:
            await change(client.filesystem, params)
            outcome = None
        except Exception as error:
            outcome = _reason(error)
            raise
        finally:
            _note_change(client, operation, params, outcome)
        return _EMPTY

    router.add(method, handle)


def note_opened(client: ServerConnection, params: OpenParams, error: Exception | None) -> None:
    """Add a line about an attempt to open a file for writing."""
    if params.mode != "read":
        reason = None if error is None else _reason(error)
        _note_change(client, f"open:{params.mode}", params, reason)


class AuditedCall:
    """Adds a line about the call to another host that is made inside, whatever its outcome."""

    # Not made by `contextmanager`, which would take longer than the rest of a small request.
    __slots__ = ("_client", "_params", "status")

    def __init__(self, client: ServerConnection, params: HttpRequestParams) -> None:
        self._client = client
        self._params = params
        self.status: int | None = None
        """Set by the caller once there is an answer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        records = self._client.state.records
        if records.audit is None:
            return
        client, params = self._client, self._params
        if kind is None:
            reason = None
        else:
            # Only the type: the text of the error may contain the whole URL.
            reason = kind.__name__ if issubclass(kind, Exception) else "cancelled"
        # These are raised before a connection is made.
        refused = isinstance(error, InvalidParams | InvalidRequest)
        records.add(
            CallRecord(
                principal=client.principal,
                session=short_session(client.session.id),
                decision="refused" if refused else "allowed",
                method=clip(params.method, 32),
                # Scheme, host and port only.
                target=clip(_origin(params.url)),
                status=self.status,
                error=reason,
            )
        )


def _origin(url: str) -> str:
    """Return a URL without user, path and query, which may hold secrets."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "unreadable"


def _note_change(
    client: ServerConnection,
    operation: str,
    params: WriteFileParams
    | CreateDirectoryParams
    | RemoveParams
    | CopyParams
    | RenameParams
    | OpenParams,
    error: str | None,
) -> None:
    records = client.state.records
    if records.audit is None:
        return
    source = None
    if isinstance(params, CopyParams | RenameParams):
        path, source = params.destination_path, path_text(params.source_path)
    else:
        path = params.path
    size = None
    if isinstance(params, WriteFileParams):
        size = params.data_base64.size
    records.add(
        FileRecord(
            principal=client.principal,
            session=short_session(client.session.id),
            operation=operation,
            path=path_text(path),
            source=source,
            bytes=size,
            sandboxed=not isinstance(params, RenameParams) and params.sandbox is not None,
            error=error,
        )
    )


def _reason(error: Exception) -> str:
    return clip(str(error)) if isinstance(error, HoldfastError) else type(error).__name__
