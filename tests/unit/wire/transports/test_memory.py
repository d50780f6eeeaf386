"""Two receivers back to back."""

import asyncio

import pytest

from holdfast.wire.transports.memory import connect_memory
from holdfast.wire.transports.transport import HIGH_WATER, LOW_WATER
from tests.unit.wire.transports.recorder import Recorder


class Pair:
    """Two ends that are connected."""

    def __init__(self) -> None:
        self.near, self.far = Recorder(), Recorder()
        transport = connect_memory(self.near.accept, self.far.accept)
        assert transport is self.near.transport


@pytest.fixture
async def pair() -> Pair:
    return Pair()


async def test_messages_cross_in_order_and_in_both_directions(pair: Pair) -> None:
    pair.near.line.send(b"one")
    pair.near.line.send_parts([b"tw", b"o"])
    pair.far.line.send(b"back")
    assert pair.far.messages == []  # never inside of the call
    assert await pair.far.count(2) == [b"one", b"two"]
    assert await pair.near.count(1) == [b"back"]


async def test_a_transport_tells_its_kind(pair: Pair) -> None:
    assert pair.near.line.kind == "memory"
    assert pair.near.line.label == "exec-server memory"


async def test_an_end_that_pauses_gets_its_messages_later(pair: Pair) -> None:
    def pause(message: bytes) -> None:
        if message == b"two":
            pair.far.line.pause_receiving()

    pair.far.on_message = pause
    for message in (b"one", b"two", b"three"):
        pair.near.line.send(message)
    await pair.far.count(2)
    pair.near.line.send(b"four")
    await asyncio.sleep(0)
    assert pair.far.messages == [b"one", b"two"]
    pair.far.line.resume_receiving()
    assert await pair.far.count(4) == [b"one", b"two", b"three", b"four"]


async def test_a_sender_is_asked_to_pause_while_the_other_end_does_not_read(pair: Pair) -> None:
    pair.far.line.pause_receiving()
    piece = bytes(LOW_WATER)
    for _ in range(HIGH_WATER // LOW_WATER):
        pair.near.line.send(piece)
    assert pair.near.pauses == []
    pair.near.line.send(b"x")
    assert pair.near.pauses == ["pause"]
    pair.near.line.send(b"y")
    assert pair.near.pauses == ["pause"]
    pair.far.line.resume_receiving()
    await pair.near.until(lambda: pair.near.pauses == ["pause", "resume"])


async def test_both_ends_hear_of_a_close_after_what_was_sent_before(pair: Pair) -> None:
    pair.near.line.send(b"last")
    pair.near.line.close()
    assert pair.near.ends == []  # never inside of the call
    await pair.far.end()
    await pair.near.end()
    assert pair.far.messages == [b"last"]


async def test_an_end_that_pauses_hears_of_a_close_after_its_messages(pair: Pair) -> None:
    pair.far.line.pause_receiving()
    pair.near.line.send(b"last")
    pair.near.line.close()
    await pair.near.end()
    assert pair.far.ends == []
    pair.far.line.resume_receiving()
    await pair.far.end()
    assert pair.far.messages == [b"last"]


async def test_an_abort_loses_what_was_under_way(pair: Pair) -> None:
    pair.far.line.pause_receiving()
    pair.near.line.send(b"lost")
    pair.near.line.abort()
    await pair.far.end()
    await pair.near.end()
    pair.far.line.resume_receiving()
    await asyncio.sleep(0)
    assert pair.far.messages == []


async def test_the_end_is_told_once_and_nothing_comes_after_it(pair: Pair) -> None:
    pair.near.line.close()
    pair.near.line.abort()
    pair.far.line.close()
    await pair.near.end()
    await pair.far.end()
    pair.near.line.send(b"late")
    pair.far.line.send(b"late")
    await asyncio.sleep(0)
    assert (len(pair.near.ends), len(pair.far.ends)) == (1, 1)
    assert pair.near.messages == pair.far.messages == []
