"""Connections to a server: direct or through a proxy, plain or with TLS."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from aiohappyeyeballs import AddrInfoType, start_connection

from holdfast.backends import RunInThread
from holdfast.base.dialect import names, texts
from holdfast.base.errors import OperationFailed
from holdfast.base.system_text import system_text
from holdfast.engine.http.exchange import HttpConnection
from holdfast.engine.http.proxies import Proxy
from holdfast.engine.http.urls import Url

__all__ = ["Connector", "system_errno"]

# Seconds before the next address is tried in parallel (RFC 8305).
_STAGGER = 0.25

# Bytes of a proxy's answer to CONNECT; more cannot be a valid one.
_MAX_ANSWER = 64 << 10

# CA bundles of common distributions, for a Python whose own paths do not exist here.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


# Variables that name a file with further CA certificates; the first one that is set is used.
_OWN_CERTIFICATES = (names.CERTIFICATE_VARIABLE, "SSL_CERT_FILE")


class Connector:
    """Opener of connections."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` may name CA certificates."""
        self._environ = environ
        self._tls: ssl.SSLContext | None = None

    async def open(
        self, url: Url, proxy: Proxy | None, run_look_up: RunInThread | None = None
    ) -> HttpConnection:
        """
        Open a connection for requests to a URL.

        Args:
            url: The URL.
            proxy: The proxy to use, if any.
            run_look_up: Runs the look-up of a name; the threads of the event loop unless given.

        Raises:
            OSError: The server cannot be reached; `ssl.SSLError` if it cannot be trusted.
            OperationFailed: The CA certificates cannot be read.
        """
        if proxy is None:
            return await self._direct(url, run_look_up)
        if not proxy.url.is_http:
            raise OSError(f"a proxy of scheme {proxy.url.scheme} is not supported")
        if url.scheme == "http":
            return await self._direct(proxy.url, run_look_up)
        return await self._tunnel(url, proxy, run_look_up)

    async def _direct(self, url: Url, run_look_up: RunInThread | None) -> HttpConnection:
        tls = await self._context() if url.scheme == "https" else None
        sock = await _connected(url.host, url.port, run_look_up)
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                HttpConnection, sock=sock, ssl=tls, server_hostname=url.host if tls else None
            )
        except BaseException:
            sock.close()
            raise
        return connection

    async def _tunnel(
        self, url: Url, proxy: Proxy, run_look_up: RunInThread | None
    ) -> HttpConnection:
        loop = asyncio.get_running_loop()
        tls = await self._context()
        sock = await _connected(proxy.url.host, proxy.url.port, run_look_up)
        outer = tls if proxy.url.scheme == "https" else None
        answer = _TunnelAnswer(loop)
        try:
            transport, _ = await loop.create_connection(
                lambda: answer,
                sock=sock,
                ssl=outer,
                server_hostname=proxy.url.host if outer else None,
            )
        except BaseException:
            # asyncio would report the end of the connection as an error that no caller retrieves.
            answer.accepted.cancel()
            sock.close()
            raise
        try:
            transport.write(_connect_request(url, proxy))
            await answer.accepted
            inner = HttpConnection()
            upgraded = await loop.start_tls(transport, inner, tls, server_hostname=url.host)
        except BaseException:
            transport.abort()
            raise
        # `start_tls` raises instead of returning None.
        assert upgraded is not None
        # asyncio does not call `connection_made` of the protocol it moves a transport to.
        inner.connection_made(upgraded)
        return inner

    async def _context(self) -> ssl.SSLContext:
        """Return the TLS context; loaded once, in a thread, since reading certificates is slow."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(_trust, self._environ)
        return self._tls


def _trust(environ: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # HTTP/2 is not supported; without this a server might choose it.
    context.set_alpn_protocols(["http/1.1"])
    paths = ssl.get_default_verify_paths()
    if not any(map(os.path.exists, (paths.openssl_cafile, paths.openssl_capath))):
        for bundle in filter(os.path.exists, _BUNDLES):
            context.load_verify_locations(bundle)
            break
    for name in _OWN_CERTIFICATES:
        if path := environ.get(name):
            _trust_also(context, name, path)
            break
    return context


def _trust_also(context: ssl.SSLContext, name: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        why = "it holds none" if isinstance(error, ssl.SSLError) else system_text(error)
        raise OperationFailed(
            texts.http_certificates(path, name, why, " or ".join(_OWN_CERTIFICATES)),
            errno=system_errno(error),
            path=path,
        ) from error


def system_errno(error: BaseException) -> int | None:
    """Return the errno of the kernel, or None."""
    # Errors of name resolution and TLS are OSErrors whose numbers belong to other tables.
    if not isinstance(error, OSError) or isinstance(error, socket.gaierror | ssl.SSLError):
        return None
    return error.errno or None


def _connect_request(url: Url, proxy: Proxy) -> bytes:
    host = f"[{url.host}]" if ":" in url.host else url.host
    lines = [f"CONNECT {host}:{url.port} HTTP/1.1", f"Host: {host}:{url.port}"]
    if proxy.credentials is not None:
        lines.append(f"Proxy-Authorization: {proxy.credentials}")
    return "\r\n".join([*lines, "", ""]).encode()


class _TunnelAnswer(asyncio.Protocol):
    """Protocol that waits for a proxy's answer to CONNECT."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.accepted: asyncio.Future[None] = loop.create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        # Bytes after the head would be lost in the switch to TLS; an honest proxy sends none.
        if end and head[:12] in (b"HTTP/1.1 200", b"HTTP/1.0 200") and not rest:
            self._settle(None)
        elif end or len(head) > _MAX_ANSWER:
            self._settle(OSError("the proxy refused"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(ConnectionResetError("the proxy closed the connection"))

    def _settle(self, error: OSError | None) -> None:
        if self.accepted.done():
            return
        if error is None:
            self.accepted.set_result(None)
        else:
            self.accepted.set_exception(error)


async def _connected(host: str, port: int, run_look_up: RunInThread | None = None) -> socket.socket:
    """Return a socket to the first address that answers (RFC 8305)."""
    # Addresses of both families are tried in turn; a slow one is overtaken by the next, so that a
    # broken route of one family costs a fraction of a second.
    return await start_connection(
        await _resolve(host, port, run_look_up),
        happy_eyeballs_delay=_STAGGER,
        socket_factory=_make_socket,
    )


def _make_socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    # A request is written in one piece; Nagle's algorithm would only delay it.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


# The result type of `socket.getaddrinfo`.
NamesFound: TypeAlias = Sequence[AddrInfoType]


def _caught(look_up: Callable[[], NamesFound]) -> tuple[NamesFound, Exception | None]:
    """Return an exception instead of raising it: the file threads reword errors."""
    try:
        return look_up(), None
    except Exception as error:  # noqa: BLE001 - raised again where it is awaited
        return [], error


async def _resolve(host: str, port: int, run_look_up: RunInThread | None) -> NamesFound:
    """Return the addresses of a host."""
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        is_v4 = literal.version == 4
        family = socket.AF_INET if is_v4 else socket.AF_INET6
        where = (host, port) if is_v4 else (host, port, 0, 0)
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where)]
    try:
        if run_look_up is None:
            loop = asyncio.get_running_loop()
            return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found, error = await run_look_up(partial(_caught, look_up))
        if error is not None:
            raise error
    except UnicodeError as error:
        # An empty or overlong label.
        raise OSError(f"no such host: {host}") from error
    return found
