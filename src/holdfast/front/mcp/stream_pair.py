"""
Adapts a Holdfast transport to the pair of streams that the SDK reads and writes.

The SDK's own stdio streams accept lines of any length, and use a thread for each stream. These are
bounded by `transports`, run in the event loop, and report invalid messages to the client.
"""

import asyncio
import json
from collections import deque
from typing import Any, Final, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from holdfast.wire.transports.transport import Transport

__all__ = ["Incoming", "Outgoing", "StreamPair"]

# Number of unread messages at which the transport is paused.
_HIGH: Final = 256

# Number of unread messages at which it is resumed.
_LOW: Final = 64

# Number of unanswered requests at which the transport is paused; each is a task of the SDK.
_OPEN: Final = 2_048

# Bytes of unanswered requests at which the transport is paused.
_OPEN_BYTES: Final = 64 << 20

_CANCELLED: Final = "notifications/cancelled"

# Number of unread error messages at which the transport is paused.
_COMPLAINTS: Final = 256


class _Pausing:
    """Pauses a transport while there is any reason to."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._reasons: set[str] = set()

    def set(self, reason: str, *, holds: bool) -> None:
        """Set whether a reason holds."""
        before = bool(self._reasons)
        if holds:
            self._reasons.add(reason)
        else:
            self._reasons.discard(reason)
        if self._reasons and not before:
            self._transport.pause_receiving()
        elif before and not self._reasons:
            self._transport.resume_receiving()


class _OpenRequests:
    """Counts unanswered requests, since the SDK accepts any number at once."""

    def __init__(self, pausing: _Pausing) -> None:
        self._pausing = pausing
        # A client may reuse an id, so each has the sizes of all its requests. For the SDK, 7 and
        # "7" are the same id.
        self._sizes: dict[str, list[int]] = {}
        self._count = 0
        self._bytes = 0

    def begun(self, message: JSONRPCMessage, size: int) -> None:
        """Count a request of the client; a cancellation ends the cancelled request."""
        if isinstance(message, JSONRPCRequest):
            self._sizes.setdefault(str(message.id), []).append(size)
            self._count += 1
            self._bytes += size
            self._look()
        elif isinstance(message, JSONRPCNotification) and message.method == _CANCELLED:
            # A cancelled request is never answered.
            self._end((message.params or {}).get("requestId"))

    def answered(self, message: JSONRPCMessage) -> None:
        """Count a response to the client."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._end(message.id)

    def _end(self, request_id: object) -> None:
        key = str(request_id)
        sizes = self._sizes.get(key)
        if sizes is None:
            return
        self._count -= 1
        self._bytes -= sizes.pop()
        if not sizes:
            del self._sizes[key]
        self._look()

    def _look(self) -> None:
        full = self._count >= _OPEN or self._bytes >= _OPEN_BYTES
        self._pausing.set("open requests", holds=full)


class Incoming:
    """Messages of the client in order: a `ReadStream` of the SDK."""

    def __init__(self, pausing: _Pausing) -> None:
        self._pausing = pausing
        self._queue: deque[SessionMessage | Exception] = deque()
        self._news = asyncio.Event()
        self._full = False
        self._ended = False

    def put(self, message: SessionMessage) -> None:
        """Queue a message; pause a client that sends too many."""
        if self._ended:
            return
        self._queue.append(message)
        self._news.set()
        if len(self._queue) >= _HIGH and not self._full:
            self._full = True
            self._pausing.set("unread", holds=True)

    def end(self) -> None:
        """Note the end of the stream; queued messages can still be read."""
        self._ended = True
        self._news.set()

    async def receive(self) -> SessionMessage | Exception:
        while not self._queue:
            if self._ended:
                raise anyio.EndOfStream
            self._news.clear()
            await self._news.wait()
        message = self._queue.popleft()
        if self._full and len(self._queue) <= _LOW:
            self._full = False
            self._pausing.set("unread", holds=False)
        return message

    async def aclose(self) -> None:
        self._queue.clear()
        self.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class Outgoing:
    """Messages for the client: a `WriteStream` of the SDK. Senders wait while it is full."""

    def __init__(self, transport: Transport, requests: _OpenRequests) -> None:
        self._transport = transport
        self._requests = requests
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False

    @property
    def paused(self) -> bool:
        """True while the client does not read."""
        return not self._room.is_set()

    def pause(self) -> None:
        """Note that the client is not reading."""
        self._room.clear()

    def resume(self) -> None:
        """Note that the client reads again."""
        self._room.set()

    def end(self) -> None:
        """Note that the connection has ended; waiting senders continue."""
        self._ended = True
        self._room.set()

    async def send(self, item: SessionMessage, /) -> None:
        # Wait for the others: a client that does not read must not fill the memory.
        await self._room.wait()
        if self._ended:
            raise anyio.ClosedResourceError
        self._requests.answered(item.message)
        self._transport.send(
            item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        )

    async def aclose(self) -> None:
        if not self._ended:
            self.end()
            self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class StreamPair:
    """Receives data from a transport and converts it to messages of the SDK."""

    def __init__(self, transport: Transport) -> None:
        # A line that is not UTF-8 gets a parse error, like other invalid lines.
        transport.text_only = False
        self._pausing = _Pausing(transport)
        self._requests = _OpenRequests(self._pausing)
        self.incoming = Incoming(self._pausing)
        self.outgoing = Outgoing(transport, self._requests)
        self._transport = transport
        # Error messages that the client has not read yet.
        self._complaints: deque[bytes] = deque()

    def received(self, message: bytes) -> None:
        try:
            parsed = jsonrpc_message_adapter.validate_json(message, by_name=False)
        except ValidationError as error:
            # Ignore empty lines.
            if message.strip():
                self._refuse(message, error)
            return
        self._requests.begun(parsed, len(message))
        self.incoming.put(SessionMessage(parsed))

    def lost(self, reason: str) -> None:
        self._complaints.clear()
        self.incoming.end()
        self.outgoing.end()

    def pause_sending(self) -> None:
        self.outgoing.pause()

    def resume_sending(self) -> None:
        self.outgoing.resume()
        while self._complaints and not self.outgoing.paused:
            self._transport.send(self._complaints.popleft())
        self._pausing.set("complaints", holds=len(self._complaints) >= _COMPLAINTS)

    def _refuse(self, message: bytes, error: ValidationError) -> None:
        """Report an invalid message to the client and, for a response, to the waiting request."""
        try:
            # Decoded first, because `json` would also accept UTF-16 and UTF-32.
            given: Any = json.loads(message.decode())
        except (ValueError, RecursionError):
            self._complain(_error(None, PARSE_ERROR, f"Parse error: {error.errors()[0]['msg']}"))
            return
        if isinstance(given, list):
            text = "Invalid Request: batches are not supported"
            self._complain(_error(None, INVALID_REQUEST, text))
            return
        found = given.get("id") if isinstance(given, dict) else None
        request_id = found if isinstance(found, str | int) and not isinstance(found, bool) else None
        if request_id is not None and "method" not in given:
            # The id is the server's: the client could mistake it for one of its own.
            reason = ErrorData(code=INVALID_REQUEST, message="not a response of JSON-RPC 2.0")
            answer = JSONRPCError(jsonrpc="2.0", id=request_id, error=reason)
            self.incoming.put(SessionMessage(answer))
            request_id = None
        text = "Invalid Request: not a message of JSON-RPC 2.0"
        self._complain(_error(request_id, INVALID_REQUEST, text))

    def _complain(self, text: bytes) -> None:
        """Send an error to the client; stop reading from it while it does not read."""
        if not self.outgoing.paused:
            self._transport.send(text)
            return
        self._complaints.append(text)
        self._pausing.set("complaints", holds=len(self._complaints) >= _COMPLAINTS)


def _error(request_id: str | int | None, code: int, message: str) -> bytes:
    answer = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
    return json.dumps(answer).encode()
