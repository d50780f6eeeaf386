"""MCP over HTTP: clients that send more than a request, or that do not read."""

import asyncio
import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.front.mcp.http_protocol import BoundedConnection
from tests.e2e.mcp_clients import HANDSHAKE, ServedMcp, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(60),
    pytest.mark.both_loops,
    pytest.mark.requirement("mcp.http-bounds"),
]

BODY = "holdfast.front.mcp.http_body."
PROTOCOL = "holdfast.front.mcp.http_protocol."
ACCEPTING = "holdfast.wire.transports.accepting."
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


def head_of(*lines: str, token: str = "one", method: str = "POST") -> bytes:
    """Return the head of a request."""
    return "\r\n".join(
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


def request_of(body: object, *lines: str, token: str = "one") -> bytes:
    """Return a whole request."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head_of(f"Content-Length: {len(text)}", *lines, token=token) + text


class Connection:
    """A connection that sends what no client library would."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def head(self, *lines: str, token: str = "one", method: str = "POST") -> None:
        """Send the head of a request."""
        self.writer.write(head_of(*lines, token=token, method=method))

    def post(self, body: object, *lines: str, token: str = "one") -> None:
        """Send a whole request."""
        self.writer.write(request_of(body, *lines, token=token))

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
        pytest.param(b"1\r\n \r\n" * 5_000, id="small chunks"),
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


async def test_a_request_has_few_headers(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (_, client, session):
        client.head(f"mcp-session-id: {session}", *["x: y"] * 200, method="GET")
        assert await client.status() == 400
        assert await client.ended()


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
    hello = {**HELLO, "padding": "x" * 45_000}
    async with attacked(tmp_path) as (served, client, session):
        client.head(f"mcp-session-id: {session}", "Content-Length: 80000")
        client.writer.write(b"x" * 60_000)
        async with connected(served) as same, connected(served) as other:
            other.post(hello, token="two")
            assert await other.status() == 200
            refused = asyncio.ensure_future(client.status())
            # Until the first body is there: nothing says when it is.
            while not refused.done():
                same.post(hello)
                assert await same.status() == 200
                await same.reader.readuntil(b"0\r\n\r\n")
            # The body that has not come makes room for those that have.
            assert await refused == 429


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


async def test_a_flood_of_strangers_holds_up_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client is answered while most of a flood still waits to be accepted."""
    monkeypatch.setattr(f"{ACCEPTING}_ACCEPTED_AT_ONCE", 1)
    async with attacked(tmp_path) as (served, client, session):
        address = urlsplit(served.url)
        flood = [socket.create_connection((address.hostname, address.port)) for _ in range(120)]
        for stranger in flood:
            stranger.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        client.post(ping, f"mcp-session-id: {session}")
        assert await client.status() == 200
        answered, _, _ = select.select(flood, [], [], 0)
        assert len(answered) < len(flood) // 2
        # A client that comes after them gets in.
        async with connected(served) as late:
            assert await late.opened("two")
        for stranger in flood:
            assert stranger.recv(12) == b"HTTP/1.1 401"
            stranger.close()


async def test_a_flood_of_strangers_ends_no_connection_of_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ACCEPTING}_MOST_NEWCOMERS", 2)
    async with attacked(tmp_path) as (served, client, session), AsyncExitStack() as stack:
        flood = [await stack.enter_async_context(connected(served)) for _ in range(6)]
        for stranger in flood[:4]:
            assert await stranger.ended()
        client.post({"jsonrpc": "2.0", "id": 2, "method": "ping"}, f"mcp-session-id: {session}")
        assert await client.status() == 200


async def test_without_tokens_a_body_that_never_comes_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ACCEPTING}_MOST_NEWCOMERS", 2)
    async with (
        serving("http", HANDSHAKE, tmp_path) as served,
        asyncio.timeout(30),
        AsyncExitStack() as stack,
    ):
        slow = [await stack.enter_async_context(connected(served)) for _ in range(4)]
        for client in slow:
            client.head("Content-Length: 9")
        assert await slow[0].ended()
        assert await (await stack.enter_async_context(connected(served))).opened()


async def test_small_parts_of_an_answer_are_sent_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each call waits 40 ms for an acknowledgement."""
    at_once: list[int] = []

    class Watched(BoundedConnection):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            options = transport.get_extra_info("socket")
            at_once.append(options.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr("holdfast.front.mcp.streamable_http.BoundedConnection", Watched)
    async with attacked(tmp_path):
        assert at_once == [1]


@pytest.mark.parametrize("step", [7, 100_000])
async def test_a_request_for_another_protocol_is_answered_in_this_one(
    step: int, tmp_path: Path
) -> None:
    """A server may ignore `Upgrade`, which `curl --http2` sends with each first request."""
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    async with attacked(tmp_path) as (served, _, session), connected(served) as client:
        lines = (f"mcp-session-id: {session}", *upgrade)
        pings = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in (2, 3, 4)]
        chunk = json.dumps(pings[2]).encode()
        whole = b"".join(
            [
                *(request_of(ping, *lines) for ping in pings[:2]),
                head_of(CHUNKED, *lines),
                b"%x\r\n%b\r\n0\r\n\r\n" % (len(chunk), chunk),
                head_of(*lines, method="DELETE"),
            ]
        )
        for begin in range(0, len(whole), step):
            client.writer.write(whole[begin : begin + step])
            await client.writer.drain()
            await asyncio.sleep(0)
        for number in (2, 3, 4):
            assert await client.status() == 200
            assert f'"id":{number}' in (await client.reader.readuntil(b"0\r\n\r\n")).decode()
        assert await client.status() == 200


@pytest.mark.skipif(
    shutil.which("curl") is None and os.environ.get("HOLDFAST_REQUIRE_REAL") != "1",
    reason="there is no curl",
)
async def test_curl_may_ask_for_http_2(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (served, _, _):
        headers = {
            "Authorization": "Bearer one",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        options = [each for name, value in headers.items() for each in ("-H", f"{name}: {value}")]
        curl = await asyncio.create_subprocess_exec(
            *("curl", "--http2", "-sS", "-m", "20", *options),
            *("-d", json.dumps(HELLO), served.url),
            stdout=subprocess.PIPE,
        )
        answer, _ = await curl.communicate()
        assert b'"serverInfo"' in answer


async def test_a_request_that_is_too_large_is_refused_before_it_comes(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (_, client, session):
        client.head(f"mcp-session-id: {session}", f"Content-Length: {(4 << 20) + 1}")
        assert await client.status() == 413
        assert b"the request has more than 4 MiB" in await client.reader.read()


async def test_a_text_that_is_too_long_is_refused_with_its_name(tmp_path: Path) -> None:
    """Errors would quote it: seconds for the event loop."""
    async with attacked(tmp_path) as (_, client, session):
        for name, arguments, most in (
            ("exec_command", {"cmd": "x" * 131_072}, "131,071"),
            ("view_image", {"path": "é" * 16_385}, "16,384"),
            ("write_stdin", {"session_id": "x" * 16_385}, "16,384"),
        ):
            params = {"name": name, "arguments": arguments}
            call = {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": params}
            client.post(call, f"mcp-session-id: {session}")
            assert await client.status() == 200
            answer = (await client.reader.readuntil(b"0\r\n\r\n")).decode()
            wrong = next(iter(arguments))
            assert f"`{wrong}` of {name} is too long: the limit is {most} characters" in answer
