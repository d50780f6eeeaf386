"""Listeners while the system has no descriptor left, and after that."""

import asyncio
import errno
import logging
import os
import socket
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from holdfast.server.listen import make_gate
from holdfast.wire.transports import accepting
from holdfast.wire.transports.accepting import Acceptor, Newcomers, PlainListener
from holdfast.wire.transports.unix import connect_unix, listen_unix
from holdfast.wire.transports.websocket_client import connect_websocket
from holdfast.wire.transports.websocket_listener import listen_websocket, listen_websocket_unix
from tests.unit.engine.process.starting import eventually
from tests.unit.wire.transports.recorder import LIMIT, Recorder

UPGRADE = (
    b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)

Line: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PAUSE = 0.05
"""Seconds between two attempts in these tests."""


class Exhausted(socket.socket):
    """A listening socket that accepts nothing while `full` is True."""

    full = True
    attempts = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.full:
            self.attempts += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


@pytest.mark.parametrize("kind", ["ws", "unix"])
async def test_a_listener_without_descriptors_says_so_now_and_then_and_recovers(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "_ACCEPT_PAUSE", PAUSE)
    near, far = Recorder(), Recorder()
    if kind == "ws":
        listening = Exhausted(socket.AF_INET)
        listening.bind(("127.0.0.1", 0))
        server = await listen_websocket(
            "127.0.0.1", 0, gate=make_gate(None), accept=far.accept, listening=listening
        )
        url = f"ws://127.0.0.1:{listening.getsockname()[1]}"
        connecting = asyncio.ensure_future(connect_websocket(url, near.accept))
    else:
        listening = Exhausted(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        server = await listen_unix(str(tmp_path / "s"), far.accept, listening=listening)
        connecting = asyncio.ensure_future(connect_unix(str(tmp_path / "s"), near.accept))
    with caplog.at_level(logging.WARNING):
        begun = asyncio.get_running_loop().time()
        await eventually(lambda: listening.attempts == 3)
        # Three attempts have two pauses between them. The clock of uvloop has milliseconds.
        assert asyncio.get_running_loop().time() > begun + 2 * PAUSE - 0.002
    # One line each time, and no traceback.
    assert len(caplog.records) == 3
    assert all("Too many open files" in one.getMessage() for one in caplog.records)
    assert not any(one.exc_info for one in caplog.records)
    listening.full = False
    async with asyncio.timeout(LIMIT):
        transport = await connecting
    transport.send(b"one")
    assert await far.count(1) == [b"one"]
    transport.close()
    await far.end()
    server.close()


async def test_a_listener_that_is_closed_while_it_waits_stays_closed() -> None:
    listening = Exhausted(socket.AF_INET)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = PlainListener(listening, asyncio.Protocol)
    with socket.create_connection(listening.getsockname()):
        await eventually(lambda: listening.attempts == 1)
        server.close()
        server.close()  # harmless
        server._acceptor._watch()  # as the timer does at the end of the pause
        await asyncio.sleep(0)
    assert listening.attempts == 1


async def test_a_connection_without_a_protocol_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> asyncio.Protocol:
        raise ValueError("no protocol")

    listening = socket.create_server(("127.0.0.1", 0))
    server = PlainListener(listening, fail)
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    async with asyncio.timeout(LIMIT):
        assert await reader.read() == b""
    # The log keeps the traceback, and with it the socket.
    (record,) = caplog.records
    assert record.exc_info is not None
    writer.close()
    server.close()


@pytest.mark.both_loops
@pytest.mark.requirement("security.others.strangers")
async def test_few_connections_are_taken_before_others_have_their_turn() -> None:
    loop = asyncio.get_running_loop()
    listening = socket.create_server(("127.0.0.1", 0), backlog=200)
    waiting = [socket.create_connection(listening.getsockname()) for _ in range(100)]
    taken: list[socket.socket] = []
    in_turns: list[int] = []
    acceptor = Acceptor(listening, taken.append, Newcomers())

    def count() -> None:
        in_turns.append(len(taken))
        if len(taken) < len(waiting):
            loop.call_soon(count)

    count()
    await eventually(lambda: len(taken) == len(waiting))
    assert max(after - before for before, after in pairwise(in_turns)) <= 16
    acceptor.close()
    for line in (*waiting, *taken):
        line.close()


@pytest.mark.both_loops
@pytest.mark.parametrize("kind", ["ws", "unix"])
@pytest.mark.requirement("security.others.strangers")
async def test_the_oldest_connection_without_a_request_makes_room(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "_MOST_NEWCOMERS", 2)
    far = Recorder()
    address: Any
    server: Any
    if kind == "ws":
        server = await listen_websocket("127.0.0.1", 0, gate=make_gate(None), accept=far.accept)
        address = server.sockets[0].getsockname()
    else:
        address = str(tmp_path / "s")
        server = await listen_websocket_unix(address, gate=make_gate(None), accept=far.accept)

    async def connect(request: bytes = b"GET ") -> Line:
        if kind == "ws":
            reader, writer = await asyncio.open_connection(*address)
        else:
            reader, writer = await asyncio.open_unix_connection(address)
        writer.write(request)
        return reader, writer

    lines: list[Line] = []
    try:
        async with asyncio.timeout(LIMIT):
            lines.append(await connect(UPGRADE))
            assert (await lines[0][0].readline()).split()[1] == b"101"
            lines += [await connect() for _ in range(4)]
            for reader, _ in lines[1:3]:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            # A client that sends its request gets in, and the first one is still there.
            lines.append(await connect(UPGRADE))
            assert (await lines[-1][0].readline()).split()[1] == b"101"
            assert far.ends == []
    finally:
        server.close()
        for _, writer in lines:
            writer.close()
    await far.until(lambda: len(far.ends) == 2)


@pytest.mark.both_loops
@pytest.mark.requirement("security.others.strangers")
async def test_without_descriptors_a_connection_without_a_request_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "_ACCEPT_PAUSE", PAUSE)
    listening = Exhausted(socket.AF_INET)
    listening.full = False
    listening.bind(("127.0.0.1", 0))
    far = Recorder()
    server = await listen_websocket(
        "127.0.0.1", 0, gate=make_gate(None), accept=far.accept, listening=listening
    )
    address = listening.getsockname()
    silent = await asyncio.open_connection(*address)
    silent[1].write(b"GET ")
    # A page is answered after it, so the silent one has been accepted.
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(LIMIT):
        await reader.read()
        writer.close()
        listening.full = True
        late = await asyncio.open_connection(*address)
        with suppress(ConnectionError):
            assert await silent[0].read() == b""
        listening.full = False
        late[1].write(b"GET /readyz HTTP/1.1\r\n\r\n")
        assert b"200 OK" in await late[0].read()
    for _, writer in (silent, late):
        writer.close()
    server.close()
