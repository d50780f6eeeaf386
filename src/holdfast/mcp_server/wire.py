"""
A Holdfast transport as the pair of streams that the SDK reads from and writes to.

The SDK's own streams for stdio take lines of any length, and a thread for each of them. These
take what `transports` bounds, in the event loop, and tell a client what it got wrong.
"""

import asyncio
import json
from collections import deque
from typing import Any, Final, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, jsonrpc_message_adapter
from pydantic import ValidationError

from holdfast.transports.base import Transport

__all__ = ["Incoming", "Outgoing", "StreamPair"]

_HIGH: Final = 256
"""Messages that wait to be read at which the transport is paused."""

_LOW: Final = 64
"""Messages left at which it goes on."""


class Incoming:
    """Messages of the client, in the order of their arrival: a `ReadStream` of the SDK."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._queue: deque[SessionMessage | Exception] = deque()
        self._news = asyncio.Event()
        self._paused = False
        self._ended = False

    def put(self, message: SessionMessage) -> None:
        """Queue a message; a client that sends too many has to wait."""
        if self._ended:
            return
        self._queue.append(message)
        self._news.set()
        if len(self._queue) >= _HIGH and not self._paused:
            self._paused = True
            self._transport.pause_receiving()

    def end(self) -> None:
        """Note that nothing more comes; what is queued can still be read."""
        self._ended = True
        self._news.set()

    async def receive(self) -> SessionMessage | Exception:
        while not self._queue:
            if self._ended:
                raise anyio.EndOfStream
            self._news.clear()
            await self._news.wait()
        message = self._queue.popleft()
        if self._paused and len(self._queue) <= _LOW:
            self._paused = False
            self._transport.resume_receiving()
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
    """Messages for the client: a `WriteStream` of the SDK. A sender waits while it is full."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False

    def pause(self) -> None:
        """Note that the client does not read."""
        self._room.clear()

    def resume(self) -> None:
        """Note that it reads again."""
        self._room.set()

    def end(self) -> None:
        """Note that nobody takes messages any more; whoever waits goes on."""
        self._ended = True
        self._room.set()

    async def send(self, item: SessionMessage, /) -> None:
        # Behind others that wait: a client that does not read must not fill the memory.
        await self._room.wait()
        if self._ended:
            raise anyio.ClosedResourceError
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
    """Receives what a transport carries and turns it into messages of the SDK."""

    def __init__(self, transport: Transport) -> None:
        self.incoming = Incoming(transport)
        self.outgoing = Outgoing(transport)
        self._transport = transport

    def received(self, message: bytes) -> None:
        try:
            parsed = jsonrpc_message_adapter.validate_json(message, by_name=False)
        except ValidationError as error:
            if message.strip():  # an empty line is no message
                self._transport.send(_complaint(message, error))
            return
        self.incoming.put(SessionMessage(parsed))

    def lost(self, reason: str) -> None:
        self.incoming.end()
        self.outgoing.end()

    def pause_sending(self) -> None:
        self.outgoing.pause()

    def resume_sending(self) -> None:
        self.outgoing.resume()


def _complaint(message: bytes, error: ValidationError) -> bytes:
    """Return the answer to something that is no message of JSON-RPC 2.0."""
    try:
        given: Any = json.loads(message)
    except (ValueError, RecursionError):
        return _error(None, PARSE_ERROR, f"Parse error: {error.errors()[0]['msg']}")
    if isinstance(given, list):
        return _error(None, INVALID_REQUEST, "Invalid Request: batches are not supported")
    found = given.get("id") if isinstance(given, dict) else None
    request_id = found if isinstance(found, str | int) and not isinstance(found, bool) else None
    return _error(request_id, INVALID_REQUEST, "Invalid Request: not a message of JSON-RPC 2.0")


def _error(request_id: str | int | None, code: int, message: str) -> bytes:
    answer = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
    return json.dumps(answer).encode()
