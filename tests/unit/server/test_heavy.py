"""Messages with thousands of values, which are decoded in a thread."""

import asyncio
import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.base.errors import InvalidParams
from holdfast.wire import connection
from holdfast.wire.protocol.envelope import Request
from holdfast.wire.rpc import decode
from holdfast.wire.rpc.large_params import may_have_many_values
from tests.unit.fakes import FakeTransport
from tests.unit.server.serving import Client

WORDS = ["x" * 20] * 10_000
"""More values, and more bytes, than a message has that is decoded at once."""


def heavy(method: str, **params: object) -> bytes:
    message = json.dumps({"id": 1000, "method": method, "params": params}).encode()
    assert may_have_many_values(message)
    return message


def test_only_many_values_are_heavy() -> None:
    assert not may_have_many_values(json.dumps({"data": "A" * (1 << 20)}).encode())
    assert not may_have_many_values(json.dumps(list(range(1000))).encode())
    assert may_have_many_values(json.dumps([{"a": "b" * 20}] * 5000).encode())


async def test_what_comes_after_it_waits(client: Client) -> None:
    # Refused without a look at the disk, so in the same turn in which it is decoded.
    client.connection.received(
        heavy("process/start", processId="p", argv=WORDS, cwd="file:///C:/x", env={}, tty=False)
    )
    later = client.ask("environment/status")
    assert client.transport.calls == ["pause"]
    assert later not in client.transport.answers
    assert await client.transport.answer(later) == {"status": "ready"}
    assert list(client.transport.answers)[-2:] == [1000, later]
    assert client.transport.calls == ["pause", "resume"]
    assert client.transport.answers[1000] == (
        -32602,
        "cwd URI `file:///C:/x` is not valid on this exec-server host:"
        " 'file:///C:/x' is invalid on 'linux'",
    )


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"processId": 7, "argv": WORDS}, "invalid type: number, expected a string"),
        ({"processId": "p", "argv": [*WORDS, 7]}, "invalid type: number, expected a string"),
    ],
)
async def test_it_is_refused_as_any_other(
    client: Client, params: dict[str, object], error: str
) -> None:
    client.connection.received(heavy("process/start", **params))
    assert await client.transport.answer(1000) == (-32602, error)


async def test_an_unknown_method_is_told(client: Client) -> None:
    client.connection.received(heavy("nope", words=WORDS))
    text = "exec-server stub does not implement `nope` yet"
    assert await client.transport.answer(1000) == (-32601, text)


async def test_the_values_of_a_large_text_are_counted_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would go through the whole message once more.
    monkeypatch.delattr(decode, "_check_value_count")
    text = "x" * (2 * decode.MAX_VALUES)
    light = json.dumps({"id": 1000, "method": "nope", "params": text}).encode()
    client.connection.received(light)
    refused = "exec-server stub does not implement `nope` yet"
    assert await client.transport.answer(1000) == (-32601, refused)


async def test_too_many_values_are_refused(client: Client) -> None:
    client.connection.received(heavy("nope", numbers=[7] * decode.MAX_VALUES))
    refused = await client.transport.answer(-1)
    assert isinstance(refused, tuple)
    assert f"exceeds the limit of {decode.MAX_VALUES} JSON values" in refused[1]


async def test_one_that_cannot_be_read_is_told_in_its_turn(client: Client) -> None:
    client.connection.received(heavy("process/start", words=WORDS)[:-2])
    later = client.ask("environment/status")
    await client.transport.answer(later)
    assert list(client.transport.answers)[-2:] == [-1, later]


async def test_nobody_is_told_after_the_end(client: Client) -> None:
    client.connection.received(heavy("process/start", words=WORDS))
    client.ask("environment/status")
    answers = dict(client.transport.answers)
    client.connection.lost("gone")
    await asyncio.sleep(0.05)
    assert client.transport.answers == answers


class Preparing:
    """A connection whose heavy requests are prepared when the test says so, and refused then."""

    def __init__(self, handler: Any) -> None:
        self.prepared = 0
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.connection = connection.Connection(FakeTransport(), handler, prepare=self.prepare)
        self.connection.received(heavy("process/start", words=WORDS))

    def prepare(self, request: Request, size: int) -> Request:
        self.prepared += 1
        self.began.set()
        self.go_on.wait(10)
        raise InvalidParams("no")

    def lose(self) -> None:
        self.connection.lost("gone")
        self.go_on.set()


class Ignoring:
    def lost(self, reason: str) -> None: ...


async def test_a_message_that_waits_for_the_thread_is_dropped_with_its_connection() -> None:
    first, second = Preparing(Ignoring()), Preparing(Ignoring())
    await asyncio.to_thread(first.began.wait, 10)
    second.lose()
    # asyncio cancels the work itself in its next turn.
    await asyncio.sleep(0)
    first.lose()
    # The thread takes one after the other.
    await asyncio.wrap_future(connection._decoding_thread().submit(int))
    assert (first.prepared, second.prepared) == (1, 0)


async def test_an_error_of_a_lost_connection_is_no_complaint() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    one = Preparing(Ignoring())
    await asyncio.to_thread(one.began.wait, 10)
    one.lose()
    await asyncio.wrap_future(connection._decoding_thread().submit(int))
    await asyncio.sleep(0)
    del one
    gc.collect()
    assert complaints == []


async def test_without_a_thread_it_is_decoded_all_the_same(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = ThreadPoolExecutor()
    ended.shutdown()
    monkeypatch.setattr(connection, "_decoding_thread", lambda: ended)
    client.connection.received(heavy("nope", words=WORDS))
    later = client.ask("environment/status")
    assert await client.transport.answer(later) == {"status": "ready"}
    assert list(client.transport.answers)[-2:] == [1000, later]


async def test_the_values_of_a_refused_message_do_not_outlive_it(client: Client) -> None:
    count = 12_345
    gc.disable()
    try:
        client.connection.received(heavy("process/start", processId=7, argv=["x" * 20] * count))
        error = "invalid type: number, expected a string"
        assert await client.transport.answer(1000) == (-32602, error)
        left = [one for one in gc.get_objects() if type(one) is list and len(one) == count]
    finally:
        gc.enable()
    assert left == []
