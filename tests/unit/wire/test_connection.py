"""A conversation over a transport: calls, what the peer says, and its end."""

import asyncio
import json
from typing import Any

import pytest

from holdfast.base.errors import (
    ConnectionLost,
    MalformedMessage,
    RemoteError,
    RemoteProtocolError,
    Unsupported,
)
from holdfast.wire.connection import MAX_UNREAD, Connection
from holdfast.wire.protocol.envelope import Notification, Request
from holdfast.wire.protocol.methods import INITIALIZED, PROCESS_TERMINATE
from holdfast.wire.protocol.process import TerminateParams, TerminateResponse
from holdfast.wire.protocol.wire_types import Empty
from holdfast.wire.transports.memory import connect_memory
from holdfast.wire.transports.transport import Receiver, Transport
from tests.unit.fakes import LIMIT, FakeTransport

PARAMS = TerminateParams(process_id="p")


class Handler:
    """Writes down what the peer says."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.raw = b""
        self.ended = asyncio.Event()

    def request(self, request: Request) -> None:
        self.calls.append(request)

    def notification(self, notification: Notification) -> None:
        self.calls.append(notification)

    def take_raw(self, message: bytes) -> bool:
        return message == self.raw

    def malformed(self, error: MalformedMessage) -> None:
        self.calls.append(str(error))

    def lost(self, reason: str) -> None:
        self.calls.append(("lost", reason))
        self.ended.set()

    def pause_sending(self) -> None:
        self.calls.append("pause")

    def resume_sending(self) -> None:
        self.calls.append("resume")


class Talk:
    """A connection whose other side is played by hand."""

    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.handler = Handler()
        self.connection = Connection(self.transport, self.handler, take_raw=self.handler.take_raw)

    def say(self, **message: Any) -> None:
        self.connection.received(json.dumps(message).encode())

    async def ask(self) -> "asyncio.Task[TerminateResponse]":
        """Make a call that is in flight when this returns."""
        before = len(self.transport.sent)
        task = asyncio.ensure_future(self.connection.call(PROCESS_TERMINATE, PARAMS))
        await self.transport.until(lambda: len(self.transport.sent) > before)
        return task


@pytest.fixture
async def talk() -> Talk:
    return Talk()


async def outcome(task: "asyncio.Task[TerminateResponse]") -> TerminateResponse:
    async with asyncio.timeout(LIMIT):
        return await task


# Calls.


async def test_a_call_is_a_request_and_its_reply_the_result(talk: Talk) -> None:
    call = await talk.ask()
    assert talk.transport.messages == [
        {"id": 1, "method": "process/terminate", "params": {"processId": "p"}}
    ]
    assert talk.connection.calls_in_flight == 1
    talk.say(id=1, result={"running": True})
    assert await outcome(call) == TerminateResponse(running=True)
    assert talk.connection.calls_in_flight == 0


@pytest.mark.requirement("client.pipelining")
async def test_calls_are_answered_in_any_order(talk: Talk) -> None:
    first, second = await talk.ask(), await talk.ask()
    talk.say(id=2, result={"running": False})
    talk.say(id=1, result={"running": True})
    assert (await outcome(first)).running
    assert not (await outcome(second)).running


async def test_a_refusal_carries_its_code_its_text_and_its_data(talk: Talk) -> None:
    call = await talk.ask()
    talk.say(id=1, error={"code": -32600, "message": "not now", "data": [1]})
    with pytest.raises(RemoteError) as caught:
        await outcome(call)
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32600, "not now", [1])
    assert str(caught.value) == "exec-server rejected request (-32600): not now"
    assert not isinstance(caught.value, Unsupported)


async def test_a_method_the_peer_does_not_know_is_unsupported(talk: Talk) -> None:
    call = await talk.ask()
    talk.say(id=1, error={"code": -32601, "message": "what?"})
    with pytest.raises(Unsupported):
        await outcome(call)


async def test_an_answer_of_the_wrong_type_breaks_the_protocol(talk: Talk) -> None:
    call = await talk.ask()
    talk.say(id=1, result={"running": "yes"})
    with pytest.raises(RemoteProtocolError, match="failed to serialize or deserialize"):
        await outcome(call)


@pytest.mark.requirement("client.transport-closed-error")
async def test_a_peer_that_knows_of_the_end_before_us_ends_the_connection(talk: Talk) -> None:
    call = await talk.ask()
    talk.say(id=1, error={"code": -32000, "message": "worded otherwise"})  # the code tells
    with pytest.raises(ConnectionLost):
        await outcome(call)
    assert talk.connection.ended
    assert "abort" in talk.transport.calls


async def test_a_call_that_is_given_up_is_in_flight_until_its_answer_comes(talk: Talk) -> None:
    call = await talk.ask()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outcome(call)
    assert talk.connection.calls_in_flight == 1
    talk.say(id=1, result={"running": True})
    assert talk.connection.calls_in_flight == 0
    talk.say(id=1, result={"running": True})  # once more, and ignored
    assert talk.transport.calls == []


@pytest.mark.requirement("client.late-reply")
async def test_an_answer_before_the_end_still_counts(talk: Talk) -> None:
    call = await talk.ask()
    talk.say(id=1, result={"running": True})
    talk.connection.lost("gone")
    assert (await outcome(call)).running


async def test_a_lost_connection_fails_the_calls_in_flight_and_those_to_come(talk: Talk) -> None:
    call = await talk.ask()
    talk.connection.lost("gone")
    talk.connection.lost("twice")
    with pytest.raises(ConnectionLost, match="exec-server transport disconnected"):
        await outcome(call)
    with pytest.raises(ConnectionLost, match="exec-server transport closed"):
        await talk.connection.call(PROCESS_TERMINATE, PARAMS)
    assert talk.handler.calls == [("lost", "gone")]
    assert talk.connection.ended


async def test_an_abandoned_connection_has_ended_when_the_call_returns(talk: Talk) -> None:
    call = await talk.ask()
    talk.connection.abandon("enough")
    assert talk.connection.ended
    assert talk.transport.calls == ["abort"]
    with pytest.raises(ConnectionLost):
        await outcome(call)


# What the peer says.


async def test_requests_and_notifications_go_to_the_handler(talk: Talk) -> None:
    talk.say(id="x", method="ask", params=[1])
    talk.say(method="tell")
    assert talk.handler.calls == [Request("x", "ask", [1]), Notification("tell")]


async def test_what_cannot_be_read_goes_to_the_handler(talk: Talk) -> None:
    talk.connection.received(b"[]")
    assert talk.handler.calls == ["expected a JSON-RPC object"]
    assert talk.transport.calls == []


async def test_a_handler_may_take_a_message_before_it_is_read(talk: Talk) -> None:
    talk.handler.raw = b"{not even json"
    talk.connection.received(b"{not even json")
    assert talk.handler.calls == []


@pytest.mark.requirement("envelope.violation.reply")
async def test_an_answer_to_nothing_ends_the_connection(talk: Talk) -> None:
    talk.say(id=7, result=1)
    assert talk.transport.calls == ["abort"]
    assert talk.handler.calls == []


async def test_what_we_say_is_encoded(talk: Talk) -> None:
    talk.connection.reply(1, Empty())
    talk.connection.fail("x", -32600, "no")
    talk.connection.notify(INITIALIZED, Empty())
    talk.connection.send_parts([b'{"a"', b":1}"])
    talk.connection.close()
    assert talk.transport.messages == [
        {"id": 1, "result": {}},
        {"error": {"code": -32600, "message": "no"}, "id": "x"},
        {"method": "initialized", "params": {}},
        {"a": 1},
    ]
    assert talk.transport.calls == ["close"]


# A peer that does not read.


async def test_a_pause_is_passed_on(talk: Talk) -> None:
    talk.connection.pause_sending()
    talk.connection.resume_sending()
    assert talk.handler.calls == ["pause", "resume"]
    assert talk.transport.calls == []


async def test_a_peer_that_asks_and_never_reads_is_not_heard_any_more(talk: Talk) -> None:
    answer = "x" * (MAX_UNREAD // 4)
    for _ in range(8):
        talk.connection.reply(1, answer)
    assert talk.transport.calls == []  # it reads
    talk.connection.pause_sending()
    for _ in range(3):
        talk.connection.reply(1, answer)
    assert talk.transport.calls == []  # it may still say something that matters
    talk.connection.reply(1, answer)
    talk.connection.reply(1, answer)
    assert talk.transport.calls == ["pause"]
    talk.connection.resume_sending()
    assert talk.transport.calls == ["pause", "resume"]
    talk.connection.reply(1, answer)
    talk.connection.pause_sending()
    talk.connection.reply(1, answer)
    assert talk.transport.calls == ["pause", "resume"]  # counted anew


async def test_receiving_goes_on_when_every_reason_to_wait_is_gone(talk: Talk) -> None:
    talk.connection.hold_receiving("one")
    talk.connection.hold_receiving("two")
    talk.connection.hold_receiving("two")
    talk.connection.release_receiving("one")
    talk.connection.release_receiving("three")
    assert talk.transport.calls == ["pause"]
    talk.connection.release_receiving("two")
    assert talk.transport.calls == ["pause", "resume"]


# Two of them.


async def test_two_connections_in_one_process_talk_to_each_other() -> None:
    class Server(Handler):
        connection: Connection

        def request(self, request: Request) -> None:
            self.connection.reply(request.id, TerminateResponse(running=True))

    server, client = Server(), Handler()

    def serve(transport: Transport) -> Receiver:
        server.connection = Connection(transport, server)
        return server.connection

    connections: list[Connection] = []

    def connect(transport: Transport) -> Receiver:
        connections.append(Connection(transport, client))
        return connections[0]

    connect_memory(connect, serve)
    (near,) = connections
    async with asyncio.timeout(LIMIT):
        assert (await near.call(PROCESS_TERMINATE, PARAMS)).running
    near.close()
    async with asyncio.timeout(LIMIT):
        await client.ended.wait()
        await server.ended.wait()
