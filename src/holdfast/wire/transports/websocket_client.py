"""WebSocket clients: connection, handshake, and the reasons for failures."""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus

from picows import WSError, WSHandshakeError, WSTransport
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in its stub
from picows.url import WSParsedURL, parse_url

from holdfast.base.dialect import texts
from holdfast.base.errors import ConnectFailed
from holdfast.base.system_text import system_text
from holdfast.base.tasks import was_cancelled
from holdfast.wire.transports.token_urls import without_password
from holdfast.wire.transports.transport import SIGN_INTERVAL, Receiver, Transport
from holdfast.wire.transports.websocket import WebSocketTransport, websocket_protocol

__all__ = ["connect_websocket"]

# Answers of other web servers, and of an exec-server at another path.
_FOREIGN = (HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)

_NO_SERVER = " (no exec-server answers there: is the URL right?)"


async def connect_websocket(
    url: str,
    accept: Callable[[Transport], Receiver],
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = 10.0,
    ping_interval: float = SIGN_INTERVAL,
) -> Transport:
    """
    Connect to a server.

    Args:
        url: `ws://` or `wss://`.
        accept: Called with the connection; returns the receiver of its messages.
        headers: Sent with the request, such as `Authorization`.
        timeout: Seconds for all steps together.
        ping_interval: Seconds between two pings. A server that sends nothing for two
            intervals, not even a pong, is lost.

    Raises:
        ConnectFailed: With the reason.
    """
    if not url.startswith(("ws://", "wss://")):
        raise _failed(url, "URL error: URL scheme not supported")
    loop = asyncio.get_running_loop()
    listener = WebSocketTransport(loop, ping_interval, accept, is_client=True)

    def make_protocol(parsed: WSParsedURL) -> WSProtocol:
        return websocket_protocol(
            lambda: listener,
            ping_interval,
            # The user in a URL is not part of the host name.
            host=parsed.netloc.rpartition("@")[2],
            resource=parsed.resource_name,
            headers=headers or {},
        )

    try:
        async with asyncio.timeout(timeout):
            transport = await _shake_hands(url, make_protocol)
    except asyncio.CancelledError:
        if was_cancelled():
            raise
        raise _hung_up(url) from None
    except TimeoutError:
        hint = " (a server without TLS has a `ws://` URL)" if url.startswith("wss:") else ""
        raise ConnectFailed(
            f"timed out connecting to exec-server websocket `{without_password(url)}`"
            f" after {texts.duration(timeout)}{hint}"
        ) from None
    except (OSError, ValueError, WSError) as error:
        reason, number = _reason(error, has_token="Authorization" in (headers or {}))
        raise _failed(url, reason, errno=number) from error
    if not listener.was_opened:
        # picows does not report that the other side hangs up instead of answering.
        raise _hung_up(url)
    if not transport.is_secure:
        listener.acknowledge_at_once()
    return listener


async def _shake_hands(url: str, make_protocol: Callable[[WSParsedURL], WSProtocol]) -> WSTransport:
    """
    Open a connection, and make it a WebSocket.

    `picows.ws_connect` would do, except for a caller who gives up during the handshake: it leaves
    the connection open until its own limit. Its other transports (aiofastnet) do not notice on
    uvloop that a connection was reset.
    """
    parsed = parse_url(url)
    transport, protocol = await asyncio.get_running_loop().create_connection(
        lambda: make_protocol(parsed),
        parsed.host,
        parsed.port,
        ssl=True if parsed.is_secure else None,
    )
    try:
        await protocol.wait_until_handshake_complete()
    except BaseException:
        transport.abort()
        raise
    ws: WSTransport = protocol.transport
    return ws


def _failed(url: str, reason: str, *, errno: int | None = None) -> ConnectFailed:
    return ConnectFailed(
        f"failed to connect to exec-server websocket `{without_password(url)}`: {reason}",
        errno=errno,
    )


def _hung_up(url: str) -> ConnectFailed:
    """Return the error for a server that closed the connection instead of answering."""
    hint = "" if url.startswith("wss:") else " (a server with TLS has a `wss://` URL)"
    return _failed(url, f"connection closed{hint}")


def _reason(error: Exception, *, has_token: bool) -> tuple[str, int | None]:
    """Return the reason why connecting failed, and the errno if there is one."""
    if isinstance(error, WSHandshakeError):
        return _refusal(error, has_token=has_token), None
    if not isinstance(error, OSError) or not error.errno:
        return str(error), None
    # Not imported: most connections do not use TLS, and then there is no such error.
    ssl = sys.modules.get("ssl")
    if ssl is not None and isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"TLS error: certificate verify failed: {error.verify_message}"
            " (to trust another certificate, name its file in SSL_CERT_FILE)",
            None,
        )
    if ssl is not None and isinstance(error, ssl.SSLError):
        # Its errno is one of OpenSSL.
        return f"TLS error: {error.reason}", None
    # The event loop has its own texts; an unknown host name has no errno.
    known = error.errno > 0 and not isinstance(error, socket.gaierror)
    reason = f"IO error: {system_text(error) if known else error.strerror}"
    if error.errno == errno.ECONNREFUSED:
        reason += " (nothing listens there: is the server running?)"
    return reason, error.errno if known else None


def _refusal(error: WSHandshakeError, *, has_token: bool) -> str:
    """Return the answer of a server that refused the upgrade."""
    if error.response is None:
        return f"{error}{_NO_SERVER}"
    body = (error.raw_body or b"").decode("utf-8", "replace").strip()
    status = error.response.status
    text = f"HTTP error: {int(status)}" + (f": {body}" if body else "")
    if status == HTTPStatus.UNAUTHORIZED:
        fault = "the server takes another token" if has_token else "the server wants a token"
        text += (
            f" ({fault}: give it with --token-file FILE, HOLDFAST_TOKEN or bearer_token=,"
            " or as auth_bearer_token in environments.toml)"
        )
    elif status in _FOREIGN:
        text += _NO_SERVER
    return text
