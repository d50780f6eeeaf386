"""Addresses of a server, and its answers to plain HTTP."""

import pytest

from holdfast.server.listen import (
    BadListenUrl,
    ListenUrl,
    make_gate,
    meant_listen_url,
    parse_listen_url,
)
from holdfast.server.operate.auth import Unauthorized
from holdfast.wire.transports.http_head import RequestHead, Response
from holdfast.wire.transports.transport import Credential

UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


# Where.


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("stdio", ListenUrl("stdio")),
        ("stdio://", ListenUrl("stdio")),
        ("ws://127.0.0.1:0", ListenUrl("ws", "127.0.0.1", 0)),
        ("ws://0.0.0.0:65535", ListenUrl("ws", "0.0.0.0", 65535)),
        ("unix:///run/x.sock", ListenUrl("unix", path="/run/x.sock")),
    ],
)
def test_a_place_to_listen_is_read(url: str, expected: ListenUrl) -> None:
    assert parse_listen_url(url) == expected


@pytest.mark.requirement("serve.listen.ipv6")
def test_an_ipv6_address_stands_in_brackets() -> None:
    assert parse_listen_url("ws://[::1]:80") == ListenUrl("ws", "::1", 80)
    for url in ("ws://::1:80", "ws://[127.0.0.1]:80", "ws://[]:80", "ws://[::g]:80"):
        with pytest.raises(BadListenUrl):
            parse_listen_url(url)


@pytest.mark.requirement("serve.listen.address")
@pytest.mark.parametrize(
    "url",
    [
        "ws://",
        "ws://127.0.0.1",
        "ws://127.0.0.1:",
        "ws://localhost:80",
        "ws://:80",
        "ws://127.0.0.1:80/",
        "ws://127.0.0.1:80/path",
        "ws://127.0.0.1:65536",
        "ws://127.0.0.1:-1",
        "ws://127.0.0.1:x",
        "ws://127.0.0.256:80",
        "ws://127.0.0.1:80 ",
        "ws://user@127.0.0.1:80",
    ],
)
def test_an_address_is_an_ip_literal_and_a_port(url: str) -> None:
    with pytest.raises(BadListenUrl) as caught:
        parse_listen_url(url)
    assert str(caught.value) == (f"invalid websocket --listen URL `{url}`; expected `ws://IP:PORT`")


@pytest.mark.requirement("serve.listen.scheme")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "tcp",
        "127.0.0.1:80",
        "wss://127.0.0.1:80",
        "http://127.0.0.1:80",
        "WS://127.0.0.1:80",
        "stdio:/",
        "unix:///",
    ],
)
def test_another_scheme_is_unsupported(url: str) -> None:
    with pytest.raises(BadListenUrl) as caught:
        parse_listen_url(url)
    assert str(caught.value) == (
        f"unsupported --listen URL `{url}`; expected `ws://IP:PORT` or `stdio`"
    )


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("4500", "did you mean `ws://127.0.0.1:4500`?"),
        (":4500", "did you mean `ws://127.0.0.1:4500`?"),
        ("10.0.0.1:4500", "did you mean `ws://10.0.0.1:4500`?"),
        ("localhost:4500", "did you mean `ws://127.0.0.1:4500`?"),
        ("ws://localhost:4500/", "did you mean `ws://127.0.0.1:4500`?"),
        ("http://127.0.0.1:4500", "did you mean `ws://127.0.0.1:4500`?"),
        ("/run/x.sock", "did you mean `unix:///run/x.sock`?"),
        ("wss://127.0.0.1:4500", "use `ws://` with `--tls-cert` and `--tls-key`"),
    ],
)
def test_a_url_that_is_refused_has_a_hint(url: str, meant: str) -> None:
    assert meant_listen_url(url) == f" ({meant})"


@pytest.mark.parametrize(
    "url", ["", "tcp", "ws://127.0.0.1", "ws://host:80", "1:99999", "ftp://1:2"]
)
def test_without_an_idea_there_is_no_hint(url: str) -> None:
    assert meant_listen_url(url) == ""


def test_a_unix_socket_has_an_absolute_path() -> None:
    with pytest.raises(BadListenUrl, match="expected `unix:///absolute/path`"):
        parse_listen_url("unix://relative")


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("stdio", True),
        ("unix:///x", True),
        ("ws://127.0.0.1:0", True),
        ("ws://127.9.9.9:0", True),
        ("ws://[::1]:0", True),
        ("ws://0.0.0.0:0", False),
        ("ws://[::]:0", False),
        ("ws://192.168.0.1:0", False),
    ],
)
def test_a_place_is_local_if_only_this_machine_reaches_it(url: str, local: bool) -> None:
    assert parse_listen_url(url).is_local is local


# Plain HTTP.


def knock(
    method: str = "GET", path: str = "/", *, token: str | None = None, **headers: str
) -> tuple[int, str]:
    """Return the answer of a gate with a token: status and text, 101 if it lets the caller in."""

    def check(header: str | None) -> Credential:
        if header != token:
            raise Unauthorized(f"wrong: {header}")
        return Credential("somebody")

    names = {name.replace("_", "-"): value for name, value in headers.items()}
    head = RequestHead(method, path, list(names.items()))
    decided = make_gate(None if token is None else check)(head)
    if isinstance(decided, Credential):
        assert decided.principal == ("anonymous" if token is None else "somebody")
        return 101, ""
    return decided.status, decided.body.decode()


def proper(**headers: str) -> dict[str, str]:
    return {**{name.replace("-", "_"): value for name, value in UPGRADE.items()}, **headers}


@pytest.mark.requirement("http.readyz.method")
def test_readiness_can_only_be_read() -> None:
    response = make_gate(None)(RequestHead("POST", "/readyz", []))
    assert isinstance(response, Response)
    assert (response.status, response.headers) == (405, (("allow", "GET,HEAD"),))


@pytest.mark.requirement("http.not-found")
@pytest.mark.parametrize("path", ["/healthz", "/readyz/", "/x", "//", ""])
def test_there_is_nothing_else(path: str) -> None:
    assert knock(path=path) == (404, "")


@pytest.mark.requirement("http.origin")
@pytest.mark.parametrize("path", ["/", "/readyz", "/nope"])
@pytest.mark.parametrize("origin", ["", "null", "http://127.0.0.1"])
def test_no_page_may_reach_a_server(path: str, origin: str) -> None:
    assert knock(path=path, **proper(origin=origin)) == (403, "")


@pytest.mark.requirement("http.upgrade.missing", "http.upgrade.method")
def test_the_root_is_for_websockets() -> None:
    assert knock() == (400, "Connection header did not include 'upgrade'")
    assert knock("POST") == (405, "Request method must be `GET`")
    assert knock(**proper()) == (101, "")


@pytest.mark.requirement("http.order", "auth.ignored-without-mode")
def test_the_origin_comes_first_then_the_headers_then_the_token() -> None:
    assert knock(token="t", origin="x")[0] == 403
    assert knock(token="t")[0] == 400
    assert knock(token="t", **proper()) == (401, "wrong: None")
    assert knock(token="t", **proper(authorization="x")) == (401, "wrong: x")
    assert knock(token="t", **proper(authorization="t")) == (101, "")
    assert knock(**proper(authorization="ignored")) == (101, "")


def test_a_server_may_listen_for_http_instead() -> None:
    url = parse_listen_url("http://127.0.0.1:4700", scheme="http")
    assert url == ListenUrl("http", "127.0.0.1", 4700)
    assert url.is_local
    assert not parse_listen_url("http://0.0.0.0:1", scheme="http").is_local
    with pytest.raises(BadListenUrl, match="expected `http://IP:PORT` or `stdio`"):
        parse_listen_url("ws://127.0.0.1:1", scheme="http")
    with pytest.raises(BadListenUrl, match="invalid http --listen URL"):
        parse_listen_url("http://localhost:1", scheme="http")
