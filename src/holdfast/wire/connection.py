"""
Driver of one JSON-RPC peer on one transport; the only module that knows both.

Server and client use the same class. Their `ConnectionHandler`s differ: who handles requests
and notifications, and what happens to an unreadable message.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Protocol, TypeVar

import msgspec

from holdfast.base.dialect import texts
from holdfast.base.errors import (
    ConnectionLost,
    MalformedMessage,
    RemoteError,
    RemoteProtocolError,
    Unsupported,
)
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.envelope import (
    ErrorData,
    ErrorReply,
    Message,
    Notification,
    Reply,
    Request,
    RequestId,
    Trace,
)
from holdfast.wire.protocol.process import OutputChunk
from holdfast.wire.protocol.wire_types import Method, NotificationMethod
from holdfast.wire.rpc.encode import (
    Encoded,
    encode_error,
    encode_output,
    encode_result,
    encode_result_parts,
)
from holdfast.wire.rpc.large_params import LARGEST_UNCOUNTED, may_have_many_values
from holdfast.wire.rpc.params import decode_result
from holdfast.wire.rpc.peer import Peer
from holdfast.wire.rpc.server_kind import EXEC_SERVER, ServerKind
from holdfast.wire.transports.transport import Transport

__all__ = ["MAX_UNREAD", "Connection", "ConnectionHandler"]

logger = logging.getLogger(__name__)

MAX_UNREAD = 8 << 20
"""Bytes of answers queued for a peer that does not read before its requests have to wait."""

# Calls in flight beyond which a peer may be too busy to answer a ping.
MANY_CALLS = 100

P = TypeVar("P")
R = TypeVar("R")


@cache
def _decoding_thread() -> ThreadPoolExecutor:
    """
    Return the thread that decodes messages with many values.

    All connections share it. Several threads would compete for the interpreter, and the event loop
    would have to wait for each of them.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-decode")


# The child of a fork has no threads, and would wait for this one for ever.
os.register_at_fork(after_in_child=_decoding_thread.cache_clear)


class ConnectionHandler(Protocol):
    """The side-specific part of a connection: what to do with the messages of the peer."""

    def request(self, request: Request) -> None:
        """Handle a request; the peer expects an answer."""

    def notification(self, notification: Notification) -> None:
        """Handle a notification."""

    def malformed(self, error: MalformedMessage) -> None:
        """Handle an unreadable message."""

    def lost(self, reason: str) -> None:
        """Handle the end of the connection."""

    def pause_sending(self) -> None:
        """Reduce output: the peer does not read."""

    def resume_sending(self) -> None:
        """Resume output: the peer reads again."""


class Connection:
    """One JSON-RPC conversation; the receiver of its transport."""

    def __init__(
        self,
        transport: Transport,
        handler: ConnectionHandler,
        server_kind: ServerKind = EXEC_SERVER,
        *,
        prepare: Callable[[Request, int], Request] | None = None,
        take_raw: Callable[[bytes], bool] | None = None,
    ) -> None:
        """
        Args:
            transport: Carries the messages.
            handler: Receives the messages of the peer.
            server_kind: The exec-server, or another whose protocol the peer speaks.
            prepare: Takes a request with many values and the size of its message in bytes, and
                returns the request with its params decoded. Called in a thread. Without it every
                message is decoded where it is received.
            take_raw: Gets each message before it is decoded, and returns True if it handled the
                message.
        """
        self._prepare = prepare
        self._take_raw = take_raw
        self.transport = transport
        self._handler = handler
        self._peer = Peer(server_kind)
        self._encode_notification = server_kind.encode_notification
        self._calls: dict[RequestId, asyncio.Future[object]] = {}
        self._ended: str | None = None
        self.send: Callable[[bytes], None] = transport.send
        """Send an encoded message."""
        self.send_parts = transport.send_parts
        """
        Send a message in parts. Not counted as unread: it is output, whose producer is paused.
        """
        self._paused = False
        # Bytes queued since the peer stopped reading.
        self._unread = 0
        # True after `MAX_UNREAD`; messages of the same read are then kept in `_postponed`, as are
        # those after a message that is decoded in a thread.
        self._choked = False
        self._when_read: list[Callable[[], None]] = []
        self._decoding: asyncio.Future[Message] | None = None
        self._postponed: deque[bytes] = deque()
        # Reasons for not reading the transport; it is read again when the set is empty.
        self._holding: set[str] = set()
        transport.excuse_silence(self._is_peer_busy)

    @property
    def ended(self) -> bool:
        """True once the transport has ended."""
        return self._ended is not None

    # -- sending

    def reply(self, request_id: RequestId, result: object, *, alone: bool = False) -> None:
        """
        Answer a request of the peer.

        Args:
            request_id: The id of the request.
            result: The result of its method.
            alone: True if no other answer is about to follow; see `Transport.send`.
        """
        if type(result) is not Encoded:
            message = encode_result(request_id, result)
            if alone and not self._paused:
                self.transport.send(message, alone=True)
            else:
                self.send(message)
            return
        parts = encode_result_parts(request_id, result)
        self.transport.send_parts(parts, alone=alone)
        # An answer in parts bypasses `send`, so it is counted here.
        if self._paused:
            self._count_unread(sum(map(len, parts)))

    def fail(
        self, request_id: RequestId, code: int, message: str, data: ErrorData | None = None
    ) -> None:
        """Answer a request of the peer with an error; `data` only if the peer wants it."""
        self.send(encode_error(request_id, code, message, data))

    def notify(self, method: NotificationMethod[P], params: P) -> None:
        """Send a notification."""
        self.send(self._encode_notification(method.name, params))

    def send_output(self, prefix: bytes, chunk: OutputChunk) -> None:
        """Send a `process/output` that begins with the `output_prefix` of its process."""
        self.send_parts(encode_output(prefix, chunk.seq, chunk.stream, chunk.chunk))

    async def call(self, method: Method[P, R], params: P, trace: Trace | None = None) -> R:
        """
        Call a method of the peer and wait for its answer.

        Args:
            method: The method.
            params: Its parameters.
            trace: The trace context to send along.

        Raises:
            RemoteError: The peer refused; `Unsupported` if it does not know the method.
            RemoteProtocolError: The answer is not of the method's type.
            ConnectionLost: The transport ended first.
        """
        if self._ended is not None:
            raise ConnectionLost(texts.TRANSPORT_CLOSED)
        request_id, message = self._peer.request(method.name, params, trace)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._calls[request_id] = future
        self.send(message)
        try:
            result = await future
        except asyncio.CancelledError:
            # Not in `_calls` means that the answer came in the same turn as the cancellation.
            if self._calls.pop(request_id, None) is not None:
                self._peer.forget(request_id)
            raise
        try:
            return decode_result(result, method.result)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(
                f"failed to serialize or deserialize exec-server JSON: {error}"
            ) from error

    @property
    def calls_in_flight(self) -> int:
        """The number of unanswered calls, including those whose caller was cancelled."""
        # The peer may still be working on a cancelled call, which occupies one of its slots.
        return self._peer.pending

    def _is_peer_busy(self) -> bool:
        # A server may stop reading, pings included, while 128 messages are queued.
        return self._peer.pending > MANY_CALLS

    def close(self) -> None:
        """Close the connection after sending what is queued."""
        self.transport.close()

    def abandon(self, reason: str) -> None:
        """Close the connection at once; calls made after this return fail."""
        self.transport.abort()
        # Reported here since the transport would only do so in a later turn of the loop.
        self.lost(reason)

    # -- events of the transport

    def received(self, message: bytes) -> None:
        if self._choked or self._decoding is not None:
            # The transport read it together with the message that the rest has to wait for.
            self._postponed.append(message)
        elif self._take_raw is None or not self._take_raw(message):
            self._receive(message)

    def _receive(self, message: bytes) -> None:
        try:
            if self._prepare is None or len(message) <= LARGEST_UNCOUNTED:
                event = self._peer.receive(message)
            elif may_have_many_values(message):
                self._decode_elsewhere(message, self._prepare)
                return
            else:
                event = self._peer.receive_few_values(message)
        except MalformedMessage as error:
            self._handler.malformed(error)
        except RemoteProtocolError:
            self.transport.abort()
        else:
            if type(event) is Request:
                self._handler.request(event)
            else:
                self._handle(event)

    def _decode_elsewhere(self, message: bytes, prepare: Callable[[Request, int], Request]) -> None:
        """Decode a message with many values in a thread; later messages wait."""

        def decode() -> Message:
            event = self._peer.decode_patiently(message)
            return prepare(event, len(message)) if type(event) is Request else event

        self.hold_receiving("decoding")
        loop = asyncio.get_running_loop()
        try:
            self._decoding = loop.run_in_executor(_decoding_thread(), decode)
        except RuntimeError:
            # The system cannot start a thread now: decode on the loop, so all clients wait.
            self._decoding = loop.create_future()
            try:
                self._decoding.set_result(decode())
            except Exception as error:  # noqa: BLE001 - `_decoded` handles it
                self._decoding.set_exception(error)
        self._decoding.add_done_callback(self._decoded)

    def _decoded(self, decoded: asyncio.Future[Message]) -> None:
        self._decoding = None
        if decoded.cancelled() or self._ended is not None:
            return
        try:
            event = self._peer.receive_decoded(decoded.result())
        except MalformedMessage as error:
            self._handler.malformed(error)
        except RemoteProtocolError:
            self.transport.abort()
            return
        except Exception:
            # Our own bug. The connection is on hold until a message is handled, so it must end.
            logger.exception("a message could not be decoded")
            self.transport.abort()
            return
        else:
            self._handle(event)
        self._receive_postponed()
        if self._decoding is None:
            self.release_receiving("decoding")

    def _receive_postponed(self) -> None:
        while self._postponed and not self._choked and self._decoding is None:
            message = self._postponed.popleft()
            if self._take_raw is None or not self._take_raw(message):
                self._receive(message)

    def _handle(self, event: Message | None) -> None:
        handler = self._handler
        if type(event) is Request:
            handler.request(event)
        elif type(event) is Notification:
            handler.notification(event)
        elif event is not None:
            # The remaining kinds of messages.
            assert type(event) is Reply or type(event) is ErrorReply
            self._settle(event)

    def lost(self, reason: str) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        self._postponed.clear()
        if self._decoding is not None:
            # It may still be queued for the thread. No one needs it now, and the program would wait
            # for it before it exits.
            self._decoding.cancel()
        # Swapped first: a callback of a future may make another call.
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(ConnectionLost(texts.TRANSPORT_LOST))
        self._handler.lost(reason)

    def pause_sending(self) -> None:
        # Replaced, so that no message to a peer that reads costs a test.
        self.send = self._send_unread
        self._paused = True
        self._unread = 0
        self._handler.pause_sending()

    def resume_sending(self) -> None:
        self.send = self.transport.send
        self._choked = False
        self._paused = False
        self._handler.resume_sending()
        calls, self._when_read = self._when_read, []
        for call in calls:
            call()
        # Handling one of them may choke the connection again.
        self._receive_postponed()
        if not self._choked:
            self.release_receiving("unread")

    @property
    def is_choked(self) -> bool:
        """True while requests have to wait, since the peer does not read their answers."""
        return self._choked

    def call_when_read(self, call: Callable[[], None]) -> None:
        """Call back once when the peer of a choked connection reads again."""
        self._when_read.append(call)

    def hold_receiving(self, why: str) -> None:
        """Stop reading the transport until every reason to do so is released."""
        if not self._holding:
            self.transport.pause_receiving()
        self._holding.add(why)

    def release_receiving(self, why: str) -> None:
        """Release a reason; does nothing if it was not given."""
        if why in self._holding:
            self._holding.remove(why)
            if not self._holding:
                self.transport.resume_receiving()

    def _send_unread(self, message: bytes) -> None:
        self.transport.send(message)
        self._count_unread(len(message))

    def _count_unread(self, size: int) -> None:
        self._unread += size
        # Requests are still read, since one may end a process. But a peer that never reads would
        # fill our memory with answers.
        if self._unread > MAX_UNREAD and not self._choked:
            self._choked = True
            self.hold_receiving("unread")

    def _settle(self, event: Reply | ErrorReply) -> None:
        future = self._calls.pop(event.id, None)
        if future is None or future.done():
            return
        if type(event) is Reply:
            future.set_result(event.result)
            return
        # The other kind of reply.
        assert type(event) is ErrorReply
        error = event.error
        if error.code == codes.TRANSPORT_CLOSED:
            # The server noticed before us that the connection is over; retries need another one.
            future.set_exception(ConnectionLost(texts.TRANSPORT_LOST))
            self.abandon(error.message)
        elif error.code == codes.METHOD_NOT_FOUND:
            future.set_exception(Unsupported(error.code, error.message, error.data))
        else:
            future.set_exception(RemoteError(error.code, error.message, error.data))
