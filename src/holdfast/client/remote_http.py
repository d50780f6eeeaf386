"""
HTTP calls made by a server, behind the same protocol as local ones [http.request.*].

No call is repeated after a lost connection, since it may have had an effect. A streamed body
arrives in numbered pieces and ends with its connection.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.base.dialect import limits, texts
from holdfast.base.errors import ConnectionLost, HoldfastError, OperationFailed, RemoteProtocolError
from holdfast.client.error_mapping import refusals
from holdfast.wire.protocol.http import HttpHeader, HttpRequestParams, HttpResponse
from holdfast.wire.protocol.methods import HTTP_BODY_DELTA, HTTP_REQUEST
from holdfast.wire.protocol.wire_types import Method, NotificationMethod, Wire
from holdfast.wire.rpc.base64 import decode_answer

if TYPE_CHECKING:
    from holdfast.client.client_session import ClientSession

__all__ = [
    "BODY_DELTA",
    "MAX_DELTA",
    "MAX_QUEUED",
    "MAX_QUEUED_BYTES",
    "BodyDeltaText",
    "RemoteHttpBody",
    "RemoteHttpClient",
]

MAX_DELTA = limits.BODY_PIECE
"""Largest piece of a body in bytes."""

MAX_QUEUED = limits.BODY_PIECES
"""Most pieces of one body that wait for their reader; one more fails the stream."""

MAX_QUEUED_BYTES = 16 << 20
"""Most bytes in these pieces."""

# At a quarter of either limit the server has to wait, so that both are hardly ever reached.
_SLOW = 4


class _ResponseText(Wire, frozen=True, kw_only=True):
    """Result of `http/request` with the base64 undecoded: `pybase64` is faster than msgspec."""

    status: int
    headers: list[HttpHeader]
    body_base64: str


class BodyDeltaText(Wire, frozen=True, kw_only=True):
    """Piece of a body, undecoded for the same reason."""

    request_id: str
    seq: int
    delta_base64: str
    done: bool = False
    error: str | None = None


_REQUEST = Method(HTTP_REQUEST.name, HttpRequestParams, _ResponseText)

BODY_DELTA = NotificationMethod(HTTP_BODY_DELTA.name, BodyDeltaText)
"""The notification with a piece of a body, whose base64 stays a string."""


class RemoteHttpClient:
    """Makes calls on the machine that a client is connected to."""

    def __init__(self, session: "ClientSession") -> None:
        self._session = session
        self._last_id = 0
        self._bodies: dict[str, RemoteHttpBody] = {}

    # -- the seam

    async def request(self, params: HttpRequestParams) -> HttpResponse:
        """
        Make a call; see `HttpClient.request`.

        Raises:
            ConnectionLost: It is unknown whether the call was made.
        """
        # A streamed answer would have no reader here.
        params = msgspec.structs.replace(params, stream_response=False)
        with refusals():
            return _response(await self._session.call(_REQUEST, params))

    async def stream(self, params: HttpRequestParams) -> tuple[HttpResponse, "RemoteHttpBody"]:
        """Make a call and return after the headers; the caller reads the body."""
        # The wire cannot cancel a body: after `aclose` the rest still arrives and is discarded.
        link = await self._session.connected()
        # The caller's id may be in use on this connection, and the server would refuse it.
        self._last_id += 1
        request_id = f"http-{self._last_id}"
        params = msgspec.structs.replace(params, request_id=request_id, stream_response=True)
        # Registered before the call: the first pieces may arrive before the answer.
        body = self._bodies[request_id] = RemoteHttpBody(self._session, self, request_id)
        try:
            with refusals():
                return _response(await link.call(_REQUEST, params)), body
        except BaseException:
            await body.aclose()
            raise

    # -- called by the session

    def deliver(self, delta: BodyDeltaText) -> None:
        """Handle a piece of a body from the wire."""
        body = self._bodies.get(delta.request_id)
        if body is None:
            # The caller has closed the body.
            return
        try:
            body.deliver(
                delta.seq, decode_answer(delta.delta_base64), done=delta.done, error=delta.error
            )
        except RemoteProtocolError as error:
            body.fail(error)

    def interrupted(self) -> None:
        """Fail every body that is not complete: its connection is lost."""
        for body in list(self._bodies.values()):
            body.fail(ConnectionLost(texts.TRANSPORT_LOST))

    def forget(self, request_id: str) -> None:
        """Ignore further pieces of that body."""
        self._bodies.pop(request_id, None)


class RemoteHttpBody:
    """A body that arrives over the wire; for one reader."""

    def __init__(self, session: "ClientSession", owner: RemoteHttpClient, request_id: str) -> None:
        self._session = session
        self._owner = owner
        self._request_id = request_id
        self._last_seq = 0
        self._pieces: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._ended = False
        self._failure: HoldfastError | None = None

    # -- the seam

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._read()

    async def aclose(self) -> None:
        self._pieces.clear()
        self._bytes = 0
        self._end()

    # -- called by the session

    def deliver(self, seq: int, piece: bytes, *, done: bool, error: str | None) -> None:
        """
        Handle the next piece.

        Raises:
            RemoteProtocolError: It is not the next one, or there is no room for it.
        """
        if seq != self._last_seq + 1:
            raise RemoteProtocolError(
                f"http response stream `{self._request_id}` received seq {seq},"
                f" expected {self._last_seq + 1}"
            )
        self._last_seq = seq
        # A server that ignores the protocol's limit could otherwise fill memory with one message.
        if len(piece) > MAX_DELTA:
            raise RemoteProtocolError(
                f"http response stream `{self._request_id}` received a delta of {len(piece)} bytes;"
                f" limit is {MAX_DELTA}"
            )
        if piece:
            self._pieces.append(piece)
            self._bytes += len(piece)
            # Only a server that ignores back-pressure gets here: reading stops at a quarter of
            # this.
            if len(self._pieces) > MAX_QUEUED or self._bytes > MAX_QUEUED_BYTES:
                raise RemoteProtocolError(
                    f"http response stream `{self._request_id}` is not read fast enough"
                )
        if error is not None:
            self._failure = OperationFailed(error)
        if error is not None or done:
            self._end()
        elif len(self._pieces) > MAX_QUEUED // _SLOW or self._bytes > MAX_QUEUED_BYTES // _SLOW:
            self._session.hold_receiving(self)
        self._news.set()

    def fail(self, error: HoldfastError) -> None:
        """Fail the body; pieces that have arrived can still be read."""
        if not self._ended:
            self._failure = error
            self._end()

    # -- internals

    async def _read(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._bytes -= len(piece)
                # Released only when empty, so that the connection is not paused and resumed for
                # each piece.
                if not self._pieces:
                    self._session.release_receiving(self)
                yield piece
            if self._ended:
                break
            self._news.clear()
            await self._news.wait()
        if self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        self._ended = True
        # Later pieces of the server are dropped unread.
        self._owner.forget(self._request_id)
        self._session.release_receiving(self)
        self._news.set()


def _response(answer: _ResponseText) -> HttpResponse:
    return HttpResponse(
        status=answer.status, headers=answer.headers, body_base64=decode_answer(answer.body_base64)
    )
