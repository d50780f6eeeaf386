"""
Contract of every `HttpClient`.

The other side is a small server of the test's own; what is asked for comes from this
machine, from one of our servers, or from the real Codex.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from holdfast.backends import HttpBody, HttpClient
from holdfast.base.errors import InvalidParams, OperationFailed
from holdfast.client.client import ExecServerClient
from holdfast.engine.http.local_http import LocalHttpClient
from holdfast.wire.protocol.http import HttpHeader, HttpRequestParams
from holdfast.wire.protocol.wire_types import Base64
from tests.contract.conftest import Subject
from tests.e2e.wire import LIMIT

Answer = Callable[[bytes, bytes, asyncio.StreamWriter], object]
"""Gets the head and the body of a request, and writes what it likes."""


@pytest.fixture
async def http(subject: Subject) -> AsyncIterator[HttpClient]:
    """The HTTP client of each subject in turn."""
    if subject.remote:
        assert isinstance(subject.backend, ExecServerClient)
        yield subject.backend.http
    else:
        local = LocalHttpClient()
        yield local
        await local.aclose()


@asynccontextmanager
async def web(answer: Answer) -> AsyncIterator[str]:
    """A web server that gives one answer; yields its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        answering = answer(head, await reader.readexactly(size), writer)
        if asyncio.iscoroutine(answering):
            await answering
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def says(body: bytes, *headers: str, status: str = "200 OK") -> Answer:
    head = "\r\n".join(
        [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    )
    return lambda request, sent, writer: writer.write(head.encode() + b"\r\n\r\n" + body)


def get(url: str, **options: object) -> HttpRequestParams:
    usual = {"method": "GET", "url": url, "request_id": "r"}
    return HttpRequestParams(**{**usual, **options})  # type: ignore[arg-type]


async def all_of(body: HttpBody) -> bytes:
    return b"".join([piece async for piece in body])


@pytest.mark.requirement("http.request.result")
async def test_a_call_brings_status_headers_and_body(http: HttpClient) -> None:
    async with web(says(b"hello", "X-Name: value", status="404 Not Found")) as url:
        response = await http.request(get(url))
    assert (response.status, response.body_base64) == (404, b"hello")
    assert HttpHeader(name="x-name", value="value") in response.headers


@pytest.mark.requirement("http.request.headers", "http.request.user-info")
async def test_the_request_is_sent_as_it_is_asked_for(http: HttpClient) -> None:
    heard: list[tuple[bytes, bytes]] = []

    def listen(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        heard.append((head, body))
        says(b"")(head, body, writer)

    async with web(listen) as url:
        await http.request(
            get(
                f"{url}/path?q=1#fragment",
                method="PUT",
                headers=(
                    HttpHeader(name="X-Mine", value="1"),
                    HttpHeader(name="x-mine", value="2"),
                ),
                body_base64=Base64(b"content"),
            )
        )
    ((head, body),) = heard
    lines = head.decode().split("\r\n")
    assert lines[0] == "PUT /path?q=1 HTTP/1.1"
    assert [line for line in lines if line.lower().startswith("x-mine")] == [
        "x-mine: 1",
        "x-mine: 2",
    ]
    assert "accept: */*" in lines
    assert not any(line.lower().startswith(("user-agent", "accept-encoding")) for line in lines)
    assert body == b"content"


@pytest.mark.requirement("http.request.redirects")
async def test_redirects_are_followed_or_not(http: HttpClient) -> None:
    async with web(says(b"there")) as target:
        moved = says(b"", f"Location: {target}", status="302 Found")
        async with web(moved) as url:
            followed = await http.request(get(url))
            stopped = await http.request(get(url, redirect_policy="stop"))
    assert (followed.status, followed.body_base64) == (200, b"there")
    assert stopped.status == 302


@pytest.mark.requirement("http.request.refused")
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"method": "a b"}, "http/request method is invalid: invalid HTTP method"),
        ({"url": "nowhere"}, "http/request url is invalid: relative URL without a base"),
        ({"url": "ftp://x/"}, "http/request only supports http and https URLs, got ftp"),
        (
            {"headers": (HttpHeader(name="a b", value=""),)},
            "http/request header name is invalid: invalid HTTP header name",
        ),
        (
            {"headers": (HttpHeader(name="X", value="a\nb"),)},
            "http/request header value is invalid for X: failed to parse header value",
        ),
    ],
)
async def test_what_cannot_be_asked_for_is_refused(
    http: HttpClient, wrong: dict[str, object], text: str
) -> None:
    for call in (http.request, http.stream):
        with pytest.raises(InvalidParams) as caught:
            await call(get(**{"url": "http://127.0.0.1:1/", **wrong}))  # type: ignore[arg-type]
        assert str(caught.value) == text


@pytest.mark.requirement("http.request.failed")
async def test_a_call_to_nowhere_fails(http: HttpClient) -> None:
    for call in (http.request, http.stream):
        with pytest.raises(OperationFailed) as caught:
            await call(get("http://127.0.0.1:1/x"))
        text = "http/request failed: error sending request for url (http://127.0.0.1:1/x)"
        assert str(caught.value) == text


@pytest.mark.requirement("http.request.timeout")
async def test_a_call_may_time_out(http: HttpClient) -> None:
    never = asyncio.Event()
    async with web(lambda *request: never.wait()) as url:
        with pytest.raises(OperationFailed, match=r"^http/request failed: "):
            await http.request(get(url, timeout_ms=50))
        never.set()


@pytest.mark.requirement("http.request.stream.as-it-comes")
@pytest.mark.parametrize("size", [0, 5, 3_000_000])
async def test_a_body_is_streamed(http: HttpClient, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    async with web(says(data[:size], "X-Name: value")) as url:
        response, body = await http.stream(get(url))
        assert (response.status, response.body_base64) == (200, b"")
        assert HttpHeader(name="x-name", value="value") in response.headers
        assert await all_of(body) == data[:size]
        await body.aclose()


async def test_pieces_come_as_they_are_sent(http: HttpClient) -> None:
    go_on = asyncio.Event()

    async def slowly(head: bytes, sent: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nfirst")
        await writer.drain()
        await go_on.wait()
        writer.write(b"second")

    async with web(slowly) as url:
        _, body = await http.stream(get(url))
        pieces = aiter(body)
        assert await anext(pieces) == b"first"
        go_on.set()
        assert b"".join([piece async for piece in pieces]) == b"second"


@pytest.mark.requirement("http.request.body-failed")
async def test_a_body_that_breaks_off_is_a_failure(http: HttpClient) -> None:
    def break_off(head: bytes, sent: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")

    async with web(break_off) as url:
        with pytest.raises(OperationFailed, match=r"^failed to read http/request response body: "):
            await http.request(get(url))
        _, body = await http.stream(get(url))
        pieces = aiter(body)
        assert await anext(pieces) == b"part"
        with pytest.raises(OperationFailed, match=r"^error decoding response body$"):
            await anext(pieces)


async def test_a_body_need_not_be_read_to_its_end(http: HttpClient) -> None:
    async with web(says(b"x" * 500_000)) as url:
        _, body = await http.stream(get(url))
        await anext(aiter(body))
        await body.aclose()
        await body.aclose()
    async with web(says(b"next")) as url:
        assert (await http.request(get(url))).body_base64 == b"next"


async def test_many_streams_do_not_mix(http: HttpClient) -> None:
    async def one(url: str, number: int) -> None:
        _, body = await http.stream(get(f"{url}/{number}"))
        assert await all_of(body) == str(number).encode() * 10_000

    def echo(head: bytes, sent: bytes, writer: asyncio.StreamWriter) -> None:
        number = head.split(b" ")[1].removeprefix(b"/")
        says(number * 10_000)(head, sent, writer)

    async with asyncio.timeout(2 * LIMIT), web(echo) as url, asyncio.TaskGroup() as tasks:
        for number in range(30):
            tasks.create_task(one(url, number))
