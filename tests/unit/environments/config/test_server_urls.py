"""URLs that a server may have, and those that may carry a token."""

import pytest

from holdfast.base.errors import InvalidConfig
from holdfast.environments.config.server_urls import check_token, check_url


@pytest.mark.parametrize(
    "url",
    [
        "ws://x",
        "wss://x/y?q#f",
        "ws://[::1]:80",
        "ws://u:p@h:1",
        "ws://h:99999",  # left to the connection
        "ws://h:x",
        "ws://:80",
        "ws://h_x/ä",
    ],
)
def test_these_are_urls_of_servers(url: str) -> None:
    check_url(url)


@pytest.mark.requirement("environments.file.texts")
@pytest.mark.parametrize(
    ("url", "detail"),
    [
        ("ws://", "empty string"),
        ("ws:///p", "invalid format"),
        ("ws://a b", "invalid uri character"),
        ("ws://ä", "invalid uri character"),
        ("ws://x/`", "invalid uri character"),
        ("ws://[::1", "invalid authority"),
        ("ws://u@", "invalid authority"),
    ],
)
def test_these_are_none(url: str, detail: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check_url(url)
    assert str(caught.value) == (f"environment url `{url}` is invalid: HTTP format error: {detail}")


@pytest.mark.parametrize("url", ["WS://x", "http://x", "x", "wss:/x", "unix:/x"])
def test_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check_url(url)
    assert str(caught.value) == (f"environment url `{url}` must use ws:// or wss://")


@pytest.mark.requirement("environments.bearer-token")
@pytest.mark.parametrize(
    "url",
    [
        "wss://far",
        "ws://localhost",
        "ws://LOCALHOST:1/x",
        "ws://u@localhost",
        "ws://127.9.9.9",
        "ws://[::1]:80",
    ],
)
def test_a_token_may_go_there(url: str) -> None:
    check_token(url, "sesame \t ä")


@pytest.mark.requirement("environments.bearer-token")
@pytest.mark.parametrize(
    "url",
    [
        "ws://far",
        "ws://0.0.0.0",
        "ws://a.localhost",
        "ws://127.0.0.1.far",
        "ws://localhost@far",
        "http://localhost",
    ],
)
def test_a_token_may_not_go_there(url: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check_token(url, "a\nb")  # the way comes before the token
    assert str(caught.value) == (
        "exec-server WebSocket headers require wss:// or a loopback destination"
    )


@pytest.mark.requirement("environments.bearer-token")
@pytest.mark.parametrize("token", ["a\nb", "a\r\nX: y", "\0", "\x7f"])
def test_a_token_fits_into_a_header(token: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check_token("wss://x", token)
    assert str(caught.value) == ("invalid value for exec-server WebSocket header `authorization`")


def test_a_socket_file_is_named_by_an_absolute_path() -> None:
    check_url("unix:///run/socket")
    for url in ("unix://run/socket", "unix:///", "unix:///run/"):
        with pytest.raises(InvalidConfig, match="does not name a socket file"):
            check_url(url)
