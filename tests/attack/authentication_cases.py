"""
The tables of `tests.attack.authentication`: requests, and the answers that let nobody in.

A few of each kind show the right token: without them, a server that refuses everybody would pass.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = [
    "ENDED",
    "IN",
    "OTHER",
    "OUT",
    "SECRET",
    "TOKEN",
    "WRONG",
    "Case",
    "bearing",
    "header_cases",
    "page_cases",
    "request",
    "signed_cases",
]

TOKEN = "0123456789abcdef-The-Token"
OTHER = "fedcba9876543210-of-another"
SECRET = b"a secret that has more than thirty-two bytes"

_KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
_UPGRADE = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", _KEY)

ENDED = 0
"""Stands for a connection that ends without an answer."""

IN = (101,)
OUT = (401,)
WRONG = (400,)


class Case(NamedTuple):
    """A request, and the answers to it that let nobody in, or who may."""

    name: str
    request: bytes
    expected: tuple[int, ...] = OUT


# -- requests


def request(
    *lines: bytes,
    target: bytes = b"/",
    method: bytes = b"GET",
    version: bytes = b"HTTP/1.1",
    host: bytes = b"Host: test",
    upgrade: tuple[bytes, ...] = _UPGRADE,
) -> bytes:
    """Return the bytes of a request, by default of one to become a WebSocket."""
    first = b" ".join((method, target, version))
    return b"\r\n".join([first, host, *upgrade, *lines, b"", b""])


def bearing(value: bytes | str) -> bytes:
    """Return a request with a header of this value."""
    return request(b"Authorization: " + (value.encode() if isinstance(value, str) else value))


# -- the tables


def _wrong_values() -> list[bytes | str]:
    """Values of the header, each of them wrong in its own way."""
    digest = hashlib.sha256(TOKEN.encode())
    pair = base64.b64encode(f"user:{TOKEN}".encode()).decode()
    return [
        *("", " ", "Bearer", "Bearer ", "Bearer\t", "Bearer    ", "bearer bearer"),
        *(f"Bearer{glue}{TOKEN}" for glue in ("", ":", "=", ",", "\t", "_", "/", " :", " =")),
        *(f"{scheme} {TOKEN}" for scheme in ("Basic", "Digest", "Token", "JWT", "Bear", "Bearers")),
        *(
            TOKEN,
            f"Basic {pair}",
            f"Bearer {pair}",
            f"Bearer bearer {TOKEN}",
            f"Bearer Bearer{TOKEN}",
        ),
        *(f"Bearer {mark}{TOKEN}{mark}" for mark in ('"', "'", "`", ",", ";", "%", "(", "\\")),
        *(
            f"Bearer {TOKEN} {TOKEN}",
            f"Bearer x {TOKEN}",
            f"Bearer {TOKEN} x",
            f"Bearer ci {OTHER}",
        ),
        *(f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN[1:]}", f"Bearer {TOKEN}0", f"Bearer 0{TOKEN}"),
        *(f"Bearer {TOKEN.upper()}", f"Bearer {TOKEN.lower()}", f"Bearer {TOKEN[::-1]}"),
        *(f"Bearer {digest.hexdigest()}", f"Bearer {TOKEN.encode().hex()}"),
        f"Bearer {base64.b64encode(TOKEN.encode()).decode()}",
        f"Bearer {''.join(f'%{ord(letter):02x}' for letter in TOKEN)}",
        f"Bearer {TOKEN[: len(TOKEN) // 2]}{OTHER[len(OTHER) // 2 :]}",
        *(f"Bearer {word}" for word in ("*", ".*", "null", "true", "0", "{}", "[]", "' OR '1'='1")),
        *(f"Bearer {name}" for name in ("default", "ci", "local", "anonymous", "root", "#")),
        *("Bearer ../../token", "Bearer $(cat token)", "Bearer file:///etc/passwd"),
        *(
            b"Bearer " + TOKEN.encode() + tail
            for tail in (b"\0", b"\x01", b"\x7f", b"\xe2\x80\x8b")
        ),
        *(
            b"Bearer " + head + TOKEN.encode()
            for head in (b"\0", b"\xef\xbb\xbf", b"\xa0", b"\xad")
        ),
        b"Bearer " + TOKEN.encode()[:5] + b"\0" + TOKEN.encode()[5:],
        "Bearer " + TOKEN.replace("e", "е"),  # noqa: RUF001 - a letter that looks the same
        "Bearer " + "".join(chr(ord(letter) + 0xFEE0) for letter in "abcdefgh"),
        *("Bearer " + TOKEN * 100, "Bearer " + "A" * 15_000, "Bearer " + " " * 10_000),
    ]


def header_cases() -> Iterator[Case]:
    """Forms of the header, around a right token and around wrong ones."""
    for name, value in {
        "plain": f"Bearer {TOKEN}",
        "small": f"bearer {TOKEN}",
        "large and blanks": f"BEARER   {TOKEN}  ",
        "of another principal": f"Bearer {OTHER}",
    }.items():
        yield Case(name, bearing(value), IN)
    yield Case("no header", request())
    for wrong_value in _wrong_values():
        yield Case(f"value {wrong_value!r:.50}", bearing(wrong_value))
    right = b"Bearer " + TOKEN.encode()
    yield Case("longer than a head may be", bearing("Bearer " + "A" * 20_000), WRONG)
    for header in (
        *(b"Authorisation", b"Proxy-Authorization", b"X-Authorization", b"WWW-Authenticate"),
        *(b"X-Auth-Token", b"X-Api-Key", b"Cookie", b"Sec-WebSocket-Protocol", b"Authorization-"),
        *(b"X-Forwarded-User", b"X-Original-Authorization", b"Api-Key", b"Token"),
    ):
        yield Case(f"name {header!r}", request(header + b": " + right))
    for line in (b"X-Forwarded-For: 127.0.0.1", b"X-Real-IP: ::1", b"Forwarded: for=127.0.0.1"):
        yield Case(f"line {line!r}", request(line))
    yield Case("blank before the colon", request(b"Authorization : " + right), WRONG)
    yield Case("folded", request(b"Authorization:", b" " + right), WRONG)
    yield Case("no colon", request(b"Authorization " + right), WRONG)
    yield Case("a line in a line", request(b"X: y\nAuthorization: " + right))
    yield Case("a return in a line", request(b"X: y\rAuthorization: " + right))
    wrong = b"Authorization: Bearer wrong"
    yield Case("wrong, then right", request(wrong, b"Authorization: " + right))
    yield Case("right, then wrong", request(b"Authorization: " + right, wrong), IN)
    yield Case("both in one", request(wrong + b", " + right))


def page_cases() -> Iterator[Case]:
    """Other ways to ask, and what is there for everybody."""
    right = b"Authorization: Bearer " + TOKEN.encode()
    token = TOKEN.encode()
    for query in (
        b"token=%b",
        b"access_token=%b",
        b"authorization=Bearer%%20%b",
        b"auth=%b",
        b"%b",
    ):
        yield Case(f"query {query!r}", request(target=b"/?" + query % token))
    for target in (b"//", b"/ws", b"/%2f", b"/./", b"/..", b"*", b"http://127.0.0.1/", b"x"):
        yield Case(f"target {target!r}", request(right, target=target), (404,))
    yield Case("a user in the target", request(target=b"http://u:%b@test/" % token), (404,))
    for method in (b"POST", b"PUT", b"HEAD", b"get", b"CONNECT", b"TRACE"):
        yield Case(f"method {method!r}", request(right, method=method), (405,))
    for origin in (b"", b"null", b"http://localhost", b"http://127.0.0.1", b"https://evil.example"):
        for line in (right, b"X: y"):
            yield Case(f"origin {origin!r} {line!r}", request(line, b"Origin: " + origin), (403,))
    for host in (
        b"Host: evil.example",
        b"Host: localhost:1",
        b"X: y",
        b"Host:",
        b"Host: a\r\nHost: b",
    ):
        yield Case(f"host {host!r}", request(host=host))
    for version in (b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"HTTP"):
        yield Case(f"version {version!r}", request(right, version=version), WRONG)
    yield Case("HTTP/1.0", request(version=b"HTTP/1.0"))
    yield Case("no request line", b"\r\n\r\n", (*WRONG, ENDED))
    yield Case("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (*WRONG, ENDED))
    yield Case("TLS", b"\x16\x03\x01\x02\x00\x01\x00" + bytes(600) + b"\r\n\r\n", (*WRONG, ENDED))
    yield Case("not an upgrade", request(upgrade=()), WRONG)
    yield Case("a frame behind it", request() + b"\x81\x80\0\0\0\0")
    yield Case("another request behind it", request() + request(right))
    yield from _operator_cases(right)


def _operator_cases(right: bytes) -> Iterator[Case]:
    """Ask for pages for operators."""
    for page in (b"/readyz", b"/healthz"):
        yield Case(f"{page!r}", request(target=page, upgrade=()), (200,))
        yield Case(f"{page!r} of a page", request(b"Origin: x", target=page), (403,))
    for more, expected in ((b"X: y", 401), (b"Authorization: Bearer x", 401), (right, 200)):
        for method in (b"GET", b"HEAD"):
            case = request(more, target=b"/metrics", method=method, upgrade=())
            yield Case(f"metrics {method!r} {more!r}", case, (expected,))
    yield Case("metrics?token", request(target=b"/metrics?token=" + TOKEN.encode(), upgrade=()))
    yield Case("metrics of a page", request(right, b"Origin: x", target=b"/metrics"), (403,))
    for target in (b"/metrics/", b"/%6detrics", b"/METRICS", b"/readyz/../metrics", b"/readyz;/x"):
        yield Case(f"target {target!r}", request(target=target, upgrade=()), (404,))


def _part(value: object) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def signed(
    claims: object, *, key: bytes = SECRET, digest: str = "sha256", **header: object
) -> bytes:
    """Return a token by the letter of RFC 7515, whatever its header says."""
    body = _part({"alg": "HS256", "typ": "JWT", **header}) + b"." + _part(claims)
    return body + b"." + _part(hmac.digest(key, body, digest))


def signed_cases() -> Iterator[Case]:
    """Signed tokens, for a server that wants the issuer `us`, the audience `them` and no skew."""
    now = int(time.time())
    good: dict[str, Any] = {"exp": now + 600, "iss": "us", "aud": "them"}
    yield _signed_case("as it has to be", signed(good), IN)
    yield _signed_case("for several", signed(good | {"aud": ["x", "them"]}), IN)
    yield from _forged_cases(good)
    yield from _broken_cases(good)
    yield from _claim_cases(good, now)


def _signed_case(name: str, token: bytes, expected: tuple[int, ...] = OUT) -> Case:
    return Case(f"signed {name}", bearing(b"Bearer " + token), expected)


def _forged_cases(good: dict[str, Any]) -> Iterator[Case]:
    """Good claims, signed by whoever does not have the secret."""
    claims = _part(good)
    for name in ("none", "None", "NONE", "nOnE", "", "HS384", "HS512", "RS256", "ES256", "hs256"):
        yield _signed_case(f"as {name!r}", signed(good, alg=name))
        bare = _part({"alg": name, "typ": "JWT"}) + b"." + claims
        yield _signed_case(f"as {name!r}, bare", bare + b".")
    for digest in ("sha384", "sha512", "sha1", "md5"):
        yield _signed_case(f"by {digest}", signed(good, digest=digest))
    for key in (b"", b"\0", SECRET[:-1], SECRET + b"\n", SECRET.upper(), b"secret", SECRET[::-1]):
        yield _signed_case(f"with {key!r}", signed(good, key=key))
    own = {"kty": "oct", "k": _part(b"mine" * 8).decode()}
    for header in (
        {"kid": "../../../dev/null"},
        {"kid": "' UNION SELECT ''"},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "file:///etc/passwd"},
        {"jwk": own},
    ):
        yield _signed_case(f"header {header}", signed(good, key=b"mine" * 8, **header))
        yield _signed_case(f"header {header}, no key", signed(good, key=b"", **header))


def _broken_cases(good: dict[str, Any]) -> Iterator[Case]:
    """A good token that was taken apart."""
    right = signed(good)
    head, claims, signature = right.split(b".")
    for name, token in {
        "no signature": head + b"." + claims,
        "an empty one": head + b"." + claims + b".",
        "half of one": right[:-20],
        "another's claims": b".".join((head, _part(good | {"exp": good["exp"] + 9}), signature)),
        "four parts": right + b"." + signature,
        "five parts": right + b"." + signature + b"." + signature,
        "a blank": right.replace(b".", b". ", 1),
        "deep": _part(b"[" * 11_000) + b"." + claims + b"." + signature,
        "no JSON": _part(b"{") + b"." + claims + b"." + signature,
        "in itself": _part(right) + b"." + _part(right) + b"." + signature,
        "nothing": b"..",
        "long": right * 40,
    }.items():
        yield _signed_case(name, token)


def _claim_cases(good: dict[str, Any], now: int) -> Iterator[Case]:
    """Tokens with a good signature, and claims that are not enough."""
    changes: dict[str, dict[str, Any]] = {
        "expired": {"exp": now - 1},
        "of 1970": {"exp": 0},
        "negative": {"exp": -(2**63)},
        "a fraction": {"exp": now + 600.5},
        "a text": {"exp": str(now + 600)},
        "true": {"exp": True},
        "null": {"exp": None},
        "a list": {"exp": [now + 600]},
        "not yet": {"nbf": now + 600},
        "not yet by text": {"nbf": "0"},
        "another issuer": {"iss": "them"},
        "a similar issuer": {"iss": "us "},
        "large issuer": {"iss": "US"},
        "several issuers": {"iss": ["us"]},
        "no issuer": {"iss": None},
        "another audience": {"aud": "us"},
        "a part of it": {"aud": "the"},
        "more than it": {"aud": "themselves"},
        "another list": {"aud": ["us", "the"]},
        "nobody": {"aud": []},
        "an object": {"aud": {"them": True}},
        "nested": {"aud": [["them"]]},
    }
    for name, change in changes.items():
        yield _signed_case(name, signed(good | change))
    for left_out in good:
        yield _signed_case(
            f"without {left_out}", signed({k: v for k, v in good.items() if k != left_out})
        )
    twice = b'{"exp":%d,"exp":1}' % (now + 600)
    oddities: list[object] = [[], "them", 1, None, b"", b"\xff", twice, b"[" * 9_000]
    for odd in oddities:
        yield _signed_case(f"claims {odd!r:.30}", signed(odd))
