"""One connection of a client: handshake, calls, and dispatch of notifications."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec
import pybase64

from holdfast.base.dialect import texts
from holdfast.base.errors import (
    ConnectFailed,
    ConnectionLost,
    MalformedMessage,
    RemoteProtocolError,
)
from holdfast.telemetry import ClientTelemetry
from holdfast.wire.connection import Connection
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.envelope import Notification, Request
from holdfast.wire.protocol.handshake import InitializeParams, InitializeResponse
from holdfast.wire.protocol.methods import INITIALIZE, INITIALIZED
from holdfast.wire.protocol.process import OutputStream
from holdfast.wire.protocol.wire_types import Empty, Method, NotificationMethod
from holdfast.wire.transports.transport import Transport

__all__ = ["MAX_CALLS", "Link", "NotificationHandlers", "OutputReceiver", "TooManyCalls"]

logger = logging.getLogger(__name__)

P = TypeVar("P")
R = TypeVar("R")

MAX_CALLS = 1024
"""Most unanswered calls of one connection; one more is reserved for cleaning up."""

# Seconds; a read may ask for 2**64 milliseconds, which no timer accepts.
_LONGEST_PATIENCE = 1e6


class TooManyCalls(RemoteProtocolError):
    """Error for a call beyond the limit of unanswered calls."""

    def __init__(self) -> None:
        super().__init__(f"exec-server has reached its limit of {MAX_CALLS} pending requests")


class OutputReceiver(Protocol):
    """A process whose output arrives on a connection."""

    def deliver_output(self, seq: int, stream: OutputStream, data: bytes) -> None:
        """Take output from the wire, with its number."""


class NotificationHandlers:
    """Handlers of a server's notifications, by method."""

    def __init__(self) -> None:
        self._by_name: dict[str, Callable[[object], None]] = {}

    def add(self, method: NotificationMethod[P], handler: Callable[[P], None]) -> None:
        """Register a function to call with the params of each notification of this method."""
        self._by_name[method.name] = lambda params: handler(msgspec.convert(params, method.params))

    def handle(self, name: str, params: object) -> None:
        """
        Call the handler of a notification; ignore one without a handler.

        Raises:
            msgspec.ValidationError: The params are not of the method's type.
        """
        handler = self._by_name.get(name)
        if handler is not None:
            handler(params)


class _OutputHead(msgspec.Struct, frozen=True, rename="camel"):
    process_id: str
    seq: int
    stream: OutputStream


# The exact spelling of every known server. A message with another spelling is parsed in full, so
# these bytes are only an optimisation.
_OUTPUT_START = b'{"method":"process/output","params":'
_CHUNK_START = b',"chunk":"'
_OUTPUT_END = b'"}}'
# Bytes before the chunk; a longer process id takes the general path.
_HEAD_LIMIT = 2048

# Bytes of an unreadable message to show.
_QUOTED = 200

_decode_head = msgspec.json.Decoder(_OutputHead).decode


class Link:
    """One connection: its calls, and the handler of its messages."""

    def __init__(
        self,
        handlers: NotificationHandlers,
        processes: Mapping[str, OutputReceiver],
        lost: Callable[["Link", str], None],
        telemetry: ClientTelemetry | None = None,
    ) -> None:
        """
        Args:
            handlers: Handlers of notifications.
            processes: Receivers of output, by process id. Output is the only frequent notification,
                so it takes a shorter path.
            lost: Called with the reason when the connection has ended.
            telemetry: Recorder of requests, if there is one.
        """
        self._handlers = handlers
        self._processes = processes
        self._lost = lost
        self._telemetry = telemetry
        self.connection: Connection
        # Calls that a caller waits for without delay: while there are any, the connection is read,
        # however slow the readers of output are.
        self._urgent = 0
        # Readers that have fallen behind; the connection is not read while there are any.
        self._slow: set[object] = set()
        # The start of the last message other than output, for the error about a malformed one.
        self._last_message = b""
        self._malformed = False

    def attach(self, transport: Transport) -> Connection:
        """Become the receiver of a transport; call this before anything else."""
        self.connection = Connection(transport, self, take_raw=self._take_output)
        return self.connection

    async def initialize(
        self, client_name: str, resume_session_id: str | None, timeout: float
    ) -> InitializeResponse:
        """
        Complete the handshake.

        Raises:
            ConnectFailed: No answer arrived in time, or it was not a message.
            RemoteError: The server refused.
        """
        params = InitializeParams(
            # `acknowledges` asks a Holdfast server to retain output until it is acknowledged.
            client_name=client_name,
            resume_session_id=resume_session_id,
            acknowledges=True,
        )
        try:
            async with asyncio.timeout(timeout):
                answer = await self.call(INITIALIZE, params)
        except TimeoutError:
            raise ConnectFailed(
                "timed out waiting for exec-server initialize handshake"
                f" after {texts.duration(timeout)}"
            ) from None
        except ConnectionLost as error:
            # The connection may also have ended before `initialize` was sent: the same case.
            text = texts.TRANSPORT_LOST
            if self._malformed:
                last = self._last_message.decode("utf-8", "replace").strip()
                text += f": it sent `{last}`, which is not a message"
            raise ConnectFailed(text) from error
        # The server serves no other method before this notification.
        self.connection.notify(INITIALIZED, Empty())
        return answer

    async def call(
        self, method: Method[P, R], params: P, *, cleanup: bool = False, patience: float = 0.0
    ) -> R:
        """
        Call a method and wait for its answer.

        Args:
            method: The method.
            params: Its parameters.
            cleanup: True if it ends something; it may use the reserved slot.
            patience: Seconds during which the call does not force the reading of output, for
                calls that wait on the server by design.

        Raises:
            TooManyCalls: All slots are in use.
            ConnectionLost: The connection ended, or even the reserved slot was in use.
        """
        if self.connection.calls_in_flight >= MAX_CALLS + cleanup:
            if not cleanup:
                raise TooManyCalls
            # Without the call something would keep running there; a new connection has free slots.
            self.connection.abandon("too many pending requests")
            raise ConnectionLost(texts.TRANSPORT_LOST)
        telemetry = self._telemetry
        trace = None if telemetry is None else telemetry.client_request(method.name)
        if patience > 0:
            with self._hurry_after(patience):
                return await self.connection.call(method, params, trace)
        self._urgent += 1
        # The connection is read again as soon as a caller waits for an answer.
        self._weigh()
        try:
            return await self.connection.call(method, params, trace)
        finally:
            self._urgent -= 1
            self._weigh()

    @contextmanager
    def _hurry_after(self, patience: float) -> Iterator[None]:
        hurried = False

        def hurry() -> None:
            nonlocal hurried
            hurried = True
            self._urgent += 1
            self._weigh()

        timer = asyncio.get_running_loop().call_later(min(patience, _LONGEST_PATIENCE), hurry)
        try:
            yield
        finally:
            timer.cancel()
            if hurried:
                self._urgent -= 1
                self._weigh()

    def hold_receiving(self, holder: object) -> None:
        """Stop reading the connection, unless a call is urgent: `holder` has fallen behind."""
        self._slow.add(holder)
        self._weigh()

    def release_receiving(self, holder: object) -> None:
        """Undo `hold_receiving` for this holder."""
        self._slow.discard(holder)
        self._weigh()

    def _weigh(self) -> None:
        # A reader may wait for an answer before it continues to read. The answer follows the
        # output, so holding back the output would hold back both.
        if self._slow and not self._urgent:
            self.connection.hold_receiving("slow reader")
        else:
            self.connection.release_receiving("slow reader")

    # -- ConnectionHandler

    def _take_output(self, message: bytes) -> bool:
        """
        Handle `process/output` by a fast path that parses only the short head before the base64 as
        JSON (`scripts/bench --without taken-output`).
        """
        if not message.startswith(_OUTPUT_START) or not message.endswith(_OUTPUT_END):
            self._last_message = message[:_QUOTED]
            return False
        at = message.find(_CHUNK_START, 0, _HEAD_LIMIT)
        if at < 0:
            return False
        try:
            head = _decode_head(message[len(_OUTPUT_START) : at] + b"}")
            data = pybase64.b64decode(
                memoryview(message)[at + len(_CHUNK_START) : -len(_OUTPUT_END)], validate=True
            )
        except (msgspec.DecodeError, ValueError):
            # Parsed in full next, which reports the error.
            return False
        # Output of a forgotten process is dropped, like all its events.
        process = self._processes.get(head.process_id)
        if process is not None:
            process.deliver_output(head.seq, head.stream, data)
        return True

    def notification(self, notification: Notification) -> None:
        try:
            self._handlers.handle(notification.method, notification.params)
        except (msgspec.ValidationError, RemoteProtocolError) as error:
            logger.warning("exec-server notification handling failed: %s", error)
            # An unreadable message may have been an event; only a resumed session can repeat it.
            self.connection.transport.abort()

    def request(self, request: Request) -> None:
        if request.method == "network/policyRequest":
            # No command of ours has a network policy that asks, so deny everything.
            decision = {"decision": {"type": "deny", "reason": "not_allowed"}}
            self.connection.reply(request.id, decision)
            return
        self.connection.fail(
            request.id, codes.METHOD_NOT_FOUND, texts.client_lacks_method(request.method)
        )

    def malformed(self, error: MalformedMessage) -> None:
        logger.warning("exec-server sent a malformed message: %s", error)
        self._malformed = True
        self.connection.transport.abort()

    def lost(self, reason: str) -> None:
        self._lost(self, reason)

    def pause_sending(self) -> None:
        """Do nothing: a client sends calls only, and the number of those is limited."""

    def resume_sending(self) -> None:
        """Do nothing, like `pause_sending`."""
