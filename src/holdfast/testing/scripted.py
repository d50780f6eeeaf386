"""
A server controlled by a test.

It speaks the protocol over the memory transport, so a client cannot distinguish it from a real
server. But it starts nothing, and it may answer late, twice, incorrectly or not at all.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import pybase64

from holdfast.base.errors import ConnectFailed
from holdfast.client.target import Target
from holdfast.wire.protocol.envelope import ErrorData, Message, Notification, Request, RequestId
from holdfast.wire.protocol.methods import PROCESS_CLOSED, PROCESS_EXITED, PROCESS_OUTPUT
from holdfast.wire.rpc.decode import decode_message
from holdfast.wire.rpc.encode import encode_error, encode_notification, encode_result
from holdfast.wire.transports.memory import connect_memory
from holdfast.wire.transports.transport import Receiver, Transport

__all__ = ["LIMIT", "SESSION_ID", "Answer", "ScriptedPeer", "ScriptedServer"]

LIMIT = 5.0
"""Seconds before a wait fails."""

SESSION_ID = "3f9c2a50-0000-4000-8000-000000000001"
"""The session of every connection, unless the test answers `initialize` differently."""

Answer = Callable[["ScriptedPeer", Request], None]
"""Function that answers a request when it arrives, or leaves it to the test."""


class ScriptedPeer:
    """
    The server's side of one connection.

    Messages of the client are recorded in `messages`. A request without an entry in `answers`
    waits there until the test takes and answers it.
    """

    def __init__(self, transport: Transport, answers: Mapping[str, Answer]) -> None:
        self.transport = transport
        self.messages: list[Message] = []
        """All messages of the client, in order."""
        self.lost_reason: str | None = None
        """Set when the connection has ended."""
        self.sending_paused = False
        """True while the client does not read."""
        self._answers = answers
        self._untaken: list[Request] = []
        self._changed = asyncio.Event()

    # -- messages of the client

    def requests(self, method: str) -> list[Request]:
        """Return all requests of one method so far, answered or not."""
        return [said for said in self.messages if type(said) is Request and said.method == method]

    async def take(self, method: str) -> Request:
        """
        Wait for the next unanswered request of a method, and return it.

        Raises:
            TimeoutError: It did not arrive in time.
        """

        def find() -> Request | None:
            return next((said for said in self._untaken if said.method == method), None)

        await self.until(lambda: find() is not None)
        request = find()
        # `until` has waited for it.
        assert request is not None
        self._untaken.remove(request)
        return request

    async def notified(self, method: str) -> Notification:
        """
        Wait for the first notification of a method, and return it.

        Raises:
            TimeoutError: It did not arrive in time.
        """

        def find() -> Notification | None:
            for said in self.messages:
                if type(said) is Notification and said.method == method:
                    return said
            return None

        await self.until(lambda: find() is not None)
        found = find()
        # `until` has waited for it.
        assert found is not None
        return found

    async def until(self, holds: Callable[[], bool]) -> None:
        """
        Wait until a condition holds. It is checked after each message, and when the client pauses.

        Raises:
            TimeoutError: It did not hold in time.
        """
        async with asyncio.timeout(LIMIT):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    # -- messages to the client

    def reply(self, request: Request | RequestId, result: object) -> None:
        """Answer a request."""
        self.transport.send(encode_result(_id(request), result))

    def fail(
        self, request: Request | RequestId, code: int, message: str, data: ErrorData | None = None
    ) -> None:
        """Answer a request with an error; with `data`, as a Holdfast server does."""
        self.transport.send(encode_error(_id(request), code, message, data))

    def notify(self, method: str, params: object) -> None:
        """Send the client a notification."""
        self.transport.send(encode_notification(method, params))

    def ask(self, request_id: RequestId, method: str, params: object = None) -> None:
        """Send the client a request; its answer is recorded in `messages`."""
        self.say({"id": request_id, "method": method, "params": params})

    def say(self, message: object) -> None:
        """Send any message; bytes are sent unchanged."""
        encoded = message if isinstance(message, bytes) else msgspec.json.encode(message)
        self.transport.send(encoded)

    def output(self, process_id: str, seq: int, data: bytes, stream: str = "stdout") -> None:
        """Report output of a process."""
        chunk = pybase64.b64encode(data).decode("ascii")
        params = {"processId": process_id, "seq": seq, "stream": stream, "chunk": chunk}
        self.notify(PROCESS_OUTPUT.name, params)

    def exited(self, process_id: str, seq: int, exit_code: int = 0) -> None:
        """Report that a process has exited."""
        params = {"processId": process_id, "seq": seq, "exitCode": exit_code}
        self.notify(PROCESS_EXITED.name, {**params, "sandboxDenied": False})

    def closed(self, process_id: str, seq: int) -> None:
        """Report that a process is closed."""
        self.notify(PROCESS_CLOSED.name, {"processId": process_id, "seq": seq})

    def cut(self) -> None:
        """End the connection immediately."""
        self.transport.abort()

    # -- Receiver

    def received(self, message: bytes) -> None:
        said = decode_message(message)
        self.messages.append(said)
        if type(said) is Request:
            answer = self._answers.get(said.method)
            if answer is None:
                self._untaken.append(said)
            else:
                answer(self, said)
        self._changed.set()

    def lost(self, reason: str) -> None:
        self.lost_reason = reason
        self._changed.set()

    def pause_sending(self) -> None:
        self.sending_paused = True
        self._changed.set()

    def resume_sending(self) -> None:
        self.sending_paused = False
        self._changed.set()


class ScriptedServer(Target):
    """
    A target for `ExecServerClient.connect` with the test as the server.

    It completes the handshake of every connection, with `SESSION_ID`, unless the test changes or
    removes entries of `answers`.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {"initialize": _initialize}
        """Functions that answer requests when they arrive, by method."""
        self.peers: list[ScriptedPeer] = []
        """All connections, oldest first."""
        self.refusing = 0
        """Number of coming connection attempts that will fail."""
        self.refused = 0
        """Number of failed connection attempts."""
        self._connected = asyncio.Event()

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        if self.refusing:
            # Counted down, so that a test can refuse only the first attempts.
            self.refusing -= 1
            self.refused += 1
            raise ConnectFailed("the scripted server refuses this attempt")

        def theirs(transport: Transport) -> ScriptedPeer:
            peer = ScriptedPeer(transport, self.answers)
            self.peers.append(peer)
            return peer

        transport = connect_memory(accept, theirs)
        self._connected.set()
        return transport

    async def peer(self, number: int) -> ScriptedPeer:
        """
        Wait for a connection, and return it. Numbers count from 0.

        Raises:
            TimeoutError: It was not opened in time.
        """
        async with asyncio.timeout(LIMIT):
            while len(self.peers) <= number:
                self._connected.clear()
                await self._connected.wait()
        return self.peers[number]


def _initialize(peer: ScriptedPeer, request: Request) -> None:
    shell = {"name": "sh", "path": "/bin/sh"}
    peer.reply(request, {"sessionId": SESSION_ID, "environmentInfo": {"shell": shell}})


def _id(request: Request | RequestId) -> RequestId:
    return request.id if isinstance(request, Request) else request
