"""Addresses of servers, and the errors for those that cannot be used."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from holdfast.base.errors import ConnectFailed
from holdfast.client.client import ExecServerClient
from holdfast.client.target import CommandTarget, Target, UnixTarget
from holdfast.client.websocket_target import WebSocketTarget
from holdfast.server.app import Server
from holdfast.server.listen import parse_listen_url
from holdfast.server.operate.auth import Unauthorized
from holdfast.wire.transports.token_urls import without_password
from holdfast.wire.transports.transport import Credential
from holdfast.wire.transports.websocket import WebSocketTransport


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("ws://127.0.0.1:1", WebSocketTarget),
        ("wss://example.com", WebSocketTarget),
        ("unix:///run/x.sock", UnixTarget),
        (["holdfast", "serve", "--listen", "stdio"], CommandTarget),
    ],
)
def test_a_target_is_known_by_its_looks(where: str | list[str], kind: type[Target]) -> None:
    assert type(Target.of(where)) is kind


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ("http://x", " (did you mean `ws://x`?)"),
        ("wsss://x", " (did you mean `wss://x`?)"),
        ("unix://relative", " (did you mean `unix:///relative`?)"),
        ("127.0.0.1:80", " (did you mean `ws://127.0.0.1:80`?)"),
        ("ws:/x", " (did you mean `ws://x`?)"),
        ("/run/socket", " (did you mean `unix:///run/socket`?)"),
        ("ftp-data://x", ""),
        ("", ""),
    ],
)
def test_anything_else_is_no_target(where: str, meant: str) -> None:
    with pytest.raises(ConnectFailed) as caught:
        Target.of(where)
    assert str(caught.value) == (
        f"`{where}` is not a URL of an exec-server{meant};"
        " expected `ws://HOST:PORT`, `wss://HOST` or `unix:///PATH`"
    )


@pytest.mark.requirement("client.texts")
async def test_a_port_where_nobody_listens_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: nobody else gets it
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectFailed) as caught:
            await ExecServerClient.connect(url)
    assert str(caught.value) == (
        f"failed to connect to exec-server websocket `{url}`: IO error: Connection refused"
        " (os error 111) (nothing listens there: is the server running?)"
    )


@pytest.mark.parametrize("url", ["ws://", "ws://:0", "ws://127.0.0.1:99999", "ws://[::1"])
async def test_a_url_that_is_none_is_named(url: str) -> None:
    with pytest.raises(ConnectFailed, match="failed to connect to exec-server websocket"):
        await ExecServerClient.connect(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ws://bob:p@ss@127.0.0.1:1/x", "ws://bob:***@127.0.0.1:1/x"),
        ("wss://:secret@[::1]:1?a@b", "wss://:***@[::1]:1?a@b"),
        ("http://bob:secret@h", "http://bob:***@h"),
        ("ws://bob@127.0.0.1:1/a:b@c", "ws://bob@127.0.0.1:1/a:b@c"),
        ("ws://h/a:b@c", "ws://h/a:b@c"),
        ("secret:x@h", "secret:x@h"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


async def test_a_password_is_neither_in_an_error_nor_in_the_name_of_the_host() -> None:
    asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def read() -> None:
            asked.set_result(await reader.readuntil(b"\r\n\r\n"))
            writer.close()

        reading.append(asyncio.ensure_future(read()))

    reading: list[asyncio.Future[None]] = []
    async with listening(take) as url:
        port = url.rpartition(":")[2]
        with pytest.raises(ConnectFailed, match=rf"`ws://bob:\*\*\*@127.0.0.1:{port}`"):
            await ExecServerClient.connect(f"ws://bob:secret@127.0.0.1:{port}")
        request = await asked
    assert f"Host: 127.0.0.1:{port}\r\n".encode() in request
    assert b"secret" not in request


@asynccontextmanager
async def listening(
    connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None],
) -> AsyncIterator[str]:
    """A port whose connections the test deals with; yields its URL."""
    writers: list[asyncio.StreamWriter] = []

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        connected(reader, writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@pytest.mark.requirement("client.timeouts", "client.texts")
async def test_a_listener_that_never_answers_is_given_up() -> None:
    async with listening(lambda reader, writer: None) as url:
        with pytest.raises(ConnectFailed) as caught:
            await ExecServerClient.connect(url, connect_timeout=0.01)
    assert str(caught.value) == (
        f"timed out connecting to exec-server websocket `{url}` after 10ms"
    )


async def test_a_listener_that_hangs_up_is_an_error() -> None:
    async with listening(lambda reader, writer: writer.close()) as url:
        with pytest.raises(
            ConnectFailed, match=r"closed \(a server with TLS has a `wss://` URL\)$"
        ):
            await ExecServerClient.connect(url)


@pytest.mark.parametrize("status", ["HTTP/1.1 404 Not Found", "HTTP/1.0 200 OK"])
async def test_an_answer_of_another_web_server_is_told_as_such(status: str) -> None:
    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{status}\r\ncontent-length: 0\r\n\r\n".encode())

    async with listening(answer) as url:
        with pytest.raises(ConnectFailed, match="no exec-server answers there: is the URL right"):
            await ExecServerClient.connect(url)


async def test_the_words_of_a_refusal_are_passed_on() -> None:
    def refuse(authorization: str | None) -> Credential:
        if authorization != "Bearer sesame":
            raise Unauthorized("missing websocket bearer token")
        return Credential("somebody")

    async with Server() as server:
        url = await server.listen(parse_listen_url("ws://127.0.0.1:0"), refuse)
        with pytest.raises(ConnectFailed) as caught:
            await ExecServerClient.connect(url)
        assert str(caught.value) == (
            f"failed to connect to exec-server websocket `{url}`:"
            " HTTP error: 401: missing websocket bearer token (the server wants a token: give it"
            " with --token-file FILE, HOLDFAST_TOKEN or bearer_token=,"
            " or as auth_bearer_token in environments.toml)"
        )
        with pytest.raises(ConnectFailed, match=r"the server takes another token: .*--token-file"):
            await ExecServerClient.connect(url, bearer_token="other")
        async with await ExecServerClient.connect(url, bearer_token="sesame") as client:
            assert (await client.status()).status == "ready"


async def test_a_socket_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.sock"
    with pytest.raises(ConnectFailed, match=f"failed to connect to unix socket `{path}`"):
        await ExecServerClient.connect(f"unix://{path}")


class Options:
    """In place of a socket: remembers the options that were set."""

    def __init__(self) -> None:
        self.set: list[tuple[int, int, int]] = []

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self.set.append((level, name, value))


async def test_a_plain_websocket_acknowledges_at_once() -> None:
    async with Server() as server:
        url = await server.listen(parse_listen_url("ws://127.0.0.1:0"))
        async with await ExecServerClient.connect(url) as client:
            transport = (await client._session.connected()).connection.transport
            assert isinstance(transport, WebSocketTransport)
            quick = transport._quick_ack
            assert quick is not None
            assert quick.family == socket.AF_INET
            options = Options()
            transport._quick_ack = cast(socket.socket, options)
            await client.status()
            # Again after each message, for the kernel falls back by itself.
            assert options.set == [(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)]
            transport._quick_ack = quick


@pytest.mark.requirement("security.token.clear")
@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("ws://127.0.0.1:4500", True),
        ("ws://[::1]:4500", True),
        ("ws://localhost", True),
        ("wss://example.com", True),
        ("ws://192.0.2.1:4500", False),
        ("ws://example.com", False),
        ("ws://127.0.0.1@example.com", False),
        ("ws://localhost.example.com:80", False),
    ],
)
def test_no_token_goes_over_the_network_in_the_clear(url: str, fine: bool) -> None:
    if fine:
        Target.of(url, bearer_token="t")
    else:
        with pytest.raises(ConnectFailed, match="require wss:// or a loopback destination"):
            Target.of(url, bearer_token="t")
    Target.of(url)
