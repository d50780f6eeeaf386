"""
Streamable HTTP: who may come in, and whose sessions they see.

A page in a browser must not reach a server that runs commands. So a request with an `Origin`
is refused unless that was allowed. A request whose `Host` is a foreign name is refused, too: a
name can be made to lead to this machine, an address cannot.
"""

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.mcp_server.attendance import Attendance
from holdfast.mcp_server.http_protocol import BoundedHeads
from holdfast.server.auth import Check, Unauthorized
from holdfast.server.listen import ListenUrl

__all__ = ["PATH", "PRINCIPAL", "HttpAccess", "serving"]

logger = logging.getLogger(__name__)

PATH: Final = "/mcp"
"""Path of the MCP endpoint."""

PRINCIPAL: Final = "holdfast.principal"
"""The member of a request's scope that has the key of its principal."""

# The principal of all requests of 2026-07-28 without a token: they have no session id.
ANONYMOUS: Final = "anonymous"

# The beginning of the key of a principal that is known by its MCP session.
_SESSION: Final = "session:"

# Bytes of a request.
_LARGEST: Final = 16 << 20

# MCP sessions at once.
_SESSIONS: Final = 1_024

# Connections at once; one more is answered with 503.
_CONNECTIONS: Final = 4_096

# Seconds that a client has to send the body of a request.
_BODY_TIME: Final = 60.0

# Seconds that streams have to end with the server.
_END: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """Names that requests may carry; a token decides about everything else."""

    hosts: Collection[str] = ()
    """Names by which the server may be asked for, besides `localhost` and addresses."""
    origins: Collection[str] = ()
    """Web pages that may come in, such as `https://app.example.com`."""


class _Gate:
    """Lets requests in that may come in, and says whose they are."""

    def __init__(
        self,
        manager: StreamableHTTPSessionManager,
        access: HttpAccess,
        check: Check | None,
        attendance: Attendance,
    ) -> None:
        self._manager = manager
        self._check = check
        self._hosts = {host.lower() for host in access.hosts} | {"localhost"}
        self._origins = _normal(access.origins)
        self._attendance = attendance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            # Of several the first counts, as it does for the SDK.
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        refusal = self._refusal(scope["path"], headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        key = self._key(headers)
        scope[PRINCIPAL] = key
        if self._check is not None:
            # The check lets no request pass without a principal.
            assert key is not None
            # By this the SDK keeps an MCP session to the token that opened it.
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=key, scopes=[]))
        with contextlib.nullcontext() if key is None else self._attendance.request(key):
            try:
                await self._manager.handle_request(scope, _in_time(receive), send)
            except _BodyTooSlow:
                slow = PlainTextResponse(f"the request took longer than {_BODY_TIME:g} s", 408)
                await slow(scope, receive, send)
            if scope["method"] == "DELETE" and key is not None and key.startswith(_SESSION):
                # The client ended its MCP session, without which nobody reaches its commands.
                self._attendance.gone(key)

    def _refusal(self, path: str, headers: dict[str, str]) -> PlainTextResponse | None:
        """Return the answer to a request that may not come in."""
        if path != PATH:
            return PlainTextResponse(f"not found: the server is at {PATH}", 404)
        host = headers.get("host", "")
        if not self._knows(host):
            return PlainTextResponse(
                f"Host {host!r} is not ours: allow it with --allowed-host", 421
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower().rstrip("/") not in self._origins:
            return PlainTextResponse(
                f"Origin {origin!r} is not allowed: allow it with --allowed-origin", 403
            )
        if self._check is not None and self._token(headers) is None:
            return PlainTextResponse(
                "a bearer token is missing, or it is not one of the server's",
                401,
                {"WWW-Authenticate": "Bearer"},
            )
        return None

    def _knows(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name.lower() in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True

    def _token(self, headers: dict[str, str]) -> str | None:
        """Return what stands for the token of a request, if it is one of ours."""
        assert self._check is not None  # or nobody asks for it
        header = headers.get("authorization")
        try:
            self._check(header)
        except Unauthorized:
            return None
        assert header is not None  # it was let in
        # Not its name: each token is a principal of its own.
        token = header.partition(" ")[2].strip()
        return hashlib.sha256(token.encode("latin-1")).hexdigest()

    def _key(self, headers: dict[str, str]) -> str | None:
        """Return the key of a request's principal; None for the first of an MCP session."""
        if self._check is not None:
            return f"token:{self._token(headers)}"
        version = headers.get("mcp-protocol-version")
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return ANONYMOUS
        # It is random, and told to nobody else.
        session = headers.get("mcp-session-id")
        return None if session is None else f"{_SESSION}{session}"


def _normal(origins: Collection[str]) -> set[str]:
    """Return origins as browsers send them."""
    return {origin.lower().rstrip("/") for origin in origins}


def _with_browsers(gate: ASGIApp, access: HttpAccess) -> ASGIApp:
    """Answer what browsers ask before they let an allowed page send its requests (CORS)."""
    if not access.origins:
        return gate
    return CORSMiddleware(
        gate,
        allow_origins=sorted(_normal(access.origins)),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["mcp-session-id"],
    )


class _BodyTooSlow(Exception):
    """The body of a request did not come in time."""


def _in_time(receive: Receive) -> Receive:
    """Bound the time in which the body of a request has to come; its end may take any time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _BODY_TIME
    complete = False

    async def receive_in_time() -> Message:
        nonlocal complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise _BodyTooSlow from None
        complete = not message.get("more_body", False)
        return message

    return receive_in_time


class _Uvicorn(uvicorn.Server):
    """A server that leaves signals to the process it is in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(
    server: Server[Any],
    where: ListenUrl,
    access: HttpAccess,
    check: Check | None,
    *,
    keep: float,
    attendance: Attendance,
) -> AsyncIterator[str]:
    """
    Serve HTTP in the block, and give its URL.

    Args:
        server: What to serve.
        where: The address; port 0 stands for any that is free.
        access: The names that requests may carry.
        check: Says whose token it is, or that it is nobody's; None if nobody needs one.
        keep: Seconds that an MCP session without requests is kept.
        attendance: Counts the requests that have a principal.

    Raises:
        OSError: The address cannot be had.
    """
    manager = StreamableHTTPSessionManager(
        server,
        max_request_body_size=_LARGEST,
        max_sessions=_SESSIONS,
        session_idle_timeout=keep,
    )
    config = uvicorn.Config(
        _with_browsers(_Gate(manager, access, check, attendance), access),
        http=BoundedHeads,
        ws="none",
        lifespan="off",
        limit_concurrency=_CONNECTIONS,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_END,
    )
    with _listening(where) as listener:
        http = _Uvicorn(config)

        async def serve() -> None:
            async with manager.run():
                await http.serve(sockets=[listener])

        task = asyncio.get_running_loop().create_task(serve())
        try:
            host = f"[{where.host}]" if ":" in where.host else where.host
            yield f"http://{host}:{listener.getsockname()[1]}{PATH}"
        finally:
            http.should_exit = True
            await asyncio.wait([task], timeout=_END + 2)
            task.cancel()
            await asyncio.wait([task])


@contextlib.contextmanager
def _listening(where: ListenUrl) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((where.host, where.port))
        listener.listen(128)
        listener.setblocking(False)
        yield listener
