"""URLs: what is one, what it means, and what is said of a text that is none."""

import pytest

from holdfast.engine.http.urls import InvalidUrl, Url


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "relative URL without a base"),
        ("relative", "relative URL without a base"),
        ("/path", "relative URL without a base"),
        ("//host/", "relative URL without a base"),
        ("1http://x", "relative URL without a base"),
        ("ht tp://x", "relative URL without a base"),
        ("http:", "empty host"),
        ("http://", "empty host"),
        ("http:///", "empty host"),
        ("http://:80/", "empty host"),
        ("http://u:p@/", "empty host"),
        ("ftp://", "empty host"),
        ("http://a:b/", "invalid port number"),
        ("http://a:-1/", "invalid port number"),
        ("http://a:65536/", "invalid port number"),
        ("http://a:80:80/", "invalid port number"),
        ("http://[::1]:x/", "invalid port number"),
        ("foo://h:99999/", "invalid port number"),
        ("http://[bad", "invalid IPv6 address"),
        ("http://[::1/", "invalid IPv6 address"),
        ("http://[::g]/", "invalid IPv6 address"),
        ("http://256.1.1.1/", "invalid IPv4 address"),
        ("http://1.2.3.4.5/", "invalid IPv4 address"),
        ("http://0x100000000/", "invalid IPv4 address"),
        ("http://xn--/", "invalid international domain name"),
        ("http://a b/", "invalid international domain name"),
        ("http://a<b/", "invalid international domain name"),
        ("http://a%00b/", "invalid international domain name"),
        ("foo://a b/", "invalid domain character"),
    ],
)
def test_a_text_that_is_no_url_is_refused_in_the_words_of_the_real_server(
    text: str, fault: str
) -> None:
    with pytest.raises(InvalidUrl) as refused:
        Url.parse(text)
    assert str(refused.value) == fault


@pytest.mark.parametrize(
    ("text", "href", "target"),
    [
        ("HTTP://Host:80/UP", "http://host/UP", "/UP"),
        ("  http://host/sp  ", "http://host/sp", "/sp"),
        ("http:host", "http://host/", "/"),
        ("http://127.1:8/x", "http://127.0.0.1:8/x", "/x"),
        ("http://h\\back\\slash", "http://h/back/slash", "/back/slash"),
        ("http://h?q", "http://h/?q", "/?q"),
        ("http://h/a/./b/../c", "http://h/a/c", "/a/c"),
        ("http://h/a\tb\nc", "http://h/abc", "/abc"),
        ("http://h/é?a='\"é#f", "http://h/%C3%A9?a=%27%22%C3%A9#f", "/%C3%A9?a=%27%22%C3%A9"),
        ("http://é.example/", "http://xn--9ca.example/", "/"),
        ("https://[::1]:443/", "https://[::1]/", "/"),
        ("http://u:p@h:8/a#f", "http://h:8/a#f", "/a"),
    ],
)
def test_a_url_is_spelled_in_one_way(text: str, href: str, target: str) -> None:
    url = Url.parse(text)
    assert url.href == href
    assert url.target == target
    assert url.is_http


def test_a_url_names_host_and_port_for_the_resolver_and_for_the_header() -> None:
    plain, six = Url.parse("http://Name/"), Url.parse("https://[::1]:8443/")
    assert (plain.host, plain.port, plain.authority) == ("name", 80, "name")
    assert (six.host, six.port, six.authority) == ("::1", 8443, "[::1]:8443")


@pytest.mark.parametrize(
    ("text", "credentials"),
    [
        ("http://h/", None),
        ("http://@h/", None),
        ("http://u@h/", b"u:"),
        ("http://:p@h/", b":p"),
        ("http://a%3Ab:c%40@h/", b"a:b:c@"),
        ("http://é:x@h/", "é:x".encode()),
        ("http://%FF:x@h/", None),
        ("http://a@b@h/", b"a@b:"),
    ],
)
def test_credentials_are_decoded(text: str, credentials: bytes | None) -> None:
    assert Url.parse(text).credentials == credentials


@pytest.mark.parametrize(
    ("reference", "href"),
    [
        ("c?d", "http://h:8/a/c?d"),
        ("/x", "http://h:8/x"),
        ("//other/x", "http://other/x"),
        ("https://s/", "https://s/"),
        ("", "http://h:8/a/b?q"),
    ],
)
def test_a_reference_is_joined(reference: str, href: str) -> None:
    assert Url.parse("http://u:p@h:8/a/b?q#f").join(reference).href == href


def test_a_reference_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(InvalidUrl):
        Url.parse("http://h/").join("http://[bad")


def test_a_long_url_is_read_too() -> None:
    text = "http://h/" + "x" * 5000
    assert Url.parse(text).href == text
