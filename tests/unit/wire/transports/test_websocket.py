"""Messages of a server that are sent together, and those that are not."""

import asyncio
from typing import cast

import pytest
from picows import WSMsgType, WSTransport

from holdfast.wire.transports.transport import Receiver
from holdfast.wire.transports.websocket import WebSocketTransport


class Socket:
    """A connection of picows that remembers each write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.underlying_transport = self

    def send(self, kind: WSMsgType, message: bytes) -> None:
        self.write(bytes((0x81, len(message))) + message)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False


@pytest.fixture
def socket() -> Socket:
    return Socket()


@pytest.fixture
async def transport(socket: Socket) -> WebSocketTransport:
    loop = asyncio.get_running_loop()
    made = WebSocketTransport(loop, 10, lambda _: cast(Receiver, None), is_client=False)
    made._ws = cast(WSTransport, socket)
    return made


async def test_messages_of_one_turn_are_sent_together(
    socket: Socket, transport: WebSocketTransport
) -> None:
    transport.send(b"exited")
    transport.send(b"closed")
    assert socket.written == []
    await asyncio.sleep(0)
    assert socket.written == [b"\x81\x06exited\x81\x06closed"]


async def test_a_message_that_comes_alone_is_sent_at_once(
    socket: Socket, transport: WebSocketTransport
) -> None:
    transport.send(b"answer", alone=True)
    transport.send_parts([b"in", b"parts"], alone=True)
    assert socket.written == [b"\x81\x06answer", b"\x81\x07inparts"]


async def test_a_message_overtakes_none_that_is_kept_back(
    socket: Socket, transport: WebSocketTransport
) -> None:
    transport.send(b"event")
    transport.send(b"answer", alone=True)
    await asyncio.sleep(0)
    assert socket.written == [b"\x81\x05event\x81\x06answer"]
