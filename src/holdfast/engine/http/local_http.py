"""
HTTP calls made by this process, an `HttpClient` [http.request.*].

Redirects are followed; apart from that the response is passed on unchanged. No cookies are kept,
nothing is decompressed, and an error status is an ordinary response.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from copy import copy
from typing import Self

from msgspec.structs import replace

from holdfast.backends import RunInThread
from holdfast.base.dialect import texts
from holdfast.base.errors import OperationFailed, Refused
from holdfast.engine.http.connector import Connector, system_errno
from holdfast.engine.http.exchange import Exchange, ExchangeFailed, HttpConnection
from holdfast.engine.http.outgoing import Headers, OutgoingRequest, prepare
from holdfast.engine.http.pool import ConnectionPool
from holdfast.engine.http.proxies import Proxies
from holdfast.wire.protocol.http import HttpHeader, HttpRequestParams, HttpResponse

__all__ = ["MAX_BODY", "MAX_HELD", "LocalBody", "LocalHttpClient"]

MAX_BODY = 512 << 20
"""Largest size of a body that is not streamed; the same as for a file."""

MAX_HELD = 1 << 30
"""Largest total size of all bodies that are being collected."""

_MAX_REDIRECTS = 10

_TIMED_OUT = "http/request failed: route-aware request timed out"


class _HeldBytes:
    """Count of the bytes of all bodies that are being collected."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class LocalHttpClient:
    """HTTP client; a context manager that keeps idle connections between calls, until its end."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Args: environ: Variables for headers, proxies and certificates."""
        self._environ = environ
        self._proxies = Proxies(environ)
        self._connector = Connector(environ)
        self._pool = ConnectionPool()
        self._held = _HeldBytes()
        # A dead name server blocks a thread for many seconds, and all callers share the loop's few
        # threads. So a caller may bring its own; see `resolving_by`.
        self._run_look_up: RunInThread | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def resolving_by(self, run: RunInThread) -> LocalHttpClient:
        """Return the same client, for calls that resolve names in a caller's own threads."""
        # A shallow copy: connections, certificates and limits are shared.
        other = copy(self)
        other._run_look_up = run  # noqa: SLF001 - the same class
        return other

    async def request(self, params: HttpRequestParams) -> HttpResponse:
        """
        Make a call and read its whole body.

        Raises:
            InvalidParams: The request is invalid.
            OperationFailed: No response arrived, or it was incomplete or too large.
        """
        response, body = await self.stream(params)
        return replace(response, body_base64=await self._collect(body))

    async def stream(self, params: HttpRequestParams) -> tuple[HttpResponse, LocalBody]:
        """
        Make a call and return after the headers; the caller reads the body, or closes it.

        The time limit of the call includes the body.

        Raises:
            InvalidParams: The request is invalid.
            OperationFailed: No response arrived.
        """
        outgoing = prepare(params, self._environ)
        if params.timeout_ms is None:
            exchange = await self._follow(outgoing, params)
            return _response(exchange), LocalBody(exchange, None)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + params.timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                exchange = await self._follow(outgoing, params)
        except TimeoutError:
            raise OperationFailed(_TIMED_OUT) from None
        # The deadline also holds for the body, which the caller reads later.
        timer = loop.call_at(deadline, exchange.close)
        return _response(exchange), LocalBody(exchange, timer)

    async def aclose(self) -> None:
        """Close idle connections."""
        self._pool.close()
        # The event loop closes their sockets in its next turn.
        await asyncio.sleep(0)

    # -- internals

    async def _follow(self, outgoing: OutgoingRequest, params: HttpRequestParams) -> Exchange:
        """
        Send a request and follow its redirects; return after the headers of the last response.
        """
        redirects = 0
        while True:
            exchange = await self._send(outgoing)
            if params.redirect_policy == "stop":
                return exchange
            try:
                following = outgoing.redirected(
                    exchange.status, exchange.headers.get("location", [])
                )
                if following is None:
                    return exchange
                if redirects == _MAX_REDIRECTS:
                    raise OperationFailed(texts.HTTP_REDIRECTS)
            except OperationFailed:
                exchange.close()
                raise
            redirects += 1
            exchange.close()
            outgoing = following

    async def _send(self, outgoing: OutgoingRequest) -> Exchange:
        """Send one request and wait for the headers of its response."""
        try:
            exchange, kept = await self._begin(outgoing, fresh=False)
            try:
                await exchange.head()
            except ExchangeFailed:
                # The server may have closed a kept connection just as it was used again. The
                # request is sent once more if nothing came back and repeating does no harm.
                if not (kept and exchange.untouched and outgoing.repeatable):
                    raise
                exchange, _ = await self._begin(outgoing, fresh=True)
                await exchange.head()
        except Refused:
            # One of ours, although it may also be an `OSError`.
            raise
        except (OSError, ExchangeFailed) as error:
            if isinstance(error, TimeoutError) and not error.errno:
                # Our own deadline, which the caller reports.
                raise
            raise OperationFailed(
                texts.http_not_sent(outgoing.url.href),
                errno=system_errno(error),
            ) from error
        return exchange

    async def _begin(self, outgoing: OutgoingRequest, *, fresh: bool) -> tuple[Exchange, bool]:
        """Send a request; also return True if the connection had been used before."""
        url = outgoing.url
        proxy = self._proxies.find(url)
        forwarded = proxy is not None and url.scheme == "http"
        origin = None if forwarded else url.origin
        opened = False

        async def connect() -> HttpConnection:
            nonlocal opened
            opened = True
            return await self._connector.open(url, proxy, self._run_look_up)

        connection = await self._pool.take((proxy, origin), connect, fresh=fresh)
        exchange = connection.send(
            outgoing.encode(
                proxy_credentials=proxy.credentials if proxy and forwarded else None,
                absolute=forwarded,
            ),
            bodiless=outgoing.method in ("HEAD", "CONNECT"),
            last=outgoing.method == "CONNECT" or outgoing.wants_close,
        )
        return exchange, not opened

    async def _collect(self, body: LocalBody) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            while piece := await body.read():
                pieces.append(piece)
                size += len(piece)
                self._held.count += len(piece)
                if size > MAX_BODY:
                    raise OperationFailed(f"it is too large to buffer: limit is {MAX_BODY} bytes")
                if self._held.count > MAX_HELD:
                    raise OperationFailed(
                        f"too much is being buffered already: limit is {MAX_HELD} bytes"
                    )
        except OperationFailed as error:
            raise OperationFailed(texts.http_body(error)) from error.__cause__
        finally:
            # Release what this body held, however it ended.
            self._held.count -= size
            body.close()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class LocalBody:
    """The body of a streamed response; reading slowly slows the server down."""

    def __init__(self, exchange: Exchange, timer: asyncio.TimerHandle | None) -> None:
        self._exchange = exchange
        self._timer = timer

    async def read(self) -> bytes:
        """
        Return the next piece; empty at the end.

        Raises:
            OperationFailed: The rest could not be read, or not in time.
        """
        try:
            return await self._exchange.read()
        except ExchangeFailed as error:
            raise OperationFailed(texts.HTTP_DECODING) from error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """
        Iterate over the pieces as they arrive.

        Raises:
            OperationFailed: The rest could not be read, or not in time.
        """
        try:
            while piece := await self.read():
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading; further calls do nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._exchange.close()

    async def aclose(self) -> None:
        """Stop reading; see `HttpBody.aclose`."""
        self.close()


def _response(exchange: Exchange) -> HttpResponse:
    return HttpResponse(status=exchange.status, headers=_listed(exchange.headers), body_base64=b"")


def _listed(headers: Headers) -> list[HttpHeader]:
    return [
        HttpHeader(name=name, value=_text(value))
        for name, values in headers.items()
        for value in values
    ]


def _text(value: bytes) -> str:
    """Return a header value as text."""
    # Servers send UTF-8 today, and latin-1 in the past.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
