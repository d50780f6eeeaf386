"""
Handler of `http/request`, which translates between the wire and the HTTP client.

Each call to another host is recorded in the audit log, whatever its outcome.
"""

from collections.abc import Awaitable
from functools import partial
from typing import Self
from urllib.parse import urlsplit

from holdfast.base.errors import InvalidParams, InvalidRequest
from holdfast.server.operate.records import CallRecord
from holdfast.server.server_connection import ServerConnection
from holdfast.server.sessions import short_session
from holdfast.wire.log_event import clip
from holdfast.wire.protocol.http import HttpRequestParams, HttpResponse
from holdfast.wire.protocol.methods import HTTP_REQUEST
from holdfast.wire.rpc.base64 import encode_base64
from holdfast.wire.rpc.encode import Encoded, encode_value
from holdfast.wire.rpc.router import Router

__all__ = ["add_http_methods"]

# Bytes of a body above which it is encoded in a thread, to not block the event loop.
_LARGE = 1 << 20


def add_http_methods(router: Router[ServerConnection]) -> None:
    """Add the handler of this module to a router."""
    router.add(HTTP_REQUEST, _request)


def _request(
    client: ServerConnection, params: HttpRequestParams
) -> Awaitable[HttpResponse | Encoded]:
    # The server could end in the middle of the call.
    client.state.check_draining()
    if not params.stream_response:
        return _buffered(client, params)
    # Not in the task: a second request with the same id must fail at once.
    client.bodies.reserve(params.request_id)
    return _streamed(client, params)


async def _buffered(client: ServerConnection, params: HttpRequestParams) -> HttpResponse | Encoded:
    with _AuditedCall(client, params) as call:
        response = await client.http.request(params)
        call.status = response.status
    body = response.body_base64
    if len(body) <= _LARGE:
        return response
    encoded = await client.threads.run(partial(encode_base64, body))
    status, headers = encode_value(response.status), encode_value(response.headers)
    head = b'{"status":%b,"headers":%b,"bodyBase64":"' % (status, headers)
    return Encoded(head, encoded, b'"}')


async def _streamed(client: ServerConnection, params: HttpRequestParams) -> HttpResponse:
    try:
        with _AuditedCall(client, params) as call:
            response, body = await client.http.stream(params)
            call.status = response.status
    except BaseException:
        client.bodies.release(params.request_id)
        raise
    client.bodies.start(params.request_id, body)
    return response


class _AuditedCall:
    """Records the HTTP call of its block in the audit log, whatever its outcome."""

    # Not a `contextmanager`, which takes longer than the rest of a small request.
    __slots__ = ("_client", "_params", "status")

    def __init__(self, client: ServerConnection, params: HttpRequestParams) -> None:
        self._client = client
        self._params = params
        self.status: int | None = None
        """Set by the caller once there is a response."""

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
            # Only the type: the message may contain the whole URL.
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
    """Return a URL without user, path and query, which may contain secrets."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "unreadable"
