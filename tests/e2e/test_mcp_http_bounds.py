"""MCP over HTTP: clients that send more than a request, or that do not read."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.mcp_clients import HANDSHAKE, ServedMcp, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(60),
    pytest.mark.both_loops,
    pytest.mark.requirement("mcp.http-bounds"),
]

BODY = "holdfast.front.mcp.http_body."
PROTOCOL = "holdfast.front.mcp.http_protocol."
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


class Connection:
    """A connection that sends what no client library would."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def head(self, *lines: str, token: str = "one", method: str = "POST") -> None:
        """Send the head of a request."""
        self.writer.write(
            "\r\n".join(
                [
                    f"{method} /mcp HTTP/1.1",
                    "Host: localhost",
                    f"Authorization: Bearer {token}",
                    "Accept: application/json, text/event-stream",
                    "Content-Type: application/json",
                    *lines,
                    "\r\n",
                ]
            ).encode()
        )

    def post(self, body: object, *lines: str, token: str = "one") -> None:
        """Send a whole request."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.head(f"Content-Length: {len(text)}", *lines, token=token)
        self.writer.write(text)

    async def status(self) -> int:
        """Read the head of an answer and return its status."""
        return int((await self.reader.readuntil(b"\r\n\r\n")).split()[1])

    async def opened(self, token: str = "one") -> str:
        """Open an MCP session and return its id."""
        self.post(HELLO, token=token)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        await self.reader.readuntil(b"0\r\n\r\n")
        return head.partition("mcp-session-id: ")[2].split()[0]

    async def ended(self) -> bool:
        """Read to the end of the connection, and return True."""
        with contextlib.suppress(ConnectionError):
            await self.reader.read()
        return True


@asynccontextmanager
async def attacked(folder: Path) -> AsyncIterator[tuple[ServedMcp, Connection, str]]:
    """A server with two tokens, a connection with the first one, and its MCP session."""
    async with (
        serving("http", HANDSHAKE, folder, tokens=["one", "two"]) as served,
        asyncio.timeout(30),
        connected(served) as client,
    ):
        yield served, client, await client.opened()


@asynccontextmanager
async def connected(served: ServedMcp) -> AsyncIterator[Connection]:
    address = urlsplit(served.url)
    client = Connection(*await asyncio.open_connection(address.hostname, address.port))
    try:
        yield client
    finally:
        client.writer.close()


CHUNKED = "Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    "surplus",
    [
        pytest.param(b"5;" + b"x" * 1_000_000, id="extension of a chunk"),
        pytest.param(b"1\r\n{\r\n0\r\nx: " + b"y" * 1_000_000, id="trailer"),
        pytest.param(b"1\r\n{\r\n0\r\n" + b"x: y\r\n" * 200_000, id="trailers"),
    ],
)
async def test_what_belongs_to_no_request_ends_the_connection(
    surplus: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR")
    async with attacked(tmp_path) as (_, client, session):
        client.head(f"mcp-session-id: {session}", CHUNKED)
        client.writer.write(surplus)
        assert await client.ended()
    assert not caplog.records


async def test_a_body_in_chunks_is_taken_whatever_its_size(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (_, client, session):
        client.head(f"mcp-session-id: {session}", CHUNKED)
        ping = b'{"jsonrpc": "2.0", "id": 2, "method": "ping", "params": {"x": "'
        parts = [ping, *[b"x" * 700] * 100, b'"}}']
        for part in parts:
            client.writer.write(b"%x;name=value\r\n%b\r\n" % (len(part), part))
        client.writer.write(b"0\r\nauthorization: Bearer two\r\n\r\n")
        assert await client.status() == 200


async def test_few_requests_wait_for_an_answer(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (served, client, session):
        client.head(f"mcp-session-id: {session}", method="GET")
        assert await client.status() == 200
        client.writer.write(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5_000)
        assert await client.ended()
        # The first ones come before any client has shown a token.
        async with connected(served) as other:
            other.writer.write(b"GET / HTTP/1.1\r\n\r\n" * 5_000)
            assert await other.status() == 400


async def test_requests_on_one_connection_are_answered_in_turn(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (_, client, session):
        for number in range(5):
            ping = {"jsonrpc": "2.0", "id": number, "method": "ping"}
            client.post(ping, f"mcp-session-id: {session}")
        for number in range(5):
            assert await client.status() == 200
            assert f'"id":{number}' in (await client.reader.readuntil(b"0\r\n\r\n")).decode()


async def test_a_client_that_does_not_read_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{PROTOCOL}_READ_TIME", 0.05)
    # More than the kernel takes for a client.
    (tmp_path / "long").write_text("\x01" * 99_000)
    read = {"name": "read_file", "arguments": {"path": "long"}}
    async with attacked(tmp_path) as (_, client, session):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it can be read
        number = 2
        while not client.writer.transport.is_closing():
            call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": read}
            client.post(call, f"mcp-session-id: {session}")
            number += 1
            await asyncio.sleep(0.01)
        assert number < 1_000


async def test_a_client_that_reads_slowly_gets_all_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{PROTOCOL}_READ_TIME", 0.2)
    (tmp_path / "long").write_text("\x01" * 99_000)
    params = {"name": "read_file", "arguments": {"path": "long"}}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    async with attacked(tmp_path) as (_, client, session):
        client.post(call, f"mcp-session-id: {session}")
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got += await client.reader.read(10_000)
            assert got
            await asyncio.sleep(0.005)
        assert got.count(b"u0001") == 2 * 99_000


async def test_connections_without_a_request_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{PROTOCOL}_MOST_IDLE", 2)
    async with attacked(tmp_path) as (served, first, _), connected(served) as second:
        await second.opened()
        async with connected(served) as third:
            await third.opened(token="two")
            assert await first.ended()
            # The others stay.
            second.post(HELLO)
            assert await second.status() == 200


async def test_the_rest_of_a_refused_body_keeps_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{BODY}_BODY_TIME", 0.05)
    async with attacked(tmp_path) as (_, client, session):
        client.head(f"mcp-session-id: {session}", "Content-Length: 1000000")
        assert await client.status() == 408
        assert await client.ended()


async def test_bodies_of_one_client_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{BODY}_BYTES_OF_ONE", 100_000)
    hello = {**HELLO, "padding": "x" * 60_000}
    async with attacked(tmp_path) as (served, client, session):
        client.head(f"mcp-session-id: {session}", "Content-Length: 80000")
        client.writer.write(b"x" * 60_000)
        async with connected(served) as same, connected(served) as other:
            # Until the first body is there: nothing says when it is.
            status = 200
            while status == 200:
                same.post({**hello, "id": 1})
                status = await same.status()
                if status == 200:
                    await same.reader.readuntil(b"0\r\n\r\n")
            assert status == 429
            other.post(hello, token="two")
            assert await other.status() == 200
            await other.reader.readuntil(b"0\r\n\r\n")
        # What was given up no longer counts.
        client.writer.close()
        async with connected(served) as again:
            while status == 429:
                async with connected(served) as again:
                    again.post(hello)
                    status = await again.status()
        assert status == 200


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        pytest.param(b"[" + b"[]," * 4_900 + b"[]]", 200, id="few values"),
        pytest.param(b"[" + b"0," * 10_100 + b"0]", 413, id="many values"),
        pytest.param(b"[" + b'"","\\"",' * 5_050 + b"0]", 413, id="many texts"),
        pytest.param(b"[" * 10_100 + b"]" * 10_100, 413, id="many levels"),
        pytest.param(b'"' + b',[{\\"\\\\' * 30_000 + b'"', 200, id="signs in a text"),
        pytest.param('"x"'.encode("utf-16"), 400, id="UTF-16"),
    ],
)
async def test_a_request_has_a_bounded_number_of_values(
    arguments: bytes, status: int, tmp_path: Path
) -> None:
    params = b'{"name": "list_sessions", "arguments": {"x": %b}}' % arguments
    call = b'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": %b}' % params
    async with attacked(tmp_path) as (_, client, session):
        client.post(call, f"mcp-session-id: {session}")
        assert await client.status() == status


async def test_an_unknown_event_to_go_on_after_is_ignored(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (_, client, session):
        client.head(f"mcp-session-id: {session}", "Last-Event-ID: 7", method="GET")
        assert await client.status() == 200
