"""Proxies by the environment [http.request.proxy]."""

import pytest

from holdfast.engine.http.proxies import Proxies
from holdfast.engine.http.urls import Url


def found(url: str, **environ: str) -> str | None:
    proxy = Proxies(environ).find(Url.parse(url))
    return None if proxy is None else proxy.url.origin


def test_without_variables_there_is_no_proxy() -> None:
    assert found("http://h/") is None


@pytest.mark.requirement("http.request.proxy")
def test_each_scheme_has_its_own_and_loopback_is_no_exception() -> None:
    both = {"HTTP_PROXY": "http://a:1", "HTTPS_PROXY": "http://b:2"}
    assert found("http://127.0.0.1/", **both) == "http://a:1"
    assert found("https://localhost/", **both) == "http://b:2"
    assert found("https://h/", HTTP_PROXY="http://a:1") is None


def test_one_variable_may_name_it_for_all() -> None:
    assert found("http://h/", ALL_PROXY="http://a:1", HTTP_PROXY="") == "http://a:1"
    assert found("https://h/", all_proxy="http://a:1") == "http://a:1"


def test_capitals_come_first() -> None:
    assert found("http://h/", HTTP_PROXY="http://a:1", http_proxy="http://b:2") == "http://a:1"


@pytest.mark.requirement("security.http.proxies")
def test_a_proxy_may_lack_its_scheme_or_make_no_sense() -> None:
    assert found("http://h/", http_proxy="a:1") == "http://a:1"
    assert found("http://h/", HTTP_PROXY=":::bad") is None


@pytest.mark.requirement("security.http.proxies")
def test_in_a_cgi_program_a_header_of_the_caller_is_no_proxy() -> None:
    environ = {"HTTP_PROXY": "http://a:1", "REQUEST_METHOD": "GET"}
    assert found("http://h/", **environ) is None


@pytest.mark.requirement("security.http.proxies")
def test_the_variables_are_read_once() -> None:
    environ = {"HTTP_PROXY": "http://a:1"}
    proxies = Proxies(environ)
    environ["HTTP_PROXY"] = "http://b:2"
    proxy = proxies.find(Url.parse("http://h/"))
    assert proxy is not None
    assert proxy.url.host == "a"


def test_credentials_are_for_the_proxy() -> None:
    proxy = Proxies({"HTTP_PROXY": "http://u:p@a:1"}).find(Url.parse("http://h/"))
    assert proxy is not None
    assert proxy.credentials == "Basic dTpw"


@pytest.mark.parametrize(
    ("host", "direct"),
    [
        ("example.com", True),
        ("sub.example.com", True),
        ("badexample.com", False),
        ("dotted.org", True),
        ("a.dotted.org", True),
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("11.0.0.1", False),
        ("[::1]", True),
        ("[::2]", False),
    ],
)
def test_some_hosts_are_reached_directly(host: str, direct: bool) -> None:
    exceptions = "example.com, .dotted.org ,127.0.0.1,10.0.0.0/8,::1"
    proxy = found(f"http://{host}/", HTTP_PROXY="http://a:1", NO_PROXY=exceptions)
    assert (proxy is None) is direct


def test_a_star_stands_for_all() -> None:
    assert found("http://1.2.3.4/", HTTP_PROXY="http://a:1", no_proxy="*") is None
