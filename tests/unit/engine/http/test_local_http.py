"""Calls to real servers on this machine: redirects, time limits, bodies, proxies, TLS."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import InvalidParams, OperationFailed
from holdfast.engine.http import local_http as module
from holdfast.engine.http.local_http import LocalHttpClient
from holdfast.wire.protocol.http import HttpHeader, HttpRequestParams, HttpResponse
from holdfast.wire.protocol.wire_types import Base64
from tests.unit.engine.http.origin import Last, Origin, origin, redirect

CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""Of 127.0.0.1, localhost and proxied.invalid, with its key."""

AUTHORITY = {"CODEX_CA_CERTIFICATE": str(CERTIFICATE.with_name("authority.pem"))}
"""Variable that names the authority which signed it."""

HANG = asyncio.Event
"""Nobody sets it."""


@pytest.fixture
async def server() -> AsyncIterator[Origin]:
    async with origin() as server:
        yield server


@pytest.fixture
async def client() -> AsyncIterator[LocalHttpClient]:
    async with asyncio.timeout(5):
        client = LocalHttpClient({})
        try:
            yield client
        finally:
            await client.aclose()


def get(url: str, **given: Any) -> HttpRequestParams:
    return HttpRequestParams(**{"method": "GET", "url": url, "request_id": "r", **given})


def listed(response: HttpResponse) -> list[tuple[str, str]]:
    return [(header.name, header.value) for header in response.headers]


async def failure(client: LocalHttpClient, params: HttpRequestParams) -> str:
    with pytest.raises(OperationFailed) as failed:
        await client.request(params)
    return str(failed.value)


def not_sent(url: str) -> str:
    return f"http/request failed: error sending request for url ({url})"


# -- responses


@pytest.mark.requirement("http.request.result")
async def test_a_status_that_says_error_is_an_answer(
    client: LocalHttpClient, server: Origin
) -> None:
    server.answer(b"HTTP/1.1 999 X\r\ncontent-length: 4\r\n\r\nbody")
    response = await client.request(get(server.url))
    assert (response.status, response.body_base64) == (999, b"body")


@pytest.mark.requirement("http.request.response-headers")
async def test_headers_are_grouped_by_name_and_arrive_whatever_they_are_written_in(
    client: LocalHttpClient, server: Origin
) -> None:
    server.answer(
        b"HTTP/1.1 200 OK\r\nX-One: a\r\nSet-Cookie: s\r\nx-one:  b \r\nX-Latin: caf\xe9\r\n"
        b"X-Utf8: \xe2\x82\xac\r\nX-Empty:\r\ncontent-length: 0\r\n\r\n"
    )
    assert listed(await client.request(get(server.url))) == [
        ("x-one", "a"),
        ("x-one", "b"),
        ("set-cookie", "s"),
        ("x-latin", "café"),
        ("x-utf8", "€"),
        ("x-empty", ""),
        ("content-length", "0"),
    ]


@pytest.mark.requirement("http.request.raw")
async def test_nothing_is_decompressed(client: LocalHttpClient, server: Origin) -> None:
    server.answer(
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b!"
    )
    assert (await client.request(get(server.url))).body_base64 == b"\x1f\x8b!"


@pytest.mark.requirement("http.request.raw")
async def test_no_cookies_are_kept(client: LocalHttpClient, server: Origin) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\nset-cookie: a=1\r\ncontent-length: 0\r\n\r\n")
    await client.request(get(server.url))
    await client.request(get(server.url))
    assert server.heads()[1] == ["GET / HTTP/1.1", "accept: */*", "host: 127.0.0.1:PORT"]


# -- failures


@pytest.mark.requirement("http.request.failed")
async def test_nobody_listens_there(client: LocalHttpClient) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x"
        assert await failure(client, get(url)) == not_sent(url)


@pytest.mark.parametrize(
    "url", ["http://nowhere.invalid/a#b", "http://a..b/", f"http://{'x' * 64}.invalid/"]
)
async def test_there_is_no_such_host(client: LocalHttpClient, url: str) -> None:
    assert await failure(client, get(url)) == not_sent(url)


async def test_the_credentials_of_a_url_are_not_told_in_a_failure(client: LocalHttpClient) -> None:
    text = await failure(client, get("http://user:secret@127.0.0.1:0/a?b#c"))
    assert text == not_sent("http://127.0.0.1:0/a?b#c")


@pytest.mark.parametrize("answer", [b"", b"not http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
async def test_no_response_comes(client: LocalHttpClient, server: Origin, answer: bytes) -> None:
    server.answer(Last(answer))
    assert await failure(client, get(server.url)) == not_sent(server.url + "/")


@pytest.mark.requirement("http.request.body-failed")
async def test_not_all_of_the_body_comes(client: LocalHttpClient, server: Origin) -> None:
    server.answer(Last(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"))
    text = "failed to read http/request response body: error decoding response body"
    assert await failure(client, get(server.url)) == text


# -- redirects


@pytest.mark.requirement("http.request.redirects")
async def test_ten_redirects_are_followed(client: LocalHttpClient, server: Origin) -> None:
    server.answer(*[redirect("/again")] * 10)
    assert (await client.request(get(server.url))).status == 200
    assert len(server.asked) == 11
    assert server.connections == 1


@pytest.mark.requirement("http.request.redirects")
async def test_eleven_are_too_many(client: LocalHttpClient, server: Origin) -> None:
    server.answer(*[redirect("/again")] * 11)
    assert await failure(client, get(server.url)) == "http/request failed: too many redirects"


@pytest.mark.requirement("http.request.redirects")
async def test_a_redirect_can_be_the_answer(client: LocalHttpClient, server: Origin) -> None:
    server.answer(redirect("/y"))
    response = await client.request(get(server.url, redirect_policy="stop"))
    assert listed(response) == [("location", "/y"), ("content-length", "0")]


async def test_a_redirect_to_another_scheme_fails(client: LocalHttpClient, server: Origin) -> None:
    server.answer(redirect("ftp://x/"))
    assert (await failure(client, get(server.url))).endswith("unsupported URL scheme: ftp")


async def test_the_url_that_failed_is_named(client: LocalHttpClient, server: Origin) -> None:
    server.answer(redirect("http://127.0.0.1:0/z"))
    assert await failure(client, get(server.url)) == not_sent("http://127.0.0.1:0/z")


async def test_the_body_of_a_redirect_is_not_waited_for(
    client: LocalHttpClient, server: Origin
) -> None:
    server.answer(b"HTTP/1.1 302 X\r\nlocation: /y\r\ncontent-length: 1000000\r\n\r\nmoved")
    assert (await client.request(get(server.url))).status == 200
    assert server.connections == 2


@pytest.mark.requirement("http.request.redirects.secrets")
async def test_secrets_stay_with_their_host(client: LocalHttpClient, server: Origin) -> None:
    server.answer(redirect(f"http://localhost:{server.port}/y"))
    await client.request(get(f"http://u:p@127.0.0.1:{server.port}/x"))
    assert server.heads() == [
        ["GET /x HTTP/1.1", "authorization: Basic dTpw", "accept: */*", "host: 127.0.0.1:PORT"],
        [
            "GET /y HTTP/1.1",
            "referer: http://127.0.0.1:PORT/",
            "accept: */*",
            "host: localhost:PORT",
        ],
    ]


# -- connections


async def test_a_connection_is_used_again(client: LocalHttpClient, server: Origin) -> None:
    for _ in range(5):
        await client.request(get(server.url))
    assert server.connections == 1


async def test_callers_with_threads_of_their_own_share_connections_and_limits(
    client: LocalHttpClient, server: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []

    def caller(name: str) -> LocalHttpClient:
        async def run(work: Callable[[], Any]) -> Any:
            looked_up.append(name)
            return work()

        return client.resolving_by(run)

    one, other = caller("one"), caller("other")
    url = f"http://localhost:{server.port}/"
    await one.request(get(url))
    await other.request(get(url))
    assert (looked_up, server.connections) == (["one"], 1)
    monkeypatch.setattr(module, "MAX_HELD", 1)
    assert "too much is being buffered already" in await failure(other, get(url))
    # What failed is not held any more, for nobody.
    monkeypatch.setattr(module, "MAX_HELD", 2)
    assert (await one.request(get(url))).body_base64 == b"ok"


async def test_a_call_is_sent_again_if_its_connection_had_ended(
    client: LocalHttpClient, server: Origin
) -> None:
    await client.request(get(server.url))
    server.answer(Last(b""))
    assert (await client.request(get(server.url))).body_base64 == b"ok"
    assert (len(server.asked), server.connections) == (3, 2)


async def test_but_only_once(client: LocalHttpClient, server: Origin) -> None:
    await client.request(get(server.url))
    server.answer(Last(b""), Last(b""))
    assert await failure(client, get(server.url)) == not_sent(server.url + "/")


async def test_nor_if_something_came_or_if_it_could_do_harm(
    client: LocalHttpClient, server: Origin
) -> None:
    await client.request(get(server.url))
    server.answer(Last(b"HTTP/1.1"))
    assert await failure(client, get(server.url)) == not_sent(server.url + "/")
    await client.request(get(server.url))
    server.answer(Last(b""))
    assert await failure(client, get(server.url, method="POST")) == not_sent(server.url + "/")
    assert len(server.asked) == 4


async def test_a_connection_that_a_request_closes_is_not_kept(
    client: LocalHttpClient, server: Origin
) -> None:
    header = HttpHeader(name="Connection", value="close")
    await client.request(get(server.url, headers=(header,)))
    await client.request(get(server.url))
    assert server.connections == 2


async def test_a_name_with_several_addresses_is_tried_at_each(
    client: LocalHttpClient, server: Origin
) -> None:
    # localhost is often ::1 too, where this server does not listen.
    response = await client.request(get(f"http://localhost:{server.port}/"))
    assert response.status == 200


# -- time


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await HANG().wait()


async def hang_in_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabc")
    await HANG().wait()


@pytest.mark.requirement("http.request.timeout")
@pytest.mark.parametrize("limit", [0, 1, 20])
async def test_a_call_has_so_much_time(client: LocalHttpClient, server: Origin, limit: int) -> None:
    server.answer(hang)
    text = await failure(client, get(server.url, timeout_ms=limit))
    assert text == "http/request failed: route-aware request timed out"


@pytest.mark.requirement("http.request.timeout")
async def test_the_time_is_for_the_body_too(client: LocalHttpClient, server: Origin) -> None:
    server.answer(hang_in_body)
    text = await failure(client, get(server.url, timeout_ms=50))
    assert text == "failed to read http/request response body: error decoding response body"


@pytest.mark.requirement("http.request.stream.timeout")
async def test_the_time_is_for_a_streamed_body_too(client: LocalHttpClient, server: Origin) -> None:
    server.answer(hang_in_body)
    _, body = await client.stream(get(server.url, timeout_ms=50))
    pieces = aiter(body)
    assert await anext(pieces) == b"abc"
    with pytest.raises(OperationFailed, match=r"^error decoding response body$"):
        await anext(pieces)


async def test_any_time_may_be_given(client: LocalHttpClient, server: Origin) -> None:
    assert (await client.request(get(server.url, timeout_ms=2**64 - 1))).status == 200


async def test_a_call_that_is_given_up_leaves_nothing_behind(
    client: LocalHttpClient, server: Origin
) -> None:
    ended = asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        ended.set()

    server.answer(watch)
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(client.request(get(server.url)))
        await server.was_asked.wait()
        call.cancel()
    await ended.wait()


# -- bodies


async def test_a_streamed_body_comes_as_it_is_sent(client: LocalHttpClient, server: Origin) -> None:
    gate = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst")
        await gate.wait()
        writer.write(b"second")

    server.answer(talk)
    response, body = await client.stream(get(server.url))
    assert (response.status, response.body_base64) == (200, b"")
    pieces = aiter(body)
    assert await anext(pieces) == b"first"
    gate.set()
    assert [piece async for piece in pieces] == [b"second"]


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(65536))
        await writer.drain()


@pytest.mark.requirement("security.http.body")
async def test_a_body_that_is_too_large_is_refused(
    client: LocalHttpClient, server: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BODY", 1 << 20)
    server.answer(endless)
    text = await failure(client, get(server.url))
    assert text == (
        "failed to read http/request response body: "
        "it is too large to buffer: limit is 1048576 bytes"
    )


async def test_so_are_many_that_are_too_large_together(
    client: LocalHttpClient, server: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 1 << 20)
    server.answer(endless, endless)
    results = await asyncio.gather(
        *(client.request(get(server.url)) for _ in range(2)), return_exceptions=True
    )
    assert all("limit is 1048576 bytes" in str(result) for result in results)
    assert (await client.request(get(server.url))).body_base64 == b"ok"


async def test_a_body_nobody_reads_stops_its_server(
    client: LocalHttpClient, server: Origin
) -> None:
    sent = 0
    stuck = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(65536))
            sent += 65536
            try:
                async with asyncio.timeout(0.2):
                    await writer.drain()
            except TimeoutError:
                stuck.set()
                return

    server.answer(talk)
    _, body = await client.stream(get(server.url))
    await stuck.wait()
    assert sent < 64 << 20  # what fits into the buffers of two sockets, and one of ours
    assert sum([len(piece) async for piece in body]) <= sent


async def test_a_body_can_be_left(client: LocalHttpClient, server: Origin) -> None:
    server.answer(endless)
    _, body = await client.stream(get(server.url))
    async for _piece in body:
        break
    await body.aclose()
    assert (await client.request(get(server.url))).body_base64 == b"ok"


async def test_a_large_request_goes_out(client: LocalHttpClient, server: Origin) -> None:
    data = bytes(range(256)) * 20_000
    await client.request(get(server.url, method="PUT", body_base64=Base64(data)))
    assert server.asked[0].endswith(data)


async def test_a_bad_request_is_refused_at_once(client: LocalHttpClient) -> None:
    with pytest.raises(InvalidParams):
        await client.stream(get("ftp://x/"))


# -- proxies and TLS


@pytest.fixture
def tls() -> ssl.SSLContext:
    """Return the TLS context of a server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    return context


async def call(environ: dict[str, str], params: HttpRequestParams) -> HttpResponse:
    async with asyncio.timeout(5):
        client = LocalHttpClient(environ)
        try:
            return await client.request(params)
        finally:
            await client.aclose()


@pytest.mark.requirement("http.request.proxy")
async def test_a_proxy_is_asked_instead(server: Origin) -> None:
    environ = {"HTTP_PROXY": f"http://u:p@127.0.0.1:{server.port}"}
    await call(environ, get("http://nowhere.invalid/x?y#z"))
    assert server.heads()[0] == [
        "GET http://nowhere.invalid/x?y HTTP/1.1",
        "accept: */*",
        "proxy-authorization: Basic dTpw",
        "host: nowhere.invalid",
    ]


@pytest.mark.requirement("security.http.proxies")
async def test_a_proxy_that_speaks_no_http_is_not_gone_round(server: Origin) -> None:
    environ = {"ALL_PROXY": "socks5://127.0.0.1:1"}
    with pytest.raises(OperationFailed):
        await call(environ, get(server.url))
    assert not server.asked


@pytest.mark.requirement("security.http.tls")
@pytest.mark.parametrize("variable", ["CODEX_CA_CERTIFICATE", "SSL_CERT_FILE"])
async def test_tls_trusts_whom_the_environment_names(tls: ssl.SSLContext, variable: str) -> None:
    (authority,) = AUTHORITY.values()
    async with origin(tls) as server:
        response = await call({variable: authority}, get(f"https://localhost:{server.port}/"))
        assert response.body_base64 == b"ok"


@pytest.mark.requirement("security.http.tls")
async def test_tls_trusts_nobody_else(tls: ssl.SSLContext) -> None:
    async with origin(tls) as server:
        url = f"https://127.0.0.1:{server.port}/"
        with pytest.raises(OperationFailed) as failed:
            await call({}, get(url))
        assert str(failed.value) == not_sent(url)
        assert isinstance(failed.value.__cause__, ssl.SSLCertVerificationError)


@pytest.mark.requirement("security.http.tls")
@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file or directory (os error 2)"), ("", "it holds none")]
)
async def test_certificates_that_cannot_be_read_are_no_reason_to_trust_others(
    tmp_path: Path, content: str | None, why: str
) -> None:
    path = tmp_path / "authority.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(OperationFailed) as failed:
        await call({"SSL_CERT_FILE": str(path)}, get("https://127.0.0.1:0/"))
    assert str(failed.value).startswith(
        "http/request failed: Failed to read CA certificate file "
        f"{path} selected by SSL_CERT_FILE: {why}. If you set "
    )


def tunnel_to(port: int) -> Any:
    """A proxy's part: say yes, and carry bytes both ways."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)

        try:
            await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
        except ConnectionError:
            pass
        finally:
            far_writer.close()

    return talk


@pytest.mark.parametrize("proxy_tls", [False, True])
async def test_tls_goes_through_a_tunnel(tls: ssl.SSLContext, proxy_tls: bool) -> None:
    async with origin(tls if proxy_tls else None) as proxy, origin(tls) as server:
        proxy.answer(tunnel_to(server.port))
        scheme = "https" if proxy_tls else "http"
        environ = {**AUTHORITY, "HTTPS_PROXY": f"{scheme}://u:p@127.0.0.1:{proxy.port}"}
        response = await call(environ, get("https://proxied.invalid/x"))
        assert response.body_base64 == b"ok"
        assert proxy.heads() == [
            [
                "CONNECT proxied.invalid:443 HTTP/1.1",
                "Host: proxied.invalid:443",
                "Proxy-Authorization: Basic dTpw",
            ]
        ]
        assert server.heads()[0][0] == "GET /x HTTP/1.1"


@pytest.mark.parametrize(
    "answer", [Last(b""), b"HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n", b"x" * 100_000]
)
async def test_a_tunnel_can_be_refused(server: Origin, answer: bytes | Last) -> None:
    server.answer(answer)
    environ = {"HTTPS_PROXY": server.url}
    with pytest.raises(OperationFailed) as failed:
        await call(environ, get("https://proxied.invalid/x"))
    assert str(failed.value) == not_sent("https://proxied.invalid/x")
