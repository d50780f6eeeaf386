"""A transport as the streams of the SDK: order, bounds, ends, and what is no message."""

import asyncio
import json

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, jsonrpc_message_adapter

from holdfast.front.mcp.stream_pair import StreamPair


class Sent:
    """A transport that remembers what it was asked for."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.paused = False
        self.closed = False

    def send(self, message: bytes) -> None:
        self.messages.append(message)

    def pause_receiving(self) -> None:
        self.paused = True

    def resume_receiving(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closed = True


def wired() -> tuple[Sent, StreamPair]:
    sent = Sent()
    return sent, StreamPair(sent)  # type: ignore[arg-type]


def ping(number: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}).encode()


async def test_messages_come_in_order_and_then_the_end() -> None:
    _, wire = wired()
    for number in range(3):
        wire.received(ping(number))
    wire.lost("gone")
    ids = [each.message.id async for each in wire.incoming]  # type: ignore[union-attr]
    assert ids == [0, 1, 2]
    with pytest.raises(anyio.EndOfStream):
        await wire.incoming.receive()


async def test_a_client_that_sends_too_much_has_to_wait() -> None:
    sent, wire = wired()
    for number in range(256):
        assert not sent.paused
        wire.received(ping(number))
    assert sent.paused
    for _ in range(256 - 64):
        await wire.incoming.receive()
    assert not sent.paused


def paused(sent: Sent) -> bool:
    """Return True if the client has to wait; type checkers take an attribute for constant."""
    return sent.paused


def answer(number: int) -> SessionMessage:
    text = json.dumps({"jsonrpc": "2.0", "id": number, "result": {}})
    return SessionMessage(jsonrpc_message_adapter.validate_json(text))


async def taken(wire: StreamPair, line: bytes) -> None:
    """Receive a line, and let the SDK have it at once."""
    wire.received(line)
    await wire.incoming.receive()


@pytest.mark.parametrize("how", ["answered", "cancelled"])
async def test_a_client_whose_requests_are_all_open_has_to_wait(how: str) -> None:
    sent, wire = wired()
    for number in range(2_048):
        assert not paused(sent)
        await taken(wire, ping(number))
    assert paused(sent)
    if how == "answered":
        await wire.outgoing.send(answer(7))
    else:
        params = {"requestId": "7"}
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        await taken(wire, json.dumps(cancel).encode())
    assert not paused(sent)
    # One that was ended before does not count again.
    await wire.outgoing.send(answer(7))
    await taken(wire, ping(9_999))
    assert paused(sent)


async def test_requests_that_are_open_are_bounded_in_bytes() -> None:
    sent, wire = wired()
    big = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"a": "b" * (33 << 20)}})
    await taken(wire, big.encode())
    assert not paused(sent)
    await taken(wire, big.encode())
    assert paused(sent)
    await wire.outgoing.send(answer(1))
    assert not paused(sent)


async def test_complaints_that_nobody_reads_are_bounded() -> None:
    sent, wire = wired()
    wire.pause_sending()
    for _ in range(256):
        assert not paused(sent)
        wire.received(b"nonsense")
    assert paused(sent)
    assert not sent.messages
    wire.resume_sending()
    assert not paused(sent)
    assert len(sent.messages) == 256


async def test_a_sender_waits_for_a_client_that_does_not_read() -> None:
    sent, wire = wired()
    message = SessionMessage(jsonrpc_message_adapter.validate_json(ping(1)))
    wire.pause_sending()
    sending = asyncio.ensure_future(wire.outgoing.send(message))
    await asyncio.sleep(0)
    assert not sent.messages
    wire.resume_sending()
    await sending
    assert [json.loads(each)["id"] for each in sent.messages] == [1]
    wire.pause_sending()
    blocked = asyncio.ensure_future(wire.outgoing.send(message))
    await asyncio.sleep(0)
    wire.lost("gone")
    with pytest.raises(anyio.ClosedResourceError):
        await blocked


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"{", -32700, None),
        (b"\xff", -32700, None),
        (b"[1]", -32600, None),
        (b"1", -32600, None),
        (b'{"id": true, "method": 1}', -32600, None),
        (b'{"id": "a", "method": 1}', -32600, "a"),
    ],
)
async def test_what_is_no_message_is_answered(
    line: bytes, code: int, request_id: str | None
) -> None:
    sent, wire = wired()
    wire.received(line)
    (answer,) = map(json.loads, sent.messages)
    assert answer["error"]["code"] == code
    assert answer["id"] == request_id


@pytest.mark.parametrize("result", [b'"text"', b"null"])
async def test_an_answer_that_is_none_is_told_to_who_waits_for_it(result: bytes) -> None:
    sent, wire = wired()
    wire.received(b'{"jsonrpc": "2.0", "id": 7, "result": ' + result + b"}")
    answered = await wire.incoming.receive()
    assert isinstance(answered, SessionMessage)
    assert isinstance(answered.message, JSONRPCError)
    assert answered.message.id == 7
    # Not with its id, which the client may have used for a request of its own.
    assert json.loads(sent.messages[0])["id"] is None


async def test_an_empty_line_is_no_message() -> None:
    sent, wire = wired()
    wire.received(b"  ")
    assert not sent.messages


async def test_the_end_of_the_server_closes_the_transport() -> None:
    sent, wire = wired()
    await wire.outgoing.aclose()
    assert sent.closed
