"""Connections that are kept: who gets which, how many, how long."""

import asyncio
from typing import cast

import pytest

from holdfast.engine.http import pool as module
from holdfast.engine.http.exchange import HttpConnection
from holdfast.engine.http.pool import ConnectionPool
from tests.unit.engine.http.test_exchange import OK, Socket


class Opener:
    """Opens connections that lead nowhere."""

    def __init__(self) -> None:
        self.opened: list[HttpConnection] = []
        self.sockets: list[Socket] = []

    async def __call__(self) -> HttpConnection:
        await asyncio.sleep(0)
        connection, socket = HttpConnection(), Socket()
        connection.connection_made(cast("asyncio.Transport", socket))
        self.opened.append(connection)
        self.sockets.append(socket)
        return connection


@pytest.fixture
def opener() -> Opener:
    return Opener()


def use(connection: HttpConnection) -> None:
    connection.send(b"x", bodiless=False, last=False)


def finish(connection: HttpConnection, answer: bytes = OK) -> None:
    connection.data_received(answer)


async def test_a_connection_is_used_again(opener: Opener) -> None:
    pool = ConnectionPool()
    for _ in range(3):
        connection = await pool.take("a", opener)
        use(connection)
        finish(connection)
    assert len(opener.opened) == 1
    pool.close()


async def test_but_not_for_another_place_nor_while_it_is_in_use(opener: Opener) -> None:
    pool = ConnectionPool()
    first = await pool.take("a", opener)
    use(first)
    second = await pool.take("a", opener)
    use(second)
    finish(first)
    third = await pool.take("b", opener)
    assert len({first, second, third}) == 3
    assert await pool.take("a", opener) is first


async def test_a_fresh_one_can_be_asked_for(opener: Opener) -> None:
    pool = ConnectionPool()
    first = await pool.take("a", opener)
    use(first)
    finish(first)
    assert await pool.take("a", opener, fresh=True) is not first
    pool.close()


async def test_one_that_ended_while_idle_is_forgotten(opener: Opener) -> None:
    pool = ConnectionPool()
    first = await pool.take("a", opener)
    use(first)
    finish(first)
    first.connection_lost(None)
    assert await pool.take("a", opener) is not first


async def test_one_that_failed_is_not_kept(opener: Opener) -> None:
    pool = ConnectionPool()
    first = await pool.take("a", opener)
    use(first)
    first.connection_lost(ConnectionResetError())
    assert await pool.take("a", opener) is not first


async def test_one_that_ended_at_once_is_a_failure(opener: Opener) -> None:
    async def short_lived() -> HttpConnection:
        connection = await opener()
        connection.connection_lost(None)
        return connection

    with pytest.raises(ConnectionResetError):
        await ConnectionPool().take("a", short_lived)


async def test_a_crowd_shares_a_few_connections(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy this machine is.
    monkeypatch.setattr(module, "_PATIENCE", 5.0)
    monkeypatch.setattr(module, "_MAX_PATIENCE", 5.0)
    pool = ConnectionPool()

    async def one() -> None:
        connection = await pool.take("a", opener)
        use(connection)
        await asyncio.sleep(0)
        finish(connection)

    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        for _ in range(500):
            tasks.create_task(one())
    assert len(opener.opened) == 16
    pool.close()


async def test_but_waits_for_none_that_stay_busy(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.001)
    pool = ConnectionPool()
    async with asyncio.timeout(5):
        busy = [await pool.take("a", opener) for _ in range(40)]
    assert len(set(busy)) == 40


async def test_who_gives_up_waiting_takes_nothing_along(opener: Opener) -> None:
    pool = ConnectionPool()
    busy = [await pool.take("a", opener) for _ in range(16)]
    use(busy[0])
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(pool.take("a", opener))
        await asyncio.sleep(0)
        waiting.cancel()
    finish(busy[0])
    assert await pool.take("a", opener) is busy[0]


async def test_so_many_are_kept_and_no_more(opener: Opener) -> None:
    pool = ConnectionPool()
    for origin in range(10):
        taken = [await pool.take(origin, opener) for _ in range(16)]
        for connection in taken:
            use(connection)
        for connection in taken:
            finish(connection)
    assert sum(not socket.closing for socket in opener.sockets) == 64
    # The longest idle went first.
    assert all(socket.closing for socket in opener.sockets[:96])
    pool.close()
    assert all(socket.closing for socket in opener.sockets)


async def test_one_that_is_idle_for_long_ends(opener: Opener) -> None:
    pool = ConnectionPool(idle_time=0.001)
    connection = await pool.take("a", opener)
    use(connection)
    finish(connection)
    async with asyncio.timeout(5):
        await opener.sockets[0].aborted.wait()


async def test_an_opening_that_fails_leaves_nothing_behind() -> None:
    async def refused() -> HttpConnection:
        raise ConnectionRefusedError

    pool = ConnectionPool()
    for _ in range(50):  # more than a crowd, so a origin that was left taken would show
        with pytest.raises(ConnectionRefusedError):
            await pool.take("a", refused)
