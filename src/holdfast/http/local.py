"""
HTTP calls from this machine: the local side of the seam [http.request.*].

Redirects are followed here and nothing else is done to a response: no cookies are
kept, nothing is decompressed, and a status that says "error" is an answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import Self

from msgspec.structs import replace

from holdfast.errors import OperationFailed, Refused
from holdfast.http.connect import Connector, system_errno
from holdfast.http.exchange import Exchange, ExchangeFailed, HttpConnection
from holdfast.http.outgoing import Headers, OutgoingRequest, prepare
from holdfast.http.pool import Pool
from holdfast.http.proxies import Proxies
from holdfast.protocol.http import HttpHeader, HttpRequestParams, HttpResponse

__all__ = ["MAX_BODY", "MAX_HELD", "LocalBody", "LocalHttpClient"]

MAX_BODY = 512 << 20
"""Bytes of a body that is not streamed, as of a file that is not read in blocks."""

MAX_HELD = 1 << 30
"""Bytes of all bodies that are being collected at one time."""

_MAX_REDIRECTS = 10

_TIMED_OUT = "http/request failed: route-aware request timed out"


class LocalHttpClient:
    """Makes HTTP calls. A context manager: connections are kept between calls, and end with it."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """
        Args:
            environ: Where headers find their variables, and where proxies and certificates
                are named.
        """
        self._environ = environ
        self._proxies = Proxies(environ)
        self._connector = Connector(environ)
        self._pool = Pool()
        self._held = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def request(self, params: HttpRequestParams) -> HttpResponse:
        """
        Make a call and read its whole body.

        Raises:
            InvalidParams: The request cannot be made as asked for.
            OperationFailed: No answer came, or not all of it, or too much.
        """
        response, body = await self.stream(params)
        return replace(response, body_base64=await self._collect(body))

    async def stream(self, params: HttpRequestParams) -> tuple[HttpResponse, LocalBody]:
        """
        Make a call and return with the headers; the caller reads the body, or closes it.

        The time limit of the call goes on for the body.

        Raises:
            InvalidParams: The request cannot be made as asked for.
            OperationFailed: No answer came.
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
        timer = loop.call_at(deadline, exchange.close)
        return _response(exchange), LocalBody(exchange, timer)

    async def aclose(self) -> None:
        """End the connections that are kept."""
        self._pool.close()
        await asyncio.sleep(0)  # the event loop lets go of their sockets in its next turn

    # -- inside

    async def _follow(self, outgoing: OutgoingRequest, params: HttpRequestParams) -> Exchange:
        """Send a request, and those it is redirected to; the headers of the last are here."""
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
                    raise OperationFailed("http/request failed: too many redirects")
            except OperationFailed:
                exchange.close()
                raise
            redirects += 1
            exchange.close()
            outgoing = following

    async def _send(self, outgoing: OutgoingRequest) -> Exchange:
        """
        Send one request and wait for the headers of its response.

        A connection that was kept may have been ended by the server just as it is
        used again. That is no failure of the request, which goes out once more on a
        new one, provided that nothing came back and that twice does no harm.
        """
        try:
            exchange, kept = await self._begin(outgoing, fresh=False)
            try:
                await self._head_of(exchange)
            except ExchangeFailed:
                if not (kept and exchange.untouched and outgoing.repeatable):
                    raise
                exchange, _ = await self._begin(outgoing, fresh=True)
                await self._head_of(exchange)
        except Refused:
            raise  # it may be an `OSError`, too
        except (OSError, ExchangeFailed) as error:
            if isinstance(error, TimeoutError) and not error.errno:
                raise  # ours, on its way out
            raise OperationFailed(
                f"http/request failed: error sending request for url ({outgoing.url.href})",
                errno=system_errno(error),
            ) from error
        return exchange

    async def _begin(self, outgoing: OutgoingRequest, *, fresh: bool) -> tuple[Exchange, bool]:
        """Send a request; also tells whether the connection had been used before."""
        url = outgoing.url
        proxy = self._proxies.find(url)
        forwarded = proxy is not None and url.scheme == "http"
        place = None if forwarded else url.origin
        opened = False

        async def connect() -> HttpConnection:
            nonlocal opened
            opened = True
            return await self._connector.open(url, proxy)

        connection = await self._pool.take((proxy, place), connect, fresh=fresh)
        exchange = connection.send(
            outgoing.encode(
                proxy_credentials=proxy.credentials if proxy and forwarded else None,
                absolute=forwarded,
            ),
            bodiless=outgoing.method in ("HEAD", "CONNECT"),
            last=outgoing.method == "CONNECT" or outgoing.wants_close,
        )
        return exchange, not opened

    async def _head_of(self, exchange: Exchange) -> None:
        try:
            await exchange.head()
        except BaseException:
            exchange.close()
            raise

    async def _collect(self, body: LocalBody) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            while piece := await body.read():
                pieces.append(piece)
                size += len(piece)
                self._held += len(piece)
                if size > MAX_BODY:
                    raise OperationFailed(f"it is too large to buffer: limit is {MAX_BODY} bytes")
                if self._held > MAX_HELD:
                    raise OperationFailed(
                        f"too much is being buffered already: limit is {MAX_HELD} bytes"
                    )
        except OperationFailed as error:
            raise OperationFailed(
                f"failed to read http/request response body: {error}"
            ) from error.__cause__
        finally:
            self._held -= size
            body.close()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class LocalBody:
    """The body of a streamed response. Reading it slowly makes the server slow."""

    def __init__(self, exchange: Exchange, timer: asyncio.TimerHandle | None) -> None:
        self._exchange = exchange
        self._timer = timer

    async def read(self) -> bytes:
        """
        The next piece; empty at the end.

        Raises:
            OperationFailed: The rest could not be read, or not in time.
        """
        try:
            return await self._exchange.read()
        except ExchangeFailed as error:
            raise OperationFailed("error decoding response body") from error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """
        The pieces, as they come.

        Raises:
            OperationFailed: The rest could not be read, or not in time.
        """
        try:
            while piece := await self.read():
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        """Read no more of it; harmless a second time."""
        if self._timer is not None:
            self._timer.cancel()
        self._exchange.close()

    async def aclose(self) -> None:
        """As `close`, for the seam."""
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
    """A header's value: UTF-8 is what is meant today, latin-1 what was meant once."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
