"""
Requests before they are sent: the checks and their order, redirects, the bytes.

See [http.request.*].
"""

from typing import Any

import pytest

from holdfast.base.errors import InvalidParams, OperationFailed
from holdfast.engine.http.outgoing import OutgoingRequest, prepare
from holdfast.wire.protocol.http import HttpHeader, HttpRequestParams
from holdfast.wire.protocol.wire_types import Base64

ENVIRON = {
    "TOKEN": "secret",
    "EMPTY": "",
    "LINES": "a\nb",
    "BYTES": "\udcff",
    "OPENAI_API_KEY": "k",
}


def params(**given: Any) -> HttpRequestParams:
    return HttpRequestParams(**{"method": "GET", "url": "http://h/x", "request_id": "r", **given})


def headers(*pairs: tuple[str, str]) -> tuple[HttpHeader, ...]:
    return tuple(HttpHeader(name=name, value=value) for name, value in pairs)


def prepared(**given: Any) -> OutgoingRequest:
    return prepare(params(**given), ENVIRON)


def lines(request: OutgoingRequest, **options: Any) -> list[str]:
    return request.encode(**options).decode().split("\r\n")


def refusal(**given: Any) -> str:
    with pytest.raises(InvalidParams) as refused:
        prepared(**given)
    return str(refused.value)


BODY = Base64(b"hi")

# -- checks


@pytest.mark.requirement("http.request.refused")
@pytest.mark.parametrize("method", ["", "BAD M", "é", "GET\r\nX: y", "G:T"])
def test_a_method_is_a_token(method: str) -> None:
    assert refusal(method=method) == "http/request method is invalid: invalid HTTP method"


@pytest.mark.requirement("http.request.refused")
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("relative", "url is invalid: relative URL without a base"),
        ("http://[bad", "url is invalid: invalid IPv6 address"),
        ("ftp://h/", "only supports http and https URLs, got ftp"),
        ("file:///etc/passwd", "only supports http and https URLs, got file"),
        ("mailto:x", "only supports http and https URLs, got mailto"),
    ],
)
def test_a_url_is_absolute_and_of_http(url: str, text: str) -> None:
    assert refusal(url=url) == f"http/request {text}"


@pytest.mark.requirement("http.request.refused")
@pytest.mark.parametrize("name", ["", "bad name", "é", "a\r\nb", "a:b"])
def test_a_header_name_is_a_token(name: str) -> None:
    text = "http/request header name is invalid: invalid HTTP header name"
    assert refusal(headers=headers((name, "x"))) == text


@pytest.mark.requirement("http.request.refused")
@pytest.mark.parametrize("value", ["a\nb", "a\r", "\0", "\x7f", "\x1b[0m", "a\r\nX-Injected: 1"])
def test_a_header_value_holds_no_control_characters(value: str) -> None:
    text = "http/request header value is invalid for X-A: failed to parse header value"
    assert refusal(headers=headers(("X-A", value))) == text


@pytest.mark.requirement("http.request.variables", "http.request.variables.secret")
@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("NOT_THERE", "requires executor environment variable NOT_THERE"),
        ("", "requires executor environment variable "),
        ("BYTES", "requires executor environment variable BYTES"),
        ("EMPTY", "requires a non-empty executor environment variable EMPTY"),
        ("HOLDFAST_TOKEN", "cannot use executor environment variable HOLDFAST_TOKEN"),
        ("OPENAI_API_KEY", "cannot use executor environment variable OPENAI_API_KEY"),
        ("openai_Api_key", "cannot use executor environment variable openai_Api_key"),
        ("AWS_SESSION_TOKEN", "cannot use executor environment variable AWS_SESSION_TOKEN"),
    ],
)
def test_a_variable_is_there_and_no_secret_of_the_executor(variable: str, text: str) -> None:
    header = HttpHeader(name="X-y", value="p", value_env_var=variable)
    assert refusal(headers=(header,)) == f"http/request header X-y {text}"


@pytest.mark.requirement("http.request.variables")
def test_a_variable_is_appended_to_the_value() -> None:
    header = HttpHeader(name="Authorization", value="Bearer ", value_env_var="TOKEN")
    assert "authorization: Bearer secret" in lines(prepared(headers=(header,)))


def test_a_variable_cannot_bring_a_line_of_its_own() -> None:
    header = HttpHeader(name="x", value="", value_env_var="LINES")
    assert refusal(headers=(header,)).endswith("for x: failed to parse header value")


@pytest.mark.requirement("http.request.order")
def test_the_first_fault_in_the_order_of_the_real_server_is_named() -> None:
    bad = {"headers": headers(("a b", "\n")), "url": "ftp://x", "method": ""}
    assert "method" in refusal(**bad)
    assert "only supports" in refusal(**{**bad, "method": "GET"})
    assert "header name" in refusal(headers=bad["headers"])


# -- bytes


@pytest.mark.requirement("http.request.header-names")
def test_headers_go_out_in_lower_case_in_order_with_repeats_together() -> None:
    request = prepared(headers=headers(("X-A", "1"), ("B", "é"), ("x-a", "2\t3")))
    assert lines(request) == [
        "GET /x HTTP/1.1", "x-a: 1", "x-a: 2\t3", "b: é", "accept: */*", "host: h", "", "",
    ]  # fmt: skip


@pytest.mark.requirement("http.request.headers")
def test_accept_and_host_can_be_replaced() -> None:
    request = prepared(headers=headers(("HOST", "other"), ("Accept", "a/b")))
    assert lines(request) == ["GET /x HTTP/1.1", "host: other", "accept: a/b", "", ""]


@pytest.mark.requirement("http.request.headers")
def test_only_a_body_that_is_not_empty_has_a_length() -> None:
    assert lines(prepared(method="POST", body_base64=BODY))[-3:] == ["content-length: 2", "", "hi"]
    assert lines(prepared(method="POST", body_base64=Base64(b"")))[-3:] == ["host: h", "", ""]


@pytest.mark.requirement("http.request.user-info")
def test_credentials_of_the_url_become_a_header_unless_there_is_one() -> None:
    url = "http://u:p@h/x"
    assert lines(prepared(url=url))[1] == "authorization: Basic dTpw"
    own = prepared(url=url, headers=headers(("authorization", "X")))
    assert lines(own)[1:3] == ["authorization: X", "accept: */*"]


def test_a_length_that_is_right_may_be_given() -> None:
    zero = prepared(method="POST", headers=headers(("Content-Length", "0")))
    assert lines(zero)[1] == "content-length: 0"
    two = prepared(method="POST", body_base64=BODY, headers=headers(("Content-Length", "2")))
    assert lines(two).count("content-length: 2") == 1


@pytest.mark.parametrize("length", ["1", "5", "x", "+2", "2, 2"])
def test_a_length_that_is_wrong_is_refused(length: str) -> None:
    given = headers(("content-length", length))
    assert refusal(body_base64=BODY, headers=given).endswith("the body has 2 bytes")


def test_two_lengths_are_refused() -> None:
    given = headers(("content-length", "2"), ("content-length", "2"))
    assert refusal(body_base64=BODY, headers=given).endswith("the body has 2 bytes")


def test_a_body_can_be_asked_to_go_out_in_chunks() -> None:
    given = headers(("transfer-encoding", "gzip"), ("content-length", "77"))
    request = prepared(method="POST", body_base64=BODY, headers=given)
    assert lines(request)[1:] == [
        "transfer-encoding: gzip, chunked", "accept: */*", "host: h", "", "2", "hi", "0", "", "",
    ]  # fmt: skip
    assert "transfer-encoding" not in prepared(headers=given).headers


def test_a_proxy_is_told_the_whole_url() -> None:
    request = prepared(url="http://h:8/x?y#z")
    assert lines(request, absolute=True, proxy_credentials="Basic q") == [
        "GET http://h:8/x?y HTTP/1.1",
        "accept: */*",
        "proxy-authorization: Basic q",
        "host: h:8",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("url", "target"),
    [("http://h/x", "h:80"), ("http://h:8/x", "h:8"), ("http://[::1]/", "[::1]:80")],
)
def test_connect_names_a_host_and_a_port(url: str, target: str) -> None:
    assert lines(prepared(method="CONNECT", url=url))[0] == f"CONNECT {target} HTTP/1.1"


# -- redirects

CONTENT = (("content-type", "t"), ("content-encoding", "e"), ("x", "1"))


def redirected(status: int, location: str = "/y", **given: Any) -> OutgoingRequest:
    following = prepared(**given).redirected(status, [location.encode()])
    assert following is not None
    return following


@pytest.mark.requirement("http.request.redirects.method")
@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_post_that_is_moved_becomes_a_get_without_its_content(status: int) -> None:
    following = redirected(status, method="POST", body_base64=BODY, headers=headers(*CONTENT))
    assert lines(following) == [
        "GET /y HTTP/1.1", "x: 1", "referer: http://h/x", "accept: */*", "host: h", "", "",
    ]  # fmt: skip


@pytest.mark.requirement("http.request.redirects.method")
@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "PUT", "PUT"),
        (302, "post", "post"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (307, "POST", "POST"),
        (308, "POST", "POST"),
    ],
)
def test_other_methods_and_statuses_keep_the_method_as_they_should(
    status: int, method: str, then: str
) -> None:
    following = redirected(status, method=method, body_base64=BODY, headers=headers(*CONTENT))
    assert following.method == then
    assert following.body == (b"" if status == 303 else b"hi")
    assert ("content-type" in following.headers) == (status != 303)


@pytest.mark.requirement("http.request.redirects.none")
@pytest.mark.parametrize("status", [200, 201, 300, 304, 305, 306, 310])
def test_other_statuses_lead_nowhere(status: int) -> None:
    assert prepared().redirected(status, [b"/y"]) is None


@pytest.mark.requirement("http.request.redirects.none")
@pytest.mark.parametrize("locations", [[], [b"http://[bad"], [b"/\xc3\xa9"]])
def test_a_redirect_without_a_readable_location_is_the_answer(locations: list[bytes]) -> None:
    assert prepared().redirected(302, locations) is None


@pytest.mark.requirement("http.request.redirects.none")
def test_a_redirect_to_another_scheme_fails() -> None:
    with pytest.raises(OperationFailed) as failure:
        prepared().redirected(302, [b"ftp://h/"])
    text = "http/request failed: redirect target uses unsupported URL scheme: ftp"
    assert str(failure.value) == text


SECRETS = (("authorization", "a"), ("cookie", "c"), ("cookie2", "c"), ("proxy-authorization", "p"))


@pytest.mark.requirement("http.request.redirects.secrets")
def test_another_host_is_not_told_the_secrets_of_the_first() -> None:
    given = headers(*SECRETS, ("x-keep", "k"))
    following = redirected(302, "http://other/y", headers=given)
    assert list(following.headers) == ["x-keep", "referer"]
    assert following.headers["referer"] == [b"http://h/"]


def test_another_port_is_another_host() -> None:
    given = headers(*SECRETS)
    assert list(redirected(302, "http://h:81/y", headers=given).headers) == ["referer"]
    assert len(redirected(302, "http://h:80/y", headers=given).headers) == 5


def test_credentials_of_the_url_go_on_to_the_same_host_only() -> None:
    url = "http://u:p@h/x"
    assert "authorization" in redirected(302, url=url).headers
    assert "authorization" not in redirected(302, "http://v:q@other/y", url=url).headers
    assert "authorization" not in redirected(302, "http://v:q@h/y").headers


@pytest.mark.requirement("security.http.referer")
def test_a_referer_is_replaced_and_never_leaves_tls() -> None:
    own = headers(("referer", "mine"))
    assert redirected(302, headers=own).headers["referer"] == [b"http://h/x"]
    to_plain = redirected(302, "http://h/", url="https://h/x?q", headers=())
    assert "referer" not in to_plain.headers


@pytest.mark.parametrize(("method", "repeatable"), [("GET", True), ("PUT", True), ("POST", False)])
def test_only_what_does_no_harm_twice_is_repeatable(method: str, repeatable: bool) -> None:
    assert prepared(method=method).repeatable is repeatable
