"""The two ways to check a bearer token; the texts were seen on the real server."""

import base64
import hashlib
import hmac
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.token_file import NamedToken
from holdfast.server.operate.auth import (
    ANONYMOUS,
    Access,
    AuthOptions,
    BadAuthOptions,
    SecretCheck,
    Unauthorized,
    check_tokens,
    make_check,
)

SECRET = "a secret of at least 32 bytes...."
OTHER = "another secret of at least 32 bytes"


Verdict = Callable[[str | None], str | None]
"""Why a header is refused, or None."""


def check_of(**options: Any) -> Verdict:
    check = make_check(AuthOptions(**options))
    assert check is not None

    def verdict(header: str | None) -> str | None:
        try:
            principal = check(header)
        except Unauthorized as refusal:
            return str(refusal)
        assert principal
        return None

    return verdict


def refusal(**options: Any) -> str:
    with pytest.raises(BadAuthOptions) as caught:
        make_check(AuthOptions(**options))
    return str(caught.value)


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(f"\n  {SECRET}\n")
    return str(path)


@pytest.fixture
def token_check(secret_file: str) -> Verdict:
    return check_of(mode="capability-token", token_file=secret_file)


@pytest.fixture
def signed_check(secret_file: str) -> Verdict:
    return check_of(mode="signed-bearer-token", shared_secret_file=secret_file)


def signed(key: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """A token by the letter of RFC 7519, with whatever claims."""
    body = b".".join(
        unpadded(json.dumps(part).encode()) for part in ({"alg": algorithm, "typ": "JWT"}, claims)
    )
    digest = {"HS256": "sha256", "HS512": "sha512", "none": None}[algorithm]
    signature = b"" if digest is None else hmac.digest(key.encode(), body, digest)
    return f"Bearer {(body + b'.' + unpadded(signature)).decode()}"


def unpadded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def soon() -> int:
    return int(time.time()) + 600


# Options.


@pytest.mark.requirement("auth.ignored-without-mode")
def test_without_options_there_is_no_check() -> None:
    assert make_check(AuthOptions()) is None


@pytest.mark.requirement("serve.auth-options.conflicts")
@pytest.mark.parametrize(
    "options",
    [
        {"token_file": "x"},
        {"token_sha256": "x"},
        {"shared_secret_file": "x"},
        {"issuer": "x"},
        {"audience": "x"},
        {"max_clock_skew": 0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_need_a_mode(options: dict[str, Any]) -> None:
    assert refusal(**options) == (
        "websocket auth flags require `--ws-auth capability-token`"
        " or `--ws-auth signed-bearer-token`"
    )


@pytest.mark.requirement("serve.auth-options.conflicts")
def test_a_capability_token_comes_from_one_place() -> None:
    mode = {"mode": "capability-token"}
    assert refusal(**mode) == (
        "`--ws-token-file` or `--ws-token-sha256` is required"
        " when `--ws-auth capability-token` is set"
    )
    assert refusal(**mode, token_file="x", token_sha256="0" * 64) == (
        "`--ws-token-file` and `--ws-token-sha256` are mutually exclusive"
    )


@pytest.mark.requirement("serve.auth-options.conflicts")
def test_the_options_of_one_mode_do_not_fit_the_other() -> None:
    capability = {"mode": "capability-token", "token_sha256": "0" * 64}
    others: list[dict[str, Any]] = [
        *({"issuer": "x"}, {"audience": "x"}, {"max_clock_skew": 1}, {"shared_secret_file": "x"})
    ]
    for options in others:
        assert refusal(**capability, **options) == (
            "`--ws-shared-secret-file`, `--ws-issuer`, `--ws-audience`, and"
            " `--ws-max-clock-skew-seconds` require `--ws-auth signed-bearer-token`"
        )
    for options in ({"token_file": "x"}, {"token_sha256": "0" * 64}):
        assert refusal(mode="signed-bearer-token", **options) == (
            "`--ws-token-file` and `--ws-token-sha256` require"
            " `--ws-auth capability-token`, not `signed-bearer-token`"
        )
    assert refusal(mode="signed-bearer-token") == (
        "`--ws-shared-secret-file` is required when `--ws-auth signed-bearer-token` is set"
    )


@pytest.mark.requirement("serve.auth-options.digest")
@pytest.mark.parametrize(
    "digest", ["", "0" * 63, "0" * 65, "g" * 64, " " + "0" * 63, "0" * 64 + "\n"]
)
def test_a_digest_has_64_hex_digits(digest: str) -> None:
    assert refusal(mode="capability-token", token_sha256=digest) == (
        "--ws-token-sha256 must be a 64-character hex SHA-256 digest"
    )


@pytest.mark.requirement("serve.auth-options.secret")
@pytest.mark.parametrize("mode", ["capability-token", "signed-bearer-token"])
def test_a_secret_that_cannot_be_used_is_named(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "secret"
    signs = mode == "signed-bearer-token"

    def text(path: Path = path) -> str:
        return refusal(mode=mode, **{"shared_secret_file" if signs else "token_file": str(path)})

    assert text() == (
        f"failed to read websocket auth secret {path}: No such file or directory (os error 2)"
    )
    assert text(tmp_path) == (
        f"failed to read websocket auth secret {tmp_path}: Is a directory (os error 21)"
    )
    path.write_text(" \n\t\n")
    assert text() == f"websocket auth secret {path} must not be empty"
    path.write_bytes(b"\xff" * 40)
    assert text().startswith(f"failed to read websocket auth secret {path}: ")
    if signs:
        path.write_text(f"  {'x' * 31} \n")
        assert text() == f"signed websocket bearer secret {path} must be at least 32 bytes"
        path.write_text("x" * 32)
        check_of(mode=mode, shared_secret_file=str(path))


@pytest.mark.requirement("auth.secret.regular")
@pytest.mark.parametrize("mode", ["capability-token", "signed-bearer-token"])
def test_a_secret_is_in_a_regular_file(secret_file: str, mode: str) -> None:
    signs = mode == "signed-bearer-token"
    options: dict[str, Any] = {
        "mode": mode,
        "shared_secret_file" if signs else "token_file": secret_file,
    }
    access = Access(lambda: made(make_check(AuthOptions(**options))))
    # A FIFO without a writer would block the start, and take a thread at each reload.
    os.unlink(secret_file)
    os.mkfifo(secret_file)
    said = f"failed to read websocket auth secret {secret_file}: it is not a regular file"
    assert refusal(**options) == said
    with pytest.raises(BadAuthOptions, match=re.escape(said)) as caught:
        access.read()
    assert caught.value.path == secret_file
    os.unlink(secret_file)
    Path(secret_file).write_bytes(b"x" * (64 << 10) + b"x")
    assert refusal(**options).endswith("it has more than 65,536 bytes")


@pytest.mark.requirement("serve.auth-options.relative-file")
def test_a_relative_file_is_found_from_the_working_folder(
    secret_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(secret_file).parent)
    check = check_of(mode="capability-token", token_file="secret")
    assert check(f"Bearer {SECRET}") is None


# The header.


@pytest.mark.requirement("auth.header.missing")
def test_a_header_is_needed(token_check: Verdict, signed_check: Verdict) -> None:
    assert token_check(None) == signed_check(None) == "missing websocket bearer token"


@pytest.mark.requirement("auth.header.invalid")
@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer   ", f"Basic {SECRET}", SECRET, "Bearer ü", " "]
)
def test_a_header_that_is_no_bearer_token_is_invalid(
    token_check: Verdict, signed_check: Verdict, header: str
) -> None:
    assert token_check(header) == signed_check(header) == "invalid authorization header"


@pytest.mark.requirement("auth.header.lenient")
@pytest.mark.parametrize("header", ["bearer {}", "BEARER {}", "Bearer   {} "])
def test_the_scheme_has_no_case_and_the_token_is_trimmed(token_check: Verdict, header: str) -> None:
    assert token_check(header.format(SECRET.split()[0])) == "invalid websocket bearer token"
    assert token_check(header.format(SECRET)) is None


# Capability tokens.


@pytest.mark.requirement("auth.capability.accepted", "serve.auth-options.digest")
def test_a_digest_stands_for_its_token_in_either_case() -> None:
    digest = hashlib.sha256(b"token").hexdigest()
    for spelling in (digest, digest.upper()):
        check = check_of(mode="capability-token", token_sha256=spelling)
        assert check("Bearer token") is None
        assert check(f"Bearer {digest}") is not None


@pytest.mark.requirement("auth.capability.wrong")
@pytest.mark.parametrize(
    "token", [SECRET[:-1], SECRET + "x", SECRET.upper(), f"{SECRET} {SECRET}", "x"]
)
def test_another_token_is_invalid(token_check: Verdict, token: str) -> None:
    assert token_check(f"Bearer {token}") == "invalid websocket bearer token"


# Signed tokens.


@pytest.mark.requirement("auth.jwt.accepted")
def test_a_token_with_a_good_signature_and_an_end_in_the_future_is_accepted(
    signed_check: Verdict,
) -> None:
    assert signed_check(signed(exp=soon())) is None
    assert signed_check(signed(exp=soon(), nbf=0, iat="x", iss=1, aud=2, sub=3, jti=4)) is None


@pytest.mark.requirement("auth.jwt.invalid")
@pytest.mark.parametrize(
    "claims",
    [{}, {"exp": "soon"}, {"exp": 1e10}, {"exp": True}, {"exp": None}, {"exp": 10**10, "nbf": "x"}],
    ids=repr,
)
def test_the_end_of_a_token_is_a_whole_number(
    signed_check: Verdict, claims: dict[str, Any]
) -> None:
    assert signed_check(signed(**claims)) == "invalid websocket jwt"


@pytest.mark.requirement("auth.jwt.invalid")
def test_a_token_that_is_not_signed_by_us_is_invalid(signed_check: Verdict) -> None:
    good = signed(exp=soon())
    for header in (
        signed(OTHER, exp=soon()),
        signed(SECRET * 2, "HS512", exp=soon()),
        signed("", "none", exp=soon()),
        good[:-3] + "AAA",
        "Bearer x",
        "Bearer a.b.c",
        "Bearer " + good.removeprefix("Bearer ").rpartition(".")[0],
    ):
        assert signed_check(header) == "invalid websocket jwt"


@pytest.mark.requirement("auth.jwt.expired", "auth.jwt.not-yet", "auth.jwt.skew")
def test_a_token_has_its_time_with_half_a_minute_around_it(signed_check: Verdict) -> None:
    now = int(time.time())
    assert signed_check(signed(exp=now - 20)) is None
    assert signed_check(signed(exp=now - 40)) == "expired websocket jwt"
    assert signed_check(signed(exp=soon(), nbf=now + 20)) is None
    assert signed_check(signed(exp=soon(), nbf=now + 60)) == "websocket jwt is not valid yet"
    assert signed_check(signed(exp=now - 40, nbf=now + 60)) == "expired websocket jwt"


@pytest.mark.requirement("auth.jwt.skew")
def test_the_time_around_it_can_be_chosen(secret_file: str) -> None:
    mode = {"mode": "signed-bearer-token", "shared_secret_file": secret_file}
    now = int(time.time())
    strict = check_of(**mode, max_clock_skew=0)
    assert strict(signed(exp=now - 5)) == "expired websocket jwt"
    lenient = check_of(**mode, max_clock_skew=1000)
    assert lenient(signed(exp=now - 500)) is None


@pytest.mark.requirement("auth.jwt.issuer")
def test_an_issuer_that_is_expected_must_be_there(secret_file: str) -> None:
    mode = {"mode": "signed-bearer-token", "shared_secret_file": secret_file}
    check = check_of(**mode, issuer=" me ")
    assert check(signed(exp=soon(), iss="me")) is None
    assert check(signed(exp=soon())) == "websocket jwt issuer mismatch"
    for issuer in ("you", "Me", "me ", "", ["me"], None):
        assert check(signed(exp=soon(), iss=issuer)) == "websocket jwt issuer mismatch"
    assert check_of(**mode, issuer=" ")(signed(exp=soon())) is None


@pytest.mark.requirement("auth.jwt.audience")
def test_an_audience_that_is_expected_must_be_among_those_there(secret_file: str) -> None:
    mode = {"mode": "signed-bearer-token", "shared_secret_file": secret_file}
    check = check_of(**mode, audience="us")
    for audience in ("us", ["them", "us"]):
        assert check(signed(exp=soon(), aud=audience)) is None
    assert check(signed(exp=soon())) == "websocket jwt audience mismatch"
    others: tuple[object, ...] = ("them", [], {"us": 1}, None)
    for other in others:
        header = signed(exp=soon(), aud=other)
        assert check(header) == "websocket jwt audience mismatch"
    assert check_of(**mode, audience="")(signed(exp=soon())) is None


@given(st.text(st.characters(max_codepoint=0x7F), max_size=60))
def test_any_token_is_taken_or_refused(token: str) -> None:
    digest = hashlib.sha256(b"token").hexdigest()
    check = check_of(mode="capability-token", token_sha256=digest)
    assert isinstance(check(f"Bearer {token}"), str) or token.strip() == "token"


@pytest.mark.slow
@given(st.text(st.sampled_from("eyJ.A0_- {}"), max_size=60))
def test_any_signed_token_is_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, token: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-secret"
    path.write_text(SECRET)
    check = check_of(mode="signed-bearer-token", shared_secret_file=str(path))
    assert check(f"Bearer {token}") in ("invalid websocket jwt", "invalid authorization header")


# After a reload.


@pytest.mark.requirement("auth.revoked", "security.jwt.open")
def test_a_credential_holds_as_long_as_its_secret_and_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    options = AuthOptions(mode="signed-bearer-token", shared_secret_file=str(path))
    access = Access(lambda: made(make_check(options)))
    header = signed(exp=int(time.time()) + 1, sub="alice")
    credential = access(header)
    assert credential.principal == "jwt:alice"
    # Its token may expire: only the key that signed it counts.
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(Unauthorized, match="expired"):
        access(header)
    access.read()()
    assert access.admits(credential)
    path.write_text(OTHER)
    access.read()()
    assert not access.admits(credential)
    path.write_text("too short")
    with pytest.raises(BadAuthOptions):
        access.read()()
    assert not access.admits(credential)
    path.write_text(SECRET)
    access.read()()
    assert access.admits(credential)


@pytest.mark.requirement("auth.revoked")
@pytest.mark.requirement("auth.revoked.last")
@pytest.mark.parametrize("content", ["", "\n"])
@pytest.mark.parametrize("mode", ["capability-token", "signed-bearer-token"])
def test_an_empty_file_revokes_all(
    secret_file: str, mode: str, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    signs = mode == "signed-bearer-token"
    options = AuthOptions(
        mode=mode,
        shared_secret_file=secret_file if signs else None,
        token_file=None if signs else secret_file,
    )
    access = Access(lambda: made(make_check(options)))
    header = signed(exp=soon()) if signs else f"Bearer {SECRET}"
    credential = access(header)
    Path(secret_file).write_text(content)
    access.read()()
    assert not access.admits(credential)
    with pytest.raises(Unauthorized):
        access(header)
    (said,) = caplog.messages
    assert said == f"websocket auth secret {secret_file} must not be empty: all clients are refused"
    Path(secret_file).write_text(SECRET)
    access.read()()
    assert access.admits(access(header))
    # A server that starts has no clients to refuse.
    Path(secret_file).write_text(content)
    with pytest.raises(BadAuthOptions, match="must not be empty"):
        Access(lambda: made(make_check(options)))


def test_a_token_with_two_names_has_the_first_one() -> None:
    tokens = [NamedToken("ci", "t"), NamedToken("ops", "t")]
    before = check_tokens(tokens)("Bearer t")
    assert before.principal == "ci"
    assert check_tokens(tokens).admits(before)
    assert not check_tokens(tokens[::-1]).admits(before)
    assert not check_tokens(tokens[1:]).admits(before)
    # A client that has shown no secret cannot lose one.
    assert Access(lambda: check_tokens(tokens)).admits(ANONYMOUS)


def made(check: SecretCheck | None) -> SecretCheck:
    assert check is not None
    return check
