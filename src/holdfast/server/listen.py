"""Where a server listens, and what it answers to plain HTTP (exec-server spec 1)."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import HoldfastError
from holdfast.server.auth import Check
from holdfast.transports.base import Receiver, Transport
from holdfast.transports.http_head import RequestHead, Response, upgrade_fault

if TYPE_CHECKING:  # a server on its standard streams needs no WebSocket
    from holdfast.transports.websocket import Gate

__all__ = ["BadListenUrl", "ListenUrl", "listen", "make_gate", "parse_listen_url"]


class BadListenUrl(HoldfastError):
    """Not a place where a server can listen."""


class ListenUrl(msgspec.Struct, frozen=True):
    """A place to listen."""

    kind: str
    """`ws`, `http`, `stdio` or `unix`."""
    host: str = ""
    port: int = 0
    path: str = ""
    descriptor: int | None = None
    """A socket that is bound and listens already, handed over by whoever started this process."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.kind not in _NETWORK or ipaddress.ip_address(self.host).is_loopback


_NETWORK = ("ws", "http")

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<v4>[0-9.]+)):(?P<port>[0-9]{1,5})")


def parse_listen_url(url: str, *, scheme: str = "ws") -> ListenUrl:
    """
    Read a `--listen` value.

    Args:
        url: What was given.
        scheme: That of a URL with an address: `ws`, or `http`.

    Raises:
        BadListenUrl: With the text for whoever started the server.
    """
    if url in ("stdio", "stdio://"):
        return ListenUrl("stdio")
    if url.startswith("unix://") and len(url) > len("unix:///"):
        path = url.removeprefix("unix://")
        if not path.startswith("/"):
            raise BadListenUrl(
                f"invalid unix --listen URL `{url}`; expected `unix:///absolute/path`"
            )
        return ListenUrl("unix", path=path)
    if not url.startswith(f"{scheme}://"):
        raise BadListenUrl(
            f"unsupported --listen URL `{url}`; expected `{scheme}://IP:PORT` or `stdio`"
        )
    found = _ADDRESS.fullmatch(url.removeprefix(f"{scheme}://"))
    try:
        if found is None or int(found["port"]) > 0xFFFF:
            raise ValueError
        # Only an IPv6 address stands in brackets.
        if found["v6"]:
            host = str(ipaddress.IPv6Address(found["v6"]))
        else:
            host = str(ipaddress.IPv4Address(found["v4"]))
    except ValueError:
        kind = "websocket" if scheme == "ws" else scheme
        raise BadListenUrl(
            f"invalid {kind} --listen URL `{url}`; expected `{scheme}://IP:PORT`"
        ) from None
    return ListenUrl(scheme, host, int(found["port"]))


async def listen(
    where: ListenUrl,
    accept: Callable[[Transport], Receiver],
    check: Check | None,
    *,
    unix_frames: bool = False,
) -> tuple[asyncio.Server, str]:
    """
    Accept connections at a place that is not `stdio`.

    Args:
        where: The place; port 0 stands for any that is free.
        accept: Called with each connection, returns who receives its messages.
        check: Who may connect; everybody who can reach it unless given.
        unix_frames: Speak WebSocket on a unix socket, too, instead of lines.

    Returns:
        The listener, and its URL with the port that was really taken.

    Raises:
        OSError: The address cannot be had.
    """
    if where.kind == "unix":
        if unix_frames:
            from holdfast.transports.websocket import listen_websocket_unix

            # The mode of the file says who may connect, as without frames.
            gate = make_gate(None)
            server = await listen_websocket_unix(
                where.path, gate=gate, accept=accept, listening=_handed(where)
            )
        else:
            from holdfast.transports.unix import listen_unix

            server = await listen_unix(where.path, accept, listening=_handed(where))
        return server, f"unix://{where.path}"
    from holdfast.transports.websocket import listen_websocket

    server = await listen_websocket(
        where.host, where.port, gate=make_gate(check), accept=accept, listening=_handed(where)
    )
    port = server.sockets[0].getsockname()[1]
    host = f"[{where.host}]" if ":" in where.host else where.host
    return server, f"ws://{host}:{port}"


def _handed(where: ListenUrl) -> socket.socket | None:
    return None if where.descriptor is None else socket.socket(fileno=where.descriptor)


def make_gate(check: Check | None) -> "Gate":
    """
    What a listener answers to plain HTTP, and whom it lets in.

    A browser sends an `Origin` and is refused on every path: no page may reach a
    server that runs commands. Then come the upgrade headers, then the token.
    """

    def gate(head: RequestHead) -> Response | None:
        if head.get("origin") is not None:
            return Response(HTTPStatus.FORBIDDEN)
        if head.path == "/readyz":
            if head.method in ("GET", "HEAD"):
                return Response(HTTPStatus.OK)
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, headers=(("allow", "GET,HEAD"),))
        if head.path != "/":
            return Response(HTTPStatus.NOT_FOUND)
        fault = upgrade_fault(head)
        if fault is not None:
            return fault
        refusal = None if check is None else check(head.get("authorization"))
        if refusal is not None:
            return Response(HTTPStatus.UNAUTHORIZED, refusal.encode())
        return None

    return gate
