"""
Streamable HTTP: who may come in, and whose sessions they see.

A page in a browser must not reach a server that runs commands. So a request with an `Origin`
is refused unless that was allowed. A request whose `Host` is a foreign name is refused, too: a
name can be made to lead to this machine, an address cannot.
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
"""The member of a request's scope that has the key of its principal."""

# The principal of all requests of 2026-07-28 without a token: they have no session id.
ANONYMOUS: Final = "anonymous"

# The beginning of the key of a principal that is known by its MCP session.
_SESSION: Final = "session:"

_SESSION_HEADER: Final = "mcp-session-id"
_LAST_EVENT_HEADER: Final = b"last-event-id"

# Connections at once; one more is answered with 503.
_CONNECTIONS: Final = 4_096

# Connections that may wait to be accepted.
_BACKLOG: Final = 1_024

# Seconds that streams have to end with the server.
_END: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """Names that requests may carry; a token decides about everything else."""

    hosts: Collection[str] = ()
    """Names by which the server may be asked for, besides `localhost` and addresses."""
    origins: Collection[str] = ()
    """Web pages that may come in, such as `https://app.example.com`."""


class _Answer:
    """The answer to one request: passes it on, and notes what was sent."""

    def __init__(self, send: Send) -> None:
        self.status: int | None = None
        """The status, once it is sent."""
        self.session: str | None = None
        """The MCP session that the answer names."""
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
        """End an answer that has begun."""
        if not self._complete:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})


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
        self._sessions = HttpSessions(
            self._end_session, is_used=lambda one: attendance.has_commands(f"{_SESSION}{one}")
        )
        self._bodies = Bodies()
        self._logged_refusals = Sampled()
        # By the keys of their principals.
        self._credentials: dict[str, Credential] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            # Of several the first counts, as it does for the SDK.
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
            # Whoever is not let in must not keep the place of a client that is.
            refusal.headers["Connection"] = "close"
            await refusal(scope, receive, send)
            return
        key = self._key(credential, headers)
        scope[PRINCIPAL] = key
        let_in = scope["state"][LET_IN]
        # Events have no ids here, and the SDK would not answer a client that names one.
        scope["headers"] = [each for each in scope["headers"] if each[0] != _LAST_EVENT_HEADER]
        if credential is not None:
            # Only a request without a token can be without a principal.
            assert key is not None
            self._credentials[key] = credential
            # By this the SDK keeps an MCP session to the token that opened it.
            scope["user"] = _user(key)
            let_in()
        try:
            async with contextlib.nullcontext() if key is None else self._attendance.request(key):
                # Without a token, a client that never sends its body counts as not let in.
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
        Let the SDK answer a request that may come in.

        Raises:
            Overloaded: It would open an MCP session too many.
        """
        owner = self._owner(scope[PRINCIPAL])
        limit = SESSIONS if self._check is None else SESSIONS_OF_ONE
        session = headers.get(_SESSION_HEADER)
        if _is_modern(headers):
            # Without an MCP session: each request stands for itself.
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
        """End an MCP session, as if its client had asked for it."""
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
        """End the commands of an MCP session without a token, which no client can reach now."""
        if self._check is None:
            self._attendance.gone(f"{_SESSION}{session}")

    async def revoke(self, admits: Callable[[Credential], bool]) -> None:
        """End the requests, commands and MCP sessions of clients that are not admitted any more."""
        gone = {key: one for key, one in self._credentials.items() if not admits(one)}
        # All of them before the first await: none of them may start another command.
        requests = {key: self._attendance.revoke(key) for key in gone}
        for key, credential in gone.items():
            del self._credentials[key]
            ended = await self._sessions.end_all_of(key)
            log_revoked(credential, requests=requests[key], sessions=ended)

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
        """Return the key of a request's principal; None for the first of an MCP session."""
        if credential is not None:
            # Not the name alone: each token is a principal of its own.
            return f"token:{credential.principal}:{(credential.secret or b'').hex()}"
        if _is_modern(headers):
            return ANONYMOUS
        # It is random, and told to nobody else.
        session = headers.get(_SESSION_HEADER)
        return None if session is None else f"{_SESSION}{session}"

    def _owner(self, key: str | None) -> str:
        """Return the token of a principal, whose limits count, or one name for all without one."""
        if self._check is None:
            return ANONYMOUS
        # Only a request without a token can be without a principal.
        assert key is not None
        return key


def _is_modern(headers: dict[str, str]) -> bool:
    """Return True for a request of 2026-07-28, which knows no MCP sessions."""
    version = headers.get("mcp-protocol-version")
    return version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS


def _unauthorized() -> PlainTextResponse:
    return PlainTextResponse(
        "a bearer token is missing, or it is not one of the server's",
        401,
        {"WWW-Authenticate": "Bearer"},
    )


def _user(key: str) -> AuthenticatedUser:
    """Return the owner of MCP sessions, as the SDK knows it."""
    return AuthenticatedUser(AccessToken(token="", client_id=key, scopes=[]))


async def _nothing() -> Message:
    """Receive an empty body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def _drop(message: Message) -> None:
    """Send an answer to no client."""


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


class _Uvicorn(uvicorn.Server):
    """A server that leaves signals to the process it is in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Serving(NamedTuple):
    """A server on HTTP."""

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
    Serve HTTP in the block.

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
        # `Bodies` bounds requests, and `HttpSessions` sessions.
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
                # Without a socket: uvicorn would take two thousand connections in one turn.
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
    # asyncio sends small parts of an answer at once (TCP_NODELAY) only where it sees the protocol.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((where.host, where.port))
        listener.listen(_BACKLOG)
        yield listener
