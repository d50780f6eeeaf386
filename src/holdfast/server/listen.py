"""Listeners of a server: URLs, sockets and responses to plain HTTP [serve.listen.*]."""

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.base.errors import HoldfastError, Overloaded
from holdfast.base.late_import import late_module
from holdfast.base.local_servers import Reachable, hide
from holdfast.server.operate.auth import ANONYMOUS, Check, Unauthorized
from holdfast.wire.transports.http_head import RequestHead, Response, upgrade_fault
from holdfast.wire.transports.transport import LOCAL, Credential, Receiver, Transport

# Imported late: WebSocket takes 90 ms, and a server on standard streams does not need it.
if TYPE_CHECKING:
    from holdfast.wire.transports import unix, websocket_listener
    from holdfast.wire.transports.accepting import PlainListener
    from holdfast.wire.transports.tls import ServerTls
    from holdfast.wire.transports.websocket_listener import Gate, Refused
else:
    # Each server needs only one of these, and WebSocket takes 90 ms.
    unix = late_module("holdfast.wire.transports.unix")
    websocket_listener = late_module("holdfast.wire.transports.websocket_listener")

__all__ = [
    "BadListenUrl",
    "ListenUrl",
    "Listening",
    "PlainPage",
    "listen",
    "make_gate",
    "meant_listen_url",
    "parse_listen_url",
]


class PlainPage(NamedTuple):
    """A plain HTTP page of a listener."""

    answer: Callable[[], Response]
    token: bool
    """True if it needs a token, like a connection."""


# For a server without a readiness check: ready as soon as it listens.
_ALWAYS_READY: Mapping[str, PlainPage] = {
    "/readyz": PlainPage(lambda: Response(HTTPStatus.OK), token=False)
}


class BadListenUrl(HoldfastError):
    """The URL is not an address that a server can listen on."""

    def __init__(self, message: str, *, url: str | None = None, errno: int | None = None) -> None:
        super().__init__(message, errno=errno)
        self.url = url
        """The refused value; None if it is the combination that is invalid."""


class ListenUrl(msgspec.Struct, frozen=True):
    """An address to listen on."""

    kind: str
    """`ws`, `http`, `stdio` or `unix`."""
    host: str = ""
    port: int = 0
    path: str = ""
    descriptor: int | None = None
    """A listening socket, inherited from the service manager."""

    @property
    def is_local(self) -> bool:
        """True if it can only be reached from this machine."""
        return not self.is_network or ipaddress.ip_address(self.host).is_loopback

    @property
    def is_network(self) -> bool:
        """True for a port, which every user and program on this machine can reach."""
        return self.kind in _NETWORK

    @property
    def url(self) -> str:
        """The address in the form of `--listen`."""
        if not self.is_network:
            return f"{self.kind}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}://{host}:{self.port}"


_NETWORK = ("ws", "http")

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<v4>[0-9.]+)):(?P<port>[0-9]{1,5})")


def parse_listen_url(url: str, *, scheme: str = "ws") -> ListenUrl:
    """
    Parse a `--listen` value.

    Args:
        url: The value.
        scheme: The scheme of a URL with an IP address: `ws`, or `http`.

    Raises:
        BadListenUrl: The value is invalid; the message is for the user.
    """
    if url in ("stdio", "stdio://"):
        return ListenUrl("stdio")
    if url.startswith("unix://") and len(url) > len("unix:///"):
        path = url.removeprefix("unix://")
        if not path.startswith("/"):
            raise BadListenUrl(
                f"invalid unix --listen URL `{url}`; expected `unix:///absolute/path`", url=url
            )
        return ListenUrl("unix", path=path)
    if not url.startswith(f"{scheme}://"):
        raise BadListenUrl(
            f"unsupported --listen URL `{url}`; expected `{scheme}://IP:PORT` or `stdio`", url=url
        )
    found = _ADDRESS.fullmatch(url.removeprefix(f"{scheme}://"))
    try:
        if found is None or int(found["port"]) > 0xFFFF:
            raise ValueError
        # The pattern only allows an IPv6 address in brackets.
        if found["v6"]:
            host = str(ipaddress.IPv6Address(found["v6"]))
        else:
            host = str(ipaddress.IPv4Address(found["v4"]))
    except ValueError:
        kind = "websocket" if scheme == "ws" else scheme
        raise BadListenUrl(
            f"invalid {kind} --listen URL `{url}`; expected `{scheme}://IP:PORT`", url=url
        ) from None
    return ListenUrl(scheme, host, int(found["port"]))


def meant_listen_url(url: str) -> str:
    """Return a hint for a value refused by `parse_listen_url`, or an empty string."""
    scheme, separator, rest = url.partition("://")
    if scheme == "wss" and separator:
        return " (use `ws://` with `--tls-cert` and `--tls-key`)"
    if url.startswith("/"):
        return f" (did you mean `unix://{url}`?)"
    host, _, port = (rest if separator else url).rstrip("/").rpartition(":")
    if not port.isdecimal() or (separator and scheme not in ("ws", "http")):
        return ""
    meant = f"ws://{'127.0.0.1' if host in ('', 'localhost') else host}:{port}"
    try:
        parse_listen_url(meant)
    except BadListenUrl:
        return ""
    return f" (did you mean `{meant}`?)"


class Listening:
    """A listener, its socket file, and its entry in the list of hidden paths."""

    def __init__(
        self,
        url: str,
        server: "PlainListener",
        hidden: Reachable,
        *,
        owns_files: bool = True,
    ) -> None:
        """
        Args:
            url: Its URL.
            server: Accepts the connections.
            hidden: Sockets and URLs that sandboxed commands must not reach.
            owns_files: True to remove its socket file at the end; an inherited one stays.
        """
        self.url = url
        """Its URL, with the port that was bound."""
        self._server = server
        self._stack = ExitStack()
        self._stack.callback(server.close)
        # A sandboxed command that could connect could run commands outside its sandbox.
        self._stack.enter_context(hide(hidden))
        for path in hidden.sockets if owns_files else ():
            self._stack.callback(_remove_socket, path, os.lstat(path))

    def close(self) -> None:
        """Stop accepting connections, and remove the socket file, if any."""
        self._stack.close()


def _remove_socket(path: str, made: os.stat_result) -> None:
    """Remove a socket file, unless another server has replaced it."""
    with suppress(OSError):
        if os.path.samestat(os.lstat(path), made):
            os.unlink(path)


async def listen(
    where: ListenUrl,
    accept: Callable[[Transport], Receiver],
    check: Check | None,
    *,
    unix_frames: bool = False,
    tls: "ServerTls | None" = None,
    admit: Callable[[str], None] | None = None,
    refused: "Refused | None" = None,
    pages: Mapping[str, PlainPage] = _ALWAYS_READY,
) -> Listening:
    """
    Accept connections at an address other than `stdio`.

    Args:
        where: The address; port 0 stands for any free one.
        accept: Called with each connection; returns the receiver of its messages.
        check: Checks tokens; by default any client that reaches the address may connect.
        unix_frames: Use WebSocket on unix sockets too, instead of lines.
        tls: Certificate of a listener that only accepts `wss`.
        admit: Called with the principal; raises `Overloaded` if it is at its limit.
        refused: Called for each refused request.
        pages: Plain HTTP pages, by path.

    Raises:
        OSError: The address cannot be bound.
    """
    if where.kind == "unix":
        return await _listen_unix(where, accept, unix_frames=unix_frames, pages=pages)
    listener = await websocket_listener.listen_websocket(
        where.host,
        where.port,
        gate=make_gate(check, admit=admit, pages=pages),
        accept=accept,
        tls=None if tls is None else tls.context,
        listening=_inherited(where),
        refused=refused,
    )
    # The kernel has chosen it if the port was 0.
    port = listener.sockets[0].getsockname()[1]
    host = f"[{where.host}]" if ":" in where.host else where.host
    url = f"{'ws' if tls is None else 'wss'}://{host}:{port}"
    return Listening(url, listener, Reachable(open_urls=(url,) if check is None else ()))


async def _listen_unix(
    where: ListenUrl,
    accept: Callable[[Transport], Receiver],
    *,
    unix_frames: bool,
    pages: Mapping[str, PlainPage],
) -> Listening:
    if unix_frames:
        # Without a token: the mode of the socket file decides who may connect, as with lines.
        gate = make_gate(_only_own_user, pages=pages)
        server = await websocket_listener.listen_websocket_unix(
            where.path, gate=gate, accept=accept, listening=_inherited(where)
        )
    else:
        server = await unix.listen_unix(where.path, accept, listening=_inherited(where))
    return Listening(
        f"unix://{where.path}",
        server,
        Reachable(sockets=(where.path,)),
        owns_files=where.descriptor is None,
    )


def _inherited(where: ListenUrl) -> socket.socket | None:
    return None if where.descriptor is None else socket.socket(fileno=where.descriptor)


def _only_own_user(header: str | None) -> Credential:
    return LOCAL


def make_gate(
    check: Check | None,
    *,
    admit: Callable[[str], None] | None = None,
    pages: Mapping[str, PlainPage] = _ALWAYS_READY,
) -> "Gate":
    """
    Return the function that responds to plain HTTP and decides which clients may connect.

    A request with an `Origin` comes from a browser and is refused on every path: a web page must
    not reach a server that runs commands. Then the upgrade headers are checked, then the token.

    Args:
        check: Returns the credential of a client; by default all clients may connect.
        admit: As for `listen`.
        pages: As for `listen`.
    """

    def admitted(head: RequestHead) -> Response | Credential:
        if check is None:
            return ANONYMOUS
        try:
            return check(head.get("authorization"))
        except Unauthorized as refusal:
            return Response(HTTPStatus.UNAUTHORIZED, str(refusal).encode())

    def gate(head: RequestHead) -> Response | Credential:
        if head.get("origin") is not None:
            return Response(HTTPStatus.FORBIDDEN)
        page = pages.get(head.path)
        if page is not None:
            if head.method not in ("GET", "HEAD"):
                return Response(HTTPStatus.METHOD_NOT_ALLOWED, headers=(("allow", "GET,HEAD"),))
            reader = admitted(head) if page.token else None
            return reader if isinstance(reader, Response) else page.answer()
        if head.path != "/":
            return Response(HTTPStatus.NOT_FOUND)
        fault = upgrade_fault(head)
        if fault is not None:
            return fault
        found = admitted(head)
        # After the token check: only a known principal may learn that it is at its limit.
        if not isinstance(found, Response) and admit is not None:
            try:
                admit(found.principal)
            except Overloaded as refusal:
                return Response(HTTPStatus.TOO_MANY_REQUESTS, str(refusal).encode())
        return found

    return gate
