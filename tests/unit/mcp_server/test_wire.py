"""A transport as the streams of the SDK: order, bounds, ends, and what is no message."""

import asyncio
import json

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from holdfast.mcp_server.wire import StreamPair


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


async def test_an_empty_line_is_no_message() -> None:
    sent, wire = wired()
    wire.received(b"  ")
    assert not sent.messages


async def test_the_end_of_the_server_closes_the_transport() -> None:
    sent, wire = wired()
    await wire.outgoing.aclose()
    assert sent.closed
