"""Contract of every transport: whole messages, in order, back-pressure, and one end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from holdfast.server.listen import make_gate
from holdfast.wire.transports.line_transport import LineTransport
from holdfast.wire.transports.memory import connect_memory
from holdfast.wire.transports.transport import MAX_MESSAGE, Receiver, Transport
from holdfast.wire.transports.unix import connect_unix, listen_unix
from holdfast.wire.transports.websocket import MAX_FRAME
from holdfast.wire.transports.websocket_client import connect_websocket
from holdfast.wire.transports.websocket_listener import listen_websocket
from tests.e2e.wire import LIMIT


class End:
    """One end of a connection, and what it was told."""

    def __init__(self) -> None:
        self.transport: Transport
        self.messages: list[bytes] = []
        self.lost_reasons: list[str] = []
        self.paused = False
        self._changed = asyncio.Event()
        self.on_message: Callable[[bytes], None] = self.messages.append

    def accept(self, transport: Transport) -> Receiver:
        self.transport = transport
        self._changed.set()
        return self

    @property
    def connected(self) -> bool:
        return hasattr(self, "transport")

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def received(self, message: bytes) -> None:
        self.on_message(message)
        self._changed.set()

    def lost(self, reason: str) -> None:
        self.lost_reasons.append(reason)
        self._changed.set()

    def pause_sending(self) -> None:
        assert not self.paused
        self.paused = True
        self._changed.set()

    def resume_sending(self) -> None:
        assert self.paused
        self.paused = False
        self._changed.set()


Pair = tuple[End, End]
Connect = Callable[[End, End, AsyncExitStack, Path], Awaitable[None]]


async def over_memory(near: End, far: End, stack: AsyncExitStack, folder: Path) -> None:
    connect_memory(near.accept, far.accept)


async def over_socketpair(near: End, far: End, stack: AsyncExitStack, folder: Path) -> None:
    loop = asyncio.get_running_loop()
    for end, sock in zip((near, far), socket.socketpair(), strict=True):

        def lines(end: End = end) -> LineTransport:
            return LineTransport("stdio", end.accept)

        await loop.create_connection(lines, sock=sock)


async def over_unix(near: End, far: End, stack: AsyncExitStack, folder: Path) -> None:
    path = str(folder / "s")
    stack.callback((await listen_unix(path, far.accept)).close)
    await connect_unix(path, near.accept)


async def over_websocket(near: End, far: End, stack: AsyncExitStack, folder: Path) -> None:
    server = await listen_websocket("127.0.0.1", 0, gate=make_gate(None), accept=far.accept)
    stack.callback(server.close)
    await connect_websocket(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", near.accept)


KINDS = {
    "memory": over_memory,
    "lines": over_socketpair,
    "unix": over_unix,
    "websocket": over_websocket,
}


@pytest.fixture(params=KINDS)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    """A client's end and a server's end, of each kind in turn."""
    near, far = End(), End()
    async with AsyncExitStack() as stack:
        await KINDS[request.param](near, far, stack, tmp_path)
        await far.until(lambda: far.connected)
        try:
            yield near, far
        finally:
            for end in (near, far):
                end.transport.abort()
                await end.until(lambda end=end: bool(end.lost_reasons))  # type: ignore[misc]
            await asyncio.sleep(0)  # sockets are closed a round after that was told


@pytest.fixture(params=["to the server", "to the client"])
def ends(request: pytest.FixtureRequest, pair: Pair) -> Pair:
    """The sending and the receiving end, in both directions."""
    return pair if request.param == "to the server" else (pair[1], pair[0])


def message(size: int, number: int = 0) -> bytes:
    """JSON text of a size, as transports may look at what they carry."""
    return b'"' + b"%d" % number + b"x" * (size - 2 - len(str(number))) + b'"'


async def test_messages_come_whole_and_in_order(ends: Pair) -> None:
    sender, receiver = ends
    sent = [message(10 + number % 300, number) for number in range(2000)]
    for text in sent:
        sender.transport.send(text)
    await receiver.until(lambda: len(receiver.messages) == len(sent))
    assert receiver.messages == sent


@pytest.mark.parametrize("size", [3, 125, 126, 8191, 8193, 65535, 65536, 70000, 5 << 20])
async def test_messages_of_any_size_pass(ends: Pair, size: int) -> None:
    sender, receiver = ends
    sent = [message(size, 1), message(size, 2), b"{}"]
    for text in sent:
        sender.transport.send(text)
    await receiver.until(lambda: len(receiver.messages) == len(sent))
    assert receiver.messages == sent


async def test_parts_arrive_as_one_message(ends: Pair) -> None:
    sender, receiver = ends
    for size in (10, 100_000):
        sender.transport.send_parts([b'"', b"a" * size, b'"'])
    await receiver.until(lambda: len(receiver.messages) == 2)
    assert receiver.messages == [b'"' + b"a" * size + b'"' for size in (10, 100_000)]


async def test_answers_given_while_receiving_keep_their_order(ends: Pair) -> None:
    sender, receiver = ends

    def echo(text: bytes) -> None:
        receiver.transport.send(text)
        receiver.transport.send_parts([text])

    receiver.on_message = echo
    sent = [message(20, number) for number in range(500)]
    for text in sent:
        sender.transport.send(text)
    await sender.until(lambda: len(sender.messages) == 2 * len(sent))
    assert sender.messages == [text for text in sent for _ in range(2)]


async def test_a_receiver_that_pauses_makes_the_sender_wait_and_loses_nothing(ends: Pair) -> None:
    sender, receiver = ends
    receiver.transport.pause_receiving()
    sent = [message(64 << 10, number) for number in range(256)]
    for text in sent:
        sender.transport.send(text)
    await sender.until(lambda: sender.paused)
    assert len(receiver.messages) < len(sent)
    receiver.transport.resume_receiving()
    await receiver.until(lambda: len(receiver.messages) == len(sent))
    assert receiver.messages == sent
    await sender.until(lambda: not sender.paused)


async def test_a_receiver_that_pauses_can_still_send(ends: Pair) -> None:
    sender, receiver = ends
    receiver.transport.pause_receiving()
    receiver.transport.send(b'"hello"')
    await sender.until(lambda: sender.messages == [b'"hello"'])
    receiver.transport.resume_receiving()


async def test_what_was_sent_before_the_end_arrives(ends: Pair) -> None:
    sender, receiver = ends
    sent = [message(64 << 10, number) for number in range(64)]
    for text in sent:
        sender.transport.send(text)
    sender.transport.close()
    await receiver.until(lambda: bool(receiver.lost_reasons))
    assert receiver.messages == sent


async def test_nothing_that_is_sent_after_a_close_arrives(ends: Pair) -> None:
    sender, receiver = ends
    receiver.transport.pause_receiving()
    sent = [message(64 << 10, number) for number in range(256)]
    for text in sent:
        sender.transport.send(text)
    sender.transport.close()
    # Large and small ones alike: a peer must not get the last message without the one before.
    sender.transport.send(b"{}")
    sender.transport.send(message(64 << 10))
    sender.transport.send_parts([b'"', b"a" * 100_000, b'"'])
    receiver.transport.resume_receiving()
    await receiver.until(lambda: bool(receiver.lost_reasons))
    assert receiver.messages == sent


async def test_what_was_sent_before_the_end_waits_for_a_receiver_that_pauses(ends: Pair) -> None:
    sender, receiver = ends
    receiver.transport.pause_receiving()
    sender.transport.send(b'"last"')
    sender.transport.close()
    await sender.until(lambda: bool(sender.lost_reasons))
    assert receiver.messages == []
    receiver.transport.resume_receiving()
    await receiver.until(lambda: bool(receiver.lost_reasons))
    assert receiver.messages == [b'"last"']


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_the_end_is_told_once_on_both_sides(ends: Pair, how: str) -> None:
    sender, receiver = ends
    getattr(sender.transport, how)()
    for end in (sender, receiver):
        await end.until(lambda end=end: bool(end.lost_reasons))  # type: ignore[misc]
    # Nothing of this is an error, nor news.
    for end in (sender, receiver):
        end.transport.send(b"{}")
        end.transport.send_parts([b"{", b"}"])
        end.transport.pause_receiving()
        end.transport.resume_receiving()
        end.transport.close()
        end.transport.abort()
    for _ in range(10):
        await asyncio.sleep(0)
    assert [len(end.lost_reasons) for end in (sender, receiver)] == [1, 1]
    assert sender.messages == receiver.messages == []


@pytest.mark.slow
async def test_a_message_above_the_limit_ends_the_connection(pair: Pair) -> None:
    near, far = pair
    limit = {"memory": None, "websocket": MAX_FRAME}.get(near.transport.kind, MAX_MESSAGE)
    if limit is None:
        return  # nothing is read, so there is nothing to limit
    near.transport.send(message(limit))  # the last that fits
    await far.until(lambda: len(far.messages) == 1)
    assert len(far.messages[0]) == limit
    near.transport.send(message(limit + 1))
    await far.until(lambda: bool(far.lost_reasons))
    await near.until(lambda: bool(near.lost_reasons))
    assert [len(text) for text in far.messages] == [limit]
