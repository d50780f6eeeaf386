"""Answers of a listener to plain HTTP, and its access control [auth.*]."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from websockets.exceptions import InvalidStatus

from tests.e2e.wire import UPGRADE, ServerProcess, connect, http, serving

TOKEN = "an-unguessable-token"
SECRET = "a secret of more than thirty-two bytes"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that wants a capability token; the file has blanks around it."""
    file = tmp_path_factory.mktemp("auth") / "token"
    file.write_text(f"  {TOKEN}\n")
    with serving("--ws-auth", "capability-token", "--ws-token-file", str(file)) as server:
        yield server
        assert server.errors == ""


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("auth") / "secret"
    file.write_text(f"\t{SECRET}\n\n")
    return file


@pytest.fixture(scope="module")
def signed(secret_file: Path) -> Iterator[ServerProcess]:
    """A server that wants a signed token, of any issuer and for any audience."""
    # Blank counts as not given.
    options = ("--ws-issuer", " ", "--ws-audience", "")
    with serving(*_signed_mode(secret_file), *options) as server:
        yield server
        assert server.errors == ""


@pytest.fixture(scope="module")
def particular(secret_file: Path) -> Iterator[ServerProcess]:
    """A server that wants a signed token of one issuer, for one audience, and no skew."""
    options = ("--ws-issuer", "us", "--ws-audience", "them", "--ws-max-clock-skew-seconds", "0")
    with serving(*_signed_mode(secret_file), *options) as server:
        yield server
        assert server.errors == ""


def _signed_mode(secret_file: Path) -> tuple[str, ...]:
    return ("--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", str(secret_file))


def _token(*, secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    return jwt.encode(claims, secret, algorithm=algorithm)


def _soon(seconds: int = 3600) -> int:
    return int(time.time()) + seconds


async def _upgrade(url: str, *headers: tuple[str, str]) -> tuple[int, str]:
    answer = await http(url, headers=[*UPGRADE.items(), *headers])
    return answer.status, answer.body


async def _refusal(url: str, token: str) -> tuple[int, str]:
    return await _upgrade(url, ("Authorization", f"Bearer {token}"))


# -- plain HTTP


@pytest.mark.requirement("http.readyz", "security.pages")
async def test_readyz_says_that_the_server_is_there(server: ServerProcess) -> None:
    for method, target in (("GET", "/readyz"), ("HEAD", "/readyz?"), ("GET", "/readyz?a=b&c")):
        answer = await http(server.url, target, method=method)
        assert (answer.status, answer.body) == (200, "")
        assert answer.headers["content-length"] == "0"


@pytest.mark.requirement("http.upgrade.query")
@pytest.mark.parametrize("target", ["/", "/?", "/?token=x&y=%20"])
async def test_a_proper_upgrade_becomes_a_websocket(server: ServerProcess, target: str) -> None:
    answer = await http(server.url, target, headers=UPGRADE)
    assert answer.status == 101
    # The answer to the key that RFC 6455 has as its example.
    assert answer.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    "headers",
    [
        {"Connection": "keep-alive, Upgrade"},
        {"Connection": "upgrade"},
        {"Connection": "Upgrade , keep-alive", "Upgrade": "WebSocket"},
    ],
)
async def test_an_upgrade_may_be_spelt_in_many_ways(
    server: ServerProcess, headers: dict[str, str]
) -> None:
    answer = await http(server.url, headers={**UPGRADE, **headers})
    assert answer.status == 101


@pytest.mark.requirement("ws.no-extensions")
async def test_no_compression_and_no_subprotocol_are_agreed_on(server: ServerProcess) -> None:
    offers = {
        **UPGRADE,
        "Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits",
        "Sec-WebSocket-Protocol": "chat",
    }
    answer = await http(server.url, headers=offers)
    assert answer.status == 101
    assert "sec-websocket-extensions" not in answer.headers
    assert "sec-websocket-protocol" not in answer.headers
    async with connect(server.url, compression="deflate") as client:
        assert await client.is_ready()


async def test_what_is_no_http_is_a_bad_request(server: ServerProcess) -> None:
    assert (await http(server.url, "/ HTTP/1.1 and", method="GET")).status == 400
    assert (await http(server.url, headers=[("not a name", "x")])).status == 400
    assert (await http(server.url, headers=[("Long", "x" * (17 << 10))])).status == 400


# -- no auth


# -- a capability token


@pytest.mark.requirement("auth.capability.accepted")
async def test_the_token_of_the_file_opens_the_connection(guarded: ServerProcess) -> None:
    async with connect(guarded.url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        assert await client.is_ready()


@pytest.mark.requirement("auth.capability.accepted", "serve.auth-options.digest")
async def test_a_token_with_the_given_digest_opens_the_connection() -> None:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    with serving("--ws-auth", "capability-token", "--ws-token-sha256", digest) as server:
        assert await _refusal(server.url, TOKEN) == (101, "")
        assert await _refusal(server.url, f"{TOKEN}x") == (401, "invalid websocket bearer token")


@pytest.mark.requirement("auth.header.missing")
async def test_a_missing_token_is_named(guarded: ServerProcess) -> None:
    answer = await http(guarded.url, headers=UPGRADE)
    assert (answer.status, answer.body) == (401, "missing websocket bearer token")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    with pytest.raises(InvalidStatus, match="401"):
        async with connect(guarded.url):
            pass


@pytest.mark.requirement("auth.readyz")
async def test_readyz_needs_no_token(guarded: ServerProcess) -> None:
    assert (await http(guarded.url, "/readyz")).status == 200
    headers = {"Authorization": "Bearer wrong"}
    assert (await http(guarded.url, "/readyz", headers=headers)).status == 200


@pytest.mark.requirement("http.order")
async def test_the_origin_comes_first_then_the_upgrade_then_the_token(
    guarded: ServerProcess,
) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    assert (await http(guarded.url, headers={**wrong, "Origin": "x"})).status == 403
    assert (await http(guarded.url, headers={**UPGRADE, **wrong, "Origin": "x"})).status == 403
    assert (await http(guarded.url, headers=wrong)).status == 400
    assert (await http(guarded.url, method="POST", headers=wrong)).status == 405
    assert (await http(guarded.url, headers={**UPGRADE, **wrong})).status == 401
    assert (await http(guarded.url, "/other", headers=wrong)).status == 404


# -- signed tokens


@pytest.mark.requirement("auth.jwt.accepted")
async def test_a_signed_token_opens_the_connection(signed: ServerProcess) -> None:
    for token in (
        _token(exp=_soon()),
        _token(exp=_soon(), nbf=_soon(-60)),
        _token(exp=_soon(), iss="anyone", aud=["anybody"], sub="x", iat=_soon(9000)),
    ):
        assert await _refusal(signed.url, token) == (101, "")
    async with connect(signed.url, headers={"Authorization": f"Bearer {token}"}) as client:
        assert await client.is_ready()


async def test_the_options_of_signed_tokens_are_those_of_the_command_line(
    particular: ServerProcess,
) -> None:
    good: dict[str, Any] = {"exp": _soon(), "iss": "us", "aud": "them"}
    assert await _refusal(particular.url, _token(**good)) == (101, "")
    for changed, text in (
        ({"secret": SECRET[::-1]}, "invalid websocket jwt"),
        ({"iss": "you"}, "websocket jwt issuer mismatch"),
        ({"aud": "us"}, "websocket jwt audience mismatch"),
        ({"exp": _soon(-2)}, "expired websocket jwt"),
        ({"nbf": _soon(15)}, "websocket jwt is not valid yet"),
    ):
        assert await _refusal(particular.url, _token(**good | changed)) == (401, text)
