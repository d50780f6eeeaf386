"""Messages with thousands of values, which are decoded in a thread."""

import asyncio
import json

import pytest

from holdfast.rpc.heavy import is_heavy
from tests.unit.server.serving import Client

WORDS = ["x" * 20] * 10_000
"""More values, and more bytes, than a message has that is decoded at once."""


def heavy(method: str, **params: object) -> bytes:
    message = json.dumps({"id": 1000, "method": method, "params": params}).encode()
    assert is_heavy(message)
    return message


def test_only_many_values_are_heavy() -> None:
    assert not is_heavy(json.dumps({"data": "A" * (1 << 20)}).encode())
    assert not is_heavy(json.dumps(list(range(1000))).encode())
    assert is_heavy(json.dumps([{"a": "b" * 20}] * 5000).encode())


async def test_what_comes_after_it_waits(client: Client) -> None:
    client.connection.received(
        heavy("process/start", processId="p", argv=WORDS, cwd="file:///", env={}, tty=False)
    )
    later = client.ask("environment/status")
    assert client.transport.calls == ["pause"]
    assert later not in client.transport.answers
    assert await client.transport.answer(later) == {"status": "ready"}
    assert list(client.transport.answers)[-2:] == [1000, later]
    assert client.transport.calls == ["pause", "resume"]
    assert client.transport.answers[1000] == (-32603, "No such file or directory (os error 2)")


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
