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
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("target", ["/readyz", "/readyz?", "/readyz?a=b&c"])
async def test_readyz_says_that_the_server_is_there(
    server: ServerProcess, method: str, target: str
) -> None:
    answer = await http(server.url, target, method=method)
    assert (answer.status, answer.body) == (200, "")
    assert answer.headers["content-length"] == "0"


@pytest.mark.requirement("http.readyz.method")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_readyz_knows_two_methods(server: ServerProcess, method: str) -> None:
    answer = await http(
        server.url, "/readyz", method=method, headers={"Content-Length": "2"}, body=b"hi"
    )
    assert (answer.status, answer.body) == (405, "")
    assert answer.headers["allow"] == "GET,HEAD"


@pytest.mark.requirement("http.not-found")
@pytest.mark.parametrize("headers", [{}, UPGRADE], ids=["plain", "upgrade"])
@pytest.mark.parametrize("target", ["/healthz", "/readyz/", "/ws", "//", "/index.html?x=1"])
async def test_other_paths_are_not_found(
    server: ServerProcess, target: str, headers: dict[str, str]
) -> None:
    for method in ("GET", "POST"):
        answer = await http(server.url, target, method=method, headers=headers)
        assert (answer.status, answer.body) == (404, "")


@pytest.mark.requirement("http.upgrade.missing")
async def test_the_root_without_upgrade_headers_is_a_bad_request(server: ServerProcess) -> None:
    answer = await http(server.url)
    assert (answer.status, answer.body) == (400, "Connection header did not include 'upgrade'")


@pytest.mark.parametrize("missing", ["Upgrade", "Sec-WebSocket-Key"])
async def test_the_root_without_one_upgrade_header_is_a_bad_request(
    server: ServerProcess, missing: str
) -> None:
    answer = await http(server.url, headers={k: v for k, v in UPGRADE.items() if k != missing})
    assert answer.status == 400
    assert missing in answer.body


@pytest.mark.requirement("http.upgrade.version")
async def test_another_version_of_websocket_is_a_bad_request(server: ServerProcess) -> None:
    answer = await http(server.url, headers={**UPGRADE, "Sec-WebSocket-Version": "12"})
    assert (answer.status, answer.body) == (
        400,
        "`Sec-WebSocket-Version` header did not include '13'",
    )


@pytest.mark.requirement("http.upgrade.method")
@pytest.mark.parametrize("headers", [{}, UPGRADE], ids=["plain", "upgrade"])
async def test_the_root_is_only_for_get(server: ServerProcess, headers: dict[str, str]) -> None:
    answer = await http(server.url, method="POST", headers=headers)
    assert (answer.status, answer.body) == (405, "Request method must be `GET`")
    assert (await http(server.url, method="HEAD", headers=headers)).status == 405


@pytest.mark.requirement("http.origin")
@pytest.mark.parametrize("origin", ["http://example.com", "null", ""])
@pytest.mark.parametrize("target", ["/", "/readyz", "/nowhere"])
async def test_a_browser_is_refused_everywhere(
    server: ServerProcess, target: str, origin: str
) -> None:
    for method in ("GET", "POST"):
        answer = await http(server.url, target, method=method, headers={"Origin": origin})
        assert (answer.status, answer.body) == (403, "")
    assert await _upgrade(server.url, ("Origin", origin)) == (403, "")


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


@pytest.mark.requirement("auth.ignored-without-mode")
@pytest.mark.parametrize("value", ["Bearer x", "Basic eDp5", "", "\xff"])
async def test_a_server_without_auth_ignores_the_header(server: ServerProcess, value: str) -> None:
    assert await _upgrade(server.url, ("Authorization", value)) == (101, "")


# -- a capability token


@pytest.mark.requirement("auth.capability.accepted")
async def test_the_token_of_the_file_opens_the_connection(guarded: ServerProcess) -> None:
    async with connect(guarded.url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        assert await client.is_ready()


@pytest.mark.requirement("auth.capability.accepted", "serve.auth-options.digest")
@pytest.mark.parametrize("spell", [str.upper, str.lower])
async def test_a_token_with_the_given_digest_opens_the_connection(spell: type[str]) -> None:
    digest = spell(hashlib.sha256(TOKEN.encode()).hexdigest())
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


@pytest.mark.requirement("auth.header.invalid")
@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer   ",
        f"Bearer{TOKEN}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xe9",
    ],
)
async def test_a_header_that_holds_no_token_is_invalid(guarded: ServerProcess, value: str) -> None:
    refused = (401, "invalid authorization header")
    assert await _upgrade(guarded.url, ("Authorization", value)) == refused


@pytest.mark.requirement("auth.header.lenient")
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
async def test_the_scheme_has_no_case_and_blanks_do_not_matter(
    guarded: ServerProcess, scheme: str
) -> None:
    assert await _upgrade(guarded.url, ("authorization", f"{scheme}   {TOKEN} ")) == (101, "")


@pytest.mark.requirement("auth.header.lenient")
async def test_the_first_of_two_headers_counts(guarded: ServerProcess) -> None:
    good, bad = ("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer wrong")
    assert await _upgrade(guarded.url, good, bad) == (101, "")
    assert await _upgrade(guarded.url, bad, good) == (401, "invalid websocket bearer token")


@pytest.mark.requirement("auth.capability.wrong")
@pytest.mark.parametrize("token", ["wrong", TOKEN.upper(), TOKEN[:-1], f"{TOKEN} {TOKEN}"])
async def test_another_token_is_invalid(guarded: ServerProcess, token: str) -> None:
    assert await _refusal(guarded.url, token) == (401, "invalid websocket bearer token")


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


@pytest.mark.requirement("auth.jwt.accepted", "auth.jwt.issuer", "auth.jwt.audience")
async def test_a_signed_token_opens_the_connection(signed: ServerProcess) -> None:
    for token in (
        _token(exp=_soon()),
        _token(exp=_soon(), nbf=_soon(-60)),
        _token(exp=_soon(), iss="anyone", aud=["anybody"], sub="x", iat=_soon(9000)),
    ):
        assert await _refusal(signed.url, token) == (101, "")
    async with connect(signed.url, headers={"Authorization": f"Bearer {token}"}) as client:
        assert await client.is_ready()


@pytest.mark.requirement("auth.jwt.invalid")
async def test_a_token_that_cannot_be_trusted_is_invalid(signed: ServerProcess) -> None:
    good = _token(exp=_soon())
    head, claims, signature = good.split(".")
    for token in (
        "x",
        "a.b.c",
        f"{head}.{claims}",
        f"{head}.{claims}.",
        f"{head}.{claims}.{signature[::-1]}",
        f"{head}.{_token(exp=_soon(1)).split('.')[1]}.{signature}",
        _token(exp=_soon(), secret=SECRET[::-1]),
        _token(exp=_soon(), algorithm="HS512", secret=SECRET * 2),
        _token(exp=_soon(), algorithm="HS384", secret=SECRET * 2),
        _token(exp=_soon(), algorithm="none", secret=""),
        _token(),
        _token(exp=_soon() + 0.5),
        _token(exp=str(_soon())),
        _token(exp=None),
        _token(exp=True),
        _token(exp=_soon(), nbf="now"),
    ):
        assert await _refusal(signed.url, token) == (401, "invalid websocket jwt"), token


@pytest.mark.requirement("auth.header.missing", "auth.header.invalid")
async def test_signed_tokens_come_in_the_same_header(signed: ServerProcess) -> None:
    assert await _upgrade(signed.url) == (401, "missing websocket bearer token")
    header = ("Authorization", f"Basic {_token(exp=_soon())}")
    assert await _upgrade(signed.url, header) == (401, "invalid authorization header")


@pytest.mark.requirement("auth.jwt.expired", "auth.jwt.skew")
async def test_an_expired_token_is_named(signed: ServerProcess, particular: ServerProcess) -> None:
    expired = (401, "expired websocket jwt")
    assert await _refusal(signed.url, _token(exp=_soon(-40))) == expired
    # Within the 30 seconds by which clocks may differ.
    assert await _refusal(signed.url, _token(exp=_soon(-15))) == (101, "")
    whose = {"iss": "us", "aud": "them"}
    assert await _refusal(particular.url, _token(exp=_soon(-2), **whose)) == expired
    assert await _refusal(particular.url, _token(exp=_soon(60), **whose)) == (101, "")


@pytest.mark.requirement("auth.jwt.not-yet", "auth.jwt.skew")
async def test_a_token_of_the_future_is_named(
    signed: ServerProcess, particular: ServerProcess
) -> None:
    early = (401, "websocket jwt is not valid yet")
    assert await _refusal(signed.url, _token(exp=_soon(), nbf=_soon(45))) == early
    assert await _refusal(signed.url, _token(exp=_soon(), nbf=_soon(15))) == (101, "")
    token = _token(exp=_soon(), nbf=_soon(15), iss="us", aud="them")
    assert await _refusal(particular.url, token) == early


@pytest.mark.requirement("auth.jwt.issuer")
@pytest.mark.parametrize("claims", [{}, {"iss": "Us"}, {"iss": "us "}, {"iss": ""}])
async def test_another_issuer_is_refused(particular: ServerProcess, claims: dict[str, str]) -> None:
    token = _token(exp=_soon(), aud="them", **claims)
    assert await _refusal(particular.url, token) == (401, "websocket jwt issuer mismatch")


@pytest.mark.requirement("auth.jwt.audience")
@pytest.mark.parametrize("claims", [{}, {"aud": "us"}, {"aud": ["a", "b"]}, {"aud": []}])
async def test_another_audience_is_refused(
    particular: ServerProcess, claims: dict[str, Any]
) -> None:
    token = _token(exp=_soon(), iss="us", **claims)
    assert await _refusal(particular.url, token) == (401, "websocket jwt audience mismatch")


@pytest.mark.requirement("auth.jwt.audience")
@pytest.mark.parametrize("audience", ["them", ["them"], ["others", "them"]])
async def test_the_audience_may_be_one_of_several(
    particular: ServerProcess, audience: object
) -> None:
    token = _token(exp=_soon(), iss="us", aud=audience)
    assert await _refusal(particular.url, token) == (101, "")
