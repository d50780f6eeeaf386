"""
Streamable HTTP: which requests are admitted, and which sessions they can use.

A page in a browser must not reach a server that runs commands. So a request with an `Origin` is
refused unless that is allowed. A request with an unknown name as `Host` is refused too: an attacker
can point a name, but not an address, to this machine.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.base.errors import Overloaded
from holdfast.front.mcp.http_body import LARGEST, Bodies, BodyRefused
from holdfast.front.mcp.http_protocol import LET_IN, BoundedConnection
from holdfast.front.mcp.http_sessions import SESSIONS, SESSIONS_OF_ONE, HttpSessions
from holdfast.front.mcp.running_requests import Attendance, Revoked
from holdfast.server.listen import ListenUrl
from holdfast.server.operate.auth import Check, Unauthorized, log_revoked
from holdfast.wire.log_event import LogEvent, Sampled
from holdfast.wire.transports.accepting import Newcomers, PlainListener
from holdfast.wire.transports.transport import Credential

__all__ = ["PATH", "PRINCIPAL", "HttpAccess", "Serving", "serving"]

logger = logging.getLogger(__name__)

PATH: Final = "/mcp"
"""Path of the MCP endpoint."""

PRINCIPAL: Final = "holdfast.principal"
"""Member of a request's scope with the key of its principal."""

# Principal of all requests of 2026-07-28 without a token, which have no session id.
ANONYMOUS: Final = "anonymous"

# Prefix of the key of a principal that is identified by its MCP session.
_SESSION: Final = "session:"

_SESSION_HEADER: Final = "mcp-session-id"
_LAST_EVENT_HEADER: Final = b"last-event-id"

# Maximum connections; further ones get 503.
_CONNECTIONS: Final = 4_096

# Maximum connections waiting to be accepted.
_BACKLOG: Final = 1_024

# Seconds for streams to end with the server.
_END: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """Allowed hosts and origins of requests; tokens decide everything else."""

    hosts: Collection[str] = ()
    """Allowed host names, in addition to `localhost` and IP addresses."""
    origins: Collection[str] = ()
    """Web pages that may connect, such as `https://app.example.com`."""


class _Answer:
    """Forwards the response to a request, and notes what was sent."""

    def __init__(self, send: Send) -> None:
        self.status: int | None = None
        """Status, once sent."""
        self.session: str | None = None
        """MCP session named by the response."""
        self._send = send
        self._complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message.get("headers", ()):
                if name.lower() == _SESSION_HEADER.encode():
                    self.session = value.decode("latin-1")
        elif message["type"] == "http.response.body":
            self._complete = not message.get("more_body", False)
        await self._send(message)

    async def cut(self) -> None:
        """End a response that has begun."""
        if not self._complete:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})


class _Gate:
    """Admits requests and determines their principals."""

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
        self._sessions = HttpSessions(
            self._end_session, is_used=lambda one: attendance.has_commands(f"{_SESSION}{one}")
        )
        self._bodies = Bodies()
        self._logged_refusals = Sampled()
        # By key of the principal.
        self._credentials: dict[str, Credential] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            # The first of several applies, as in the SDK.
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        answer = _Answer(send)
        credential: Credential | None = None
        refusal = self._refusal(scope["path"], headers)
        if refusal is None and self._check is not None:
            try:
                credential = self._check(headers.get("authorization"))
            except Unauthorized:
                refusal = _unauthorized()
        if refusal is not None:
            skipped = self._logged_refusals.skipped()
            if skipped is not None:
                address = ":".join(map(str, scope.get("client") or ()))
                status = refusal.status_code
                more = skipped or None
                logger.info(
                    LogEvent("request refused", status=status, address=address, skipped=more)
                )
            # A refused client must not occupy a connection.
            refusal.headers["Connection"] = "close"
            await refusal(scope, receive, send)
            return
        key = self._key(credential, headers)
        scope[PRINCIPAL] = key
        let_in = scope["state"][LET_IN]
        # Events have no ids here, and the SDK does not respond to a client that names one.
        scope["headers"] = [each for each in scope["headers"] if each[0] != _LAST_EVENT_HEADER]
        if credential is not None:
            # Only a request without a token can be without a principal.
            assert key is not None
            self._credentials[key] = credential
            # Binds an MCP session of the SDK to the token that opened it.
            scope["user"] = _user(key)
            let_in()
        try:
            async with contextlib.nullcontext() if key is None else self._attendance.request(key):
                # Without a token, a client is only admitted once it has sent its body.
                with self._bodies.reading(
                    self._owner(key), receive, headers.get("content-length"), let_in
                ) as receive_body:
                    await self._serve(scope, receive_body, answer, headers)
        except BodyRefused as error:
            await PlainTextResponse(str(error), error.status)(scope, receive, send)
        except Overloaded as error:
            logger.info(LogEvent("session refused", status=429, reason=str(error)))
            await PlainTextResponse(str(error), 429)(scope, receive, send)
        except Revoked:
            if answer.status is None:
                await _unauthorized()(scope, receive, send)
            else:
                await answer.cut()

    async def _serve(
        self, scope: Scope, receive: Receive, answer: _Answer, headers: dict[str, str]
    ) -> None:
        """
        Let the SDK respond to an admitted request.

        Raises:
            Overloaded: There are too many MCP sessions.
        """
        owner = self._owner(scope[PRINCIPAL])
        limit = SESSIONS if self._check is None else SESSIONS_OF_ONE
        session = headers.get(_SESSION_HEADER)
        if _is_modern(headers):
            # Without an MCP session, requests are independent.
            await self._manager.handle_request(scope, receive, answer.send)
        elif session is None:
            async with self._sessions.opening(owner, limit=limit):
                await self._manager.handle_request(scope, receive, answer.send)
                if answer.session is not None and answer.status == HTTPStatus.OK:
                    self._sessions.opened(answer.session, owner)
        else:
            with self._sessions.request(session, owner, stream=scope["method"] == "GET"):
                await self._manager.handle_request(scope, receive, answer.send)
            if scope["method"] == "DELETE" and answer.status == HTTPStatus.OK:
                self._sessions.closed(session)
                self._forget(session)

    async def _end_session(self, session: str, owner: str) -> None:
        """End an MCP session, as if its client had requested it."""
        logger.info(LogEvent("MCP session ended", session=session[:8], reason="room for another"))
        scope: Scope = {
            "type": "http",
            "method": "DELETE",
            "path": PATH,
            "query_string": b"",
            "headers": [(_SESSION_HEADER.encode(), session.encode())],
        }
        if owner != ANONYMOUS:
            scope["user"] = _user(owner)
        await self._manager.handle_request(scope, _nothing, _Answer(_drop).send)
        self._forget(session)

    def _forget(self, session: str) -> None:
        """End the commands of an MCP session without a token, which are now unreachable."""
        if self._check is None:
            self._attendance.gone(f"{_SESSION}{session}")

    async def revoke(self, admits: Callable[[Credential], bool]) -> None:
        """End the requests, commands and MCP sessions of clients that are no longer admitted."""
        gone = {key: one for key, one in self._credentials.items() if not admits(one)}
        # All before the first await, so that none of them can start another command.
        requests = {key: self._attendance.revoke(key) for key in gone}
        for key, credential in gone.items():
            del self._credentials[key]
            ended = await self._sessions.end_all_of(key)
            log_revoked(credential, requests=requests[key], sessions=ended)

    def _refusal(self, path: str, headers: dict[str, str]) -> PlainTextResponse | None:
        """Return the response to a refused request, or None."""
        if path != PATH:
            return PlainTextResponse(f"not found: the server is at {PATH}", 404)
        host = headers.get("host", "")
        if not self._knows(host):
            return PlainTextResponse(
                f"Host {host!r} is not allowed: allow it with --allowed-host", 421
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower().rstrip("/") not in self._origins:
            return PlainTextResponse(
                f"Origin {origin!r} is not allowed: allow it with --allowed-origin", 403
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

    def _key(self, credential: Credential | None, headers: dict[str, str]) -> str | None:
        """Return the key of a request's principal; None for the first request of an MCP session."""
        if credential is not None:
            # Not only the name: each token is a separate principal.
            return f"token:{credential.principal}:{(credential.secret or b'').hex()}"
        if _is_modern(headers):
            return ANONYMOUS
        # It is random, and only known to the client.
        session = headers.get(_SESSION_HEADER)
        return None if session is None else f"{_SESSION}{session}"

    def _owner(self, key: str | None) -> str:
        """Return the owner whose limits apply: a token, or one name for all without one."""
        if self._check is None:
            return ANONYMOUS
        # Only a request without a token can be without a principal.
        assert key is not None
        return key


def _is_modern(headers: dict[str, str]) -> bool:
    """Return True for a request of 2026-07-28, which has no MCP sessions."""
    version = headers.get("mcp-protocol-version")
    return version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS


def _unauthorized() -> PlainTextResponse:
    return PlainTextResponse(
        "the bearer token is missing or invalid",
        401,
        {"WWW-Authenticate": "Bearer"},
    )


def _user(key: str) -> AuthenticatedUser:
    """Return the owner of MCP sessions in the form of the SDK."""
    return AuthenticatedUser(AccessToken(token="", client_id=key, scopes=[]))


async def _nothing() -> Message:
    """Receive an empty body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def _drop(message: Message) -> None:
    """Discard a response."""


def _normal(origins: Collection[str]) -> set[str]:
    """Return origins in the form that browsers send."""
    return {origin.lower().rstrip("/") for origin in origins}


def _with_browsers(gate: ASGIApp, access: HttpAccess) -> ASGIApp:
    """Respond to CORS requests of browsers for allowed pages."""
    if not access.origins:
        return gate
    return CORSMiddleware(
        gate,
        allow_origins=sorted(_normal(access.origins)),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["mcp-session-id"],
    )


class _Uvicorn(uvicorn.Server):
    """A server that leaves signals to its process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Serving(NamedTuple):
    """A server listening on HTTP."""

    url: str
    revoke: Callable[[Callable[[Credential], bool]], Coroutine[object, object, None]]
    """Ends the clients for which a function returns False."""


@asynccontextmanager
async def serving(
    server: Server[Any],
    where: ListenUrl,
    access: HttpAccess,
    check: Check | None,
    *,
    keep: float,
    attendance: Attendance,
) -> AsyncIterator[Serving]:
    """
    Serve HTTP during the block.

    Args:
        server: The server of the SDK.
        where: The address; port 0 for any free one.
        access: Allowed hosts and origins.
        check: Checks tokens; None if clients need none.
        keep: Seconds to keep an MCP session without requests.
        attendance: Counts the requests of principals.

    Raises:
        OSError: The address cannot be bound.
    """
    manager = StreamableHTTPSessionManager(
        server,
        # `Bodies` bounds requests, and `HttpSessions` bounds sessions.
        max_request_body_size=LARGEST + 1,
        max_sessions=None,
        session_idle_timeout=keep,
    )
    gate = _Gate(manager, access, check, attendance)
    config = uvicorn.Config(
        _with_browsers(gate, access),
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        limit_concurrency=_CONNECTIONS,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_END,
    )
    http = _Uvicorn(config)
    newcomers = Newcomers()

    def make_protocol() -> BoundedConnection:
        return BoundedConnection(newcomers, config, http.server_state, {})

    with _listening(where) as listener, contextlib.ExitStack() as accepting:

        async def serve() -> None:
            async with manager.run():
                accepting.callback(PlainListener(listener, make_protocol, newcomers).close)
                # Without sockets: uvicorn would accept two thousand connections in one iteration.
                await http.serve(sockets=[])

        task = asyncio.get_running_loop().create_task(serve())
        try:
            host = f"[{where.host}]" if ":" in where.host else where.host
            url = f"http://{host}:{listener.getsockname()[1]}{PATH}"
            yield Serving(url, gate.revoke)
        finally:
            accepting.close()
            http.should_exit = True
            await asyncio.wait([task], timeout=_END + 2)
            task.cancel()
            await asyncio.wait([task])


@contextlib.contextmanager
def _listening(where: ListenUrl) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    # With the protocol set, asyncio sets TCP_NODELAY, to send small parts of a response at once.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((where.host, where.port))
        listener.listen(_BACKLOG)
        yield listener
