"""Handler of `http/request`: it translates between the wire and the HTTP client."""

from collections.abc import Awaitable
from functools import partial

from holdfast.server.operate.audited import AuditedCall
from holdfast.server.server_connection import ServerConnection
from holdfast.wire.protocol.http import HttpRequestParams, HttpResponse
from holdfast.wire.protocol.methods import HTTP_REQUEST
from holdfast.wire.rpc.base64 import encode_base64
from holdfast.wire.rpc.encode import Encoded, encode_value
from holdfast.wire.rpc.router import Router

__all__ = ["add_http_methods"]

# Bytes of a body beyond which it is encoded in a thread, so that the event loop is not blocked.
_LARGE = 1 << 20


def add_http_methods(router: Router[ServerConnection]) -> None:
    """Add the handler of this module to a router."""
    router.add(HTTP_REQUEST, _request)


def _request(
    client: ServerConnection, params: HttpRequestParams
) -> Awaitable[HttpResponse | Encoded]:
    # Its effect could be lost with the server in the middle of it.
    client.state.check_draining()
    if not params.stream_response:
        return _buffered(client, params)
    # Now, and not in the task: a second request with the same id must fail at once.
    client.bodies.reserve(params.request_id)
    return _streamed(client, params)


async def _buffered(client: ServerConnection, params: HttpRequestParams) -> HttpResponse | Encoded:
    with AuditedCall(client, params) as call:
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
        with AuditedCall(client, params) as call:
            response, body = await client.http.stream(params)
            call.status = response.status
    except BaseException:
        client.bodies.release(params.request_id)
        raise
    client.bodies.start(params.request_id, body)
    return response
