"""
The raw client that all measurements share.

picows on uvloop, without queues or tasks: each message goes from the socket directly to the handler
of the current measurement, which sends the next request from there. So the client's own cost is
small, and the same for every server.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from bench import wire
from bench.errors import BenchError
from bench.figures import Acks

__all__ = ["Handler", "RawClient", "connected"]

Handler = Callable[[memoryview], bool]
"""Handles one message, valid only during the call; returns True if the measurement is complete."""

_READ_BUFFER = 512 * 1024
"""Most bytes to read from the socket at once: several messages even if they are large."""

_MAX_FRAME = 256 * 1024 * 1024
"""Largest frame in bytes: servers send an answer of any size in one."""


class RawClient(WSListener):
    """One connection to a server, after the handshake of the protocol."""

    def __init__(self, acks: Acks) -> None:
        self._quick = acks is Acks.QUICK
        self._transport: WSTransport | None = None
        self._handler: Handler | None = None
        self._done: asyncio.Future[None] | None = None
        self._lost = False

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Store the transport; picows calls this."""
        self._transport = transport
        sock: socket.socket = transport.underlying_transport.get_extra_info("socket")
        self._set_option = sock.setsockopt
        # picows asks for quick ACKs once, when it connects; an ordinary client never does.
        self._set_option(socket.IPPROTO_TCP, socket.TCP_QUICKACK, int(self._quick))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Pass one message to the current handler; picows calls this."""
        if frame.msg_type != WSMsgType.TEXT:
            return
        try:
            if not frame.fin:
                raise BenchError("the server sent a message in fragments")
            if self._handler is not None and self._handler(frame.get_payload_as_memoryview()):
                self._settle(None)
        except (BenchError, msgspec.MsgspecError, ValueError, LookupError) as error:
            self._settle(error)
        # The kernel falls back to delayed ACKs, so the option is set again after each receive.
        if self._quick and frame.last_in_buffer:
            self._set_option(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """Fail the current measurement; picows calls this."""
        self._lost = True
        self._settle(BenchError("the server dropped the connection"))

    def pause_writing(self) -> None:
        """Do nothing: messages may just as well queue here. picows calls this."""

    def resume_writing(self) -> None:
        """Do nothing; picows calls this."""

    def send(self, message: bytes) -> None:
        """Send one message."""
        assert self._transport is not None, "connected() only returns connected clients"
        self._transport.send(WSMsgType.TEXT, message)

    def send_frames(self, frames: bytes) -> None:
        """Send messages that `wire.frame` has framed, in one write."""
        assert self._transport is not None, "connected() only returns connected clients"
        self._transport.underlying_transport.write(frames)

    def send_parts(self, parts: Sequence[bytes]) -> None:
        """Send one message of any size, assembled from its parts without a copy."""
        assert self._transport is not None, "connected() only returns connected clients"
        self._transport.underlying_transport.writelines(wire.framed(parts))

    async def until(self, handler: Handler, first: Iterable[bytes] = ()) -> None:
        """
        Send the first messages and pass all that arrive to the handler until it is satisfied.

        Raises:
            BenchError: The server refused, broke the protocol or disappeared.
        """
        if self._lost:
            raise BenchError("the server dropped the connection")
        self._done = asyncio.get_running_loop().create_future()
        self._handler = handler
        for message in first:
            self.send(message)
        try:
            await self._done
        except (msgspec.MsgspecError, ValueError, LookupError) as error:
            raise BenchError(f"the server sent something unexpected: {error}") from error
        finally:
            self._handler = None

    async def call(self, message: bytes, request_id: int) -> None:
        """Send one request and wait for its reply, whatever else arrives."""
        await self.until(lambda payload: wire.decode(payload).id == request_id, [message])

    def disconnect(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.disconnect()

    def _settle(self, error: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


@asynccontextmanager
async def connected(url: str, acks: Acks, *, token: str | None = None) -> AsyncIterator[RawClient]:
    """Connect, do the handshake, and drop the connection at the end."""
    client = RawClient(acks)
    await ws_connect(
        lambda: client,
        url,
        read_buffer_init_size=_READ_BUFFER,
        max_frame_size=_MAX_FRAME,
        extra_headers={} if token is None else {"Authorization": f"Bearer {token}"},
    )
    try:
        await client.call(wire.request(0, "initialize", {"clientName": "bench"}), 0)
        client.send(wire.notification("initialized"))
        yield client
    finally:
        client.disconnect()
