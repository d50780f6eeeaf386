"""Responses in every form and size of piece, and what becomes of their connection."""

import asyncio
from typing import cast

import pytest

from holdfast.engine.http import exchange as module
from holdfast.engine.http.exchange import Exchange, ExchangeFailed, HttpConnection


class Socket:
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        self.written = b""
        self.unwritten = 0
        self.paused = False
        self.closing = False
        self.aborted = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unwritten

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.closing = True
        self.aborted.set()


class Line:
    """A connection with an exchange under way."""

    def __init__(self, *, bodiless: bool = False, last: bool = False) -> None:
        self.socket = Socket()
        self.connection = HttpConnection()
        self.connection.connection_made(cast("asyncio.Transport", self.socket))
        self.released: list[bool] = []
        self.connection.released = lambda connection: self.released.append(connection.usable)
        self.exchange: Exchange = self.connection.send(b"request", bodiless=bodiless, last=last)

    def receive(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)

    def end(self, error: Exception | None = None) -> None:
        self.connection.connection_lost(error)

    async def body(self) -> bytes:
        body = b""
        while piece := await self.exchange.read():
            body += piece
        return body


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\nx-t: 1\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("response", [OK, CHUNKED])
async def test_a_response_may_come_in_any_pieces(response: bytes, size: int) -> None:
    line = Line()
    line.receive(*(response[at : at + size] for at in range(0, len(response), size)))
    await line.exchange.head()
    assert line.exchange.status == 200
    assert "x-t" not in line.exchange.headers
    assert await line.body() == b"ok"
    assert line.released == [True]


async def test_a_connection_serves_one_exchange_after_another() -> None:
    line = Line()
    line.receive(OK)
    assert await line.body() == b"ok"
    line.exchange = line.connection.send(b"again", bodiless=False, last=False)
    line.receive(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
    assert await line.body() == b""
    assert line.exchange.status == 404
    assert line.released == [True, True]
    assert line.socket.written == b"requestagain"


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokEXTRA",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" + OK,
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\n\r\n",
    ],
)
async def test_a_connection_in_doubt_is_not_used_again(response: bytes) -> None:
    line = Line()
    line.receive(response)
    assert await line.body() == b"ok"
    assert line.released == [False]
    assert line.socket.closing


async def test_nor_is_one_whose_request_was_not_read_to_its_end() -> None:
    line = Line()
    line.socket.unwritten = 1
    line.receive(OK)
    assert line.released == [False]


async def test_nor_is_one_whose_request_said_so() -> None:
    line = Line(last=True)
    line.receive(OK)
    assert line.released == [False]


async def test_interim_responses_are_passed_over() -> None:
    line = Line()
    line.receive(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 E\r\nlink: x\r\n\r\n" + OK)
    await line.exchange.head()
    assert (line.exchange.status, line.exchange.headers) == (200, {"content-length": [b"2"]})
    assert await line.body() == b"ok"


@pytest.mark.parametrize("headers", [b"", b"upgrade: x\r\nconnection: upgrade\r\n"])
async def test_a_change_of_protocol_is_an_answer_without_body(headers: bytes) -> None:
    line = Line()
    line.receive(b"HTTP/1.1 101 S\r\n" + headers + b"\r\nabc")
    await line.exchange.head()
    assert line.exchange.status == 101
    assert await line.body() == b""
    assert line.released == [False]


async def test_a_response_to_head_has_no_body_whatever_it_says() -> None:
    line = Line(bodiless=True)
    line.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    assert await line.body() == b""
    assert line.released == [True]


async def test_a_body_after_head_costs_the_connection() -> None:
    line = Line(bodiless=True)
    line.receive(OK)
    assert await line.body() == b""
    assert line.released == [False]


async def test_a_body_may_last_until_the_connection_ends() -> None:
    line = Line()
    line.receive(b"HTTP/1.1 200 OK\r\n\r\nabc", b"def")
    line.end()
    assert await line.body() == b"abcdef"
    assert line.released == [False]


async def test_but_not_until_it_breaks() -> None:
    line = Line()
    line.receive(b"HTTP/1.1 200 OK\r\n\r\nabc")
    line.end(ConnectionResetError())
    assert await line.exchange.read() == b"abc"
    with pytest.raises(ExchangeFailed):
        await line.exchange.read()


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 20",
        b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 1000 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: \x01\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 1\r\n\r\nok",
    ],
)
async def test_what_is_no_response_is_a_failure(response: bytes) -> None:
    line = Line()
    line.receive(response)
    line.end()
    with pytest.raises(ExchangeFailed):
        await line.exchange.head()
    assert line.released == [False]


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
async def test_a_body_that_stops_short_is_a_failure_after_what_came(response: bytes) -> None:
    line = Line()
    line.receive(response)
    line.end()
    await line.exchange.head()
    assert await line.exchange.read() == b"abc"
    with pytest.raises(ExchangeFailed):
        await line.exchange.read()


async def test_headers_have_a_limit() -> None:
    line = Line()
    line.receive(b"HTTP/1.1 200 OK\r\na: ")
    while not line.socket.closing:
        line.receive(b"b" * 1000)
    with pytest.raises(ExchangeFailed):
        await line.exchange.head()


@pytest.mark.parametrize("endless", [b"x: y\r\n", b"x" * 100])
async def test_trailers_have_a_limit(endless: bytes) -> None:
    line = Line()
    line.receive(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n")
    received = 0
    while not line.socket.closing:
        line.receive(endless * 10)
        received += len(endless) * 10
    assert received < 2 * module.MAX_HEAD
    assert await line.exchange.read() == b"ok"
    with pytest.raises(ExchangeFailed):
        await line.exchange.read()


async def test_a_body_in_tiny_chunks_has_none() -> None:
    line = Line()
    line.receive(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(module.MAX_HEAD // 100):
        line.receive(b"1\r\nx\r\n" * 100)
    line.receive(b"0\r\n\r\n")
    assert len(await line.body()) == module.MAX_HEAD // 100 * 100


async def test_a_reader_that_falls_behind_stops_the_reading() -> None:
    line = Line()
    line.receive(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    sent = 0
    while not line.socket.paused:
        line.receive(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
        sent += 0x1000
    assert sent <= module.HIGH_WATER + 0x1000
    assert len(await line.exchange.read()) == sent
    assert not line.socket.paused


async def test_a_paused_connection_is_read_again_by_its_next_user() -> None:
    line = Line()
    size = module.HIGH_WATER + 2
    line.receive(f"HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n".encode() + b"x" * (size - 1))
    seen = [line.socket.paused]
    line.receive(b"x")  # was on its way
    seen.append(line.socket.paused)
    assert seen == [True, False]
    assert line.released == [True]
    assert len(await line.body()) == size


async def test_bytes_nobody_asked_for_end_the_connection() -> None:
    line = Line()
    line.receive(OK)
    line.receive(b"HTTP/1.1 408 Timeout\r\n\r\n")
    assert line.socket.closing
    assert not line.connection.usable


async def test_closing_wakes_the_reader_and_ends_the_connection() -> None:
    line = Line()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(_failure(line.exchange))
        await asyncio.sleep(0)
        line.exchange.close()
    assert reading.result()
    assert line.socket.closing
    line.receive(OK)  # was on its way


async def _failure(exchange: Exchange) -> bool:
    try:
        await exchange.read()
    except ExchangeFailed:
        return True
    return False


async def test_whether_anything_came_is_known() -> None:
    line = Line()
    assert line.exchange.untouched
    line.receive(b"H")
    assert not line.exchange.untouched
