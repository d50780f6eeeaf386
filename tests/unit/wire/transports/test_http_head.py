"""The head of a request, and the answers that are no WebSocket."""

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.transports.http_head import BadHead, RequestHead, Response, upgrade_fault

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
)


def fault(head: bytes) -> tuple[int, bytes]:
    response = upgrade_fault(RequestHead.parse(head))
    assert response is not None
    return response.status, response.body


# Reading a head.


def test_a_head_has_a_method_a_path_and_headers() -> None:
    head = RequestHead.parse(b"GET /x HTTP/1.1\r\nA: 1\r\nb-C:\t two \r\nA: 3")
    assert (head.method, head.path) == ("GET", "/x")
    assert head.headers == [("a", "1"), ("b-c", "two"), ("a", "3")]


@pytest.mark.requirement("http.upgrade.query", "http.readyz")
@pytest.mark.parametrize("target", [b"/?a=b?c", b"/?", b"/"])
def test_a_query_is_no_part_of_the_path(target: bytes) -> None:
    assert RequestHead.parse(b"GET " + target + b" HTTP/1.1").path == "/"


@pytest.mark.requirement("auth.header.lenient")
def test_the_first_header_of_a_name_counts() -> None:
    head = RequestHead.parse(b"GET / HTTP/1.1\r\nAuthorization: one\r\nauthorization: two")
    assert head.get("authorization") == "one"
    assert head.get("origin") is None


@pytest.mark.requirement("http.origin")
def test_an_empty_header_is_there() -> None:
    assert RequestHead.parse(b"GET / HTTP/1.1\r\nOrigin:").get("origin") == ""


def test_a_list_is_searched_over_all_headers_of_its_name_and_without_case() -> None:
    head = RequestHead.parse(b"GET / HTTP/1.1\r\nConnection: close\r\nConnection: a , UPGRADE")
    assert head.lists("connection", "upgrade")
    assert not head.lists("connection", "upgra")
    assert not head.lists("upgrade", "websocket")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET /",
        b"GET  HTTP/1.1",
        b"GET / HTTP/2",
        b"GET / x HTTP/1.1",
        b"\x16\x03\x01",
        b"GET / HTTP/1.1\r\nno colon",
        b"GET / HTTP/1.1\r\n: no name",
        b"GET / HTTP/1.1\r\nbad name: x",
        b"GET / HTTP/1.1\r\nname : x",
        b"GET / HTTP/1.1\r\nA: 1\r\n folded: x",
        b"GET / HTTP/1.1" + b"\r\nA: 1" * 129,
    ],
)
def test_what_is_no_request_is_refused(head: bytes) -> None:
    with pytest.raises(BadHead):
        RequestHead.parse(head)


@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda tail: UPGRADE + b"\r\n" + tail))
def test_any_bytes_are_a_head_or_refused(data: bytes) -> None:
    try:
        head = RequestHead.parse(data)
    except BadHead:
        return
    upgrade_fault(head)


# Becoming a WebSocket.


@pytest.mark.requirement("http.upgrade.query")
def test_a_proper_request_has_no_fault() -> None:
    assert upgrade_fault(RequestHead.parse(UPGRADE)) is None


@pytest.mark.requirement("http.upgrade.method")
@pytest.mark.parametrize("method", [b"POST", b"HEAD", b"get", b"OPTIONS"])
def test_only_a_get_becomes_a_websocket(method: bytes) -> None:
    assert fault(UPGRADE.replace(b"GET", method)) == (405, b"Request method must be `GET`")


@pytest.mark.requirement("http.upgrade.missing", "http.upgrade.version")
@pytest.mark.parametrize(
    ("there", "instead", "text"),
    [
        (b"keep-alive, Upgrade", b"close", b"Connection header did not include 'upgrade'"),
        (b"WebSocket", b"h2c", b"`Upgrade` header did not include 'websocket'"),
        (b"13", b"12", b"`Sec-WebSocket-Version` header did not include '13'"),
        (b"Sec-WebSocket-Key", b"Other", b"`Sec-WebSocket-Key` header missing"),
        (b"dGhl", b"!!!!", b"`Sec-WebSocket-Key` header missing"),
        (b"dGhl", b"", b"`Sec-WebSocket-Key` header missing"),
    ],
    ids=repr,
)
def test_each_header_that_is_missing_is_named(there: bytes, instead: bytes, text: bytes) -> None:
    assert there in UPGRADE
    assert fault(UPGRADE.replace(there, instead)) == (400, text)


# Answers.


def test_an_answer_is_whole_and_ends_its_connection() -> None:
    assert Response(HTTPStatus.NOT_FOUND).encode() == (
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )


@pytest.mark.requirement("auth.header.missing")
def test_a_text_says_that_it_is_one() -> None:
    encoded = Response(HTTPStatus.UNAUTHORIZED, b"no token").encode()
    head, _, body = encoded.partition(b"\r\n\r\n")
    assert body == b"no token"
    assert b"content-type: text/plain; charset=utf-8" in head.split(b"\r\n")
    assert b"content-length: 8" in head.split(b"\r\n")


def test_other_headers_go_out_as_given() -> None:
    headers = (("allow", "GET,HEAD"), ("content-type", "application/json"))
    lines = Response(HTTPStatus.OK, b"{}", headers).encode().split(b"\r\n")
    assert b"allow: GET,HEAD" in lines
    assert b"content-type: application/json" in lines
    assert sum(line.startswith(b"content-type") for line in lines) == 1


def test_the_answer_to_a_head_has_no_body() -> None:
    encoded = Response(HTTPStatus.OK, b"body").encode(head_only=True)
    assert encoded.endswith(b"\r\n\r\n")
    assert b"content-length: 4" in encoded
