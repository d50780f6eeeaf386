"""
Tries to get into servers without the right to, and sees that nobody does.

A table of requests asks with every wrong form of a token, header, page, method and origin that
is known. Then random changes of a right header follow; another reading of the rules says which
of them still shows the token. Last come the token file, which is spoiled while the server runs,
the sockets, and the limits of principals.

The long form: `python -m tests.attack.authentication --count 100000`.
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.e2e.test_operating import activated
from tests.e2e.wire import HOLDFAST, LIMIT, ServerProcess, serving

__all__ = ["Figures", "attack_authentication", "header_cases", "page_cases", "signed_cases"]

TOKEN = "0123456789abcdef-The-Token"
OTHER = "fedcba9876543210-of-another"
SECRET = b"a secret that has more than thirty-two bytes"

_SERVE = (*HOLDFAST, "serve")
_KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
_UPGRADE = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", _KEY)

_ENDED = 0
"""Stands for a connection that ends without an answer."""

IN = (101,)
OUT = (401,)
WRONG = (400,)


class Case(NamedTuple):
    """A request, and the answers to it that let nobody in, or who may."""

    name: str
    request: bytes
    expected: tuple[int, ...] = OUT


class Figures(NamedTuple):
    """Counts of a run."""

    cases: int
    """Of the tables, files, sockets and limits."""
    changed: int
    """Headers that were changed at random."""
    let_in: int
    """Of those, the ones that showed the token all the same."""


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


def ask(address: tuple[str, int], sent: bytes) -> int:
    """Send a request on a connection of its own, and return the status of the answer."""
    with socket.create_connection(address, LIMIT) as line:
        # A reset leaves no port behind that would have to wait.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            line.sendall(sent)
            answer = b""
            while b"\r\n" not in answer:
                data = line.recv(4096)
                if not data:
                    return _ENDED
                answer += data
        except ConnectionError:
            return _ENDED
    return int(answer.split(b" ", 2)[1])


def ask_when_free(address: tuple[str, int], sent: bytes) -> int:
    """Send a request, and again as long as those who were let in before are not all gone."""
    deadline = time.monotonic() + LIMIT
    while (status := ask(address, sent)) == 429 and time.monotonic() < deadline:
        time.sleep(0.002)
    return status


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


# -- the tables


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
    digest = hashlib.sha256(TOKEN.encode())
    pair = base64.b64encode(f"user:{TOKEN}".encode()).decode()
    values: list[bytes | str] = [
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
    yield from (Case(f"value {value!r:.50}", bearing(value)) for value in values)
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
    yield Case("no request line", b"\r\n\r\n", (*WRONG, _ENDED))
    yield Case("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (*WRONG, _ENDED))
    yield Case("TLS", b"\x16\x03\x01\x02\x00\x01\x00" + bytes(600) + b"\r\n\r\n", (*WRONG, _ENDED))
    yield Case("not an upgrade", request(upgrade=()), WRONG)
    yield Case("a frame behind it", request() + b"\x81\x80\0\0\0\0")
    yield Case("another request behind it", request() + request(right))
    for page in (b"/readyz", b"/healthz"):
        yield Case(f"{page!r}", request(target=page, upgrade=()), (200,))
        yield Case(f"{page!r} of a page", request(b"Origin: x", target=page), (403,))
    for more, expected in ((b"X: y", 401), (b"Authorization: Bearer x", 401), (right, 200)):
        for method in (b"GET", b"HEAD"):
            case = request(more, target=b"/metrics", method=method, upgrade=())
            yield Case(f"metrics {method!r} {more!r}", case, (expected,))
    yield Case("metrics?token", request(target=b"/metrics?token=" + token, upgrade=()))
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

    def case(name: str, token: bytes, expected: tuple[int, ...] = OUT) -> Case:
        return Case(f"signed {name}", bearing(b"Bearer " + token), expected)

    right = signed(good)
    head, claims, signature = right.split(b".")
    yield case("as it has to be", right, IN)
    yield case("for several", signed(good | {"aud": ["x", "them"]}), IN)
    for name in ("none", "None", "NONE", "nOnE", "", "HS384", "HS512", "RS256", "ES256", "hs256"):
        yield case(f"as {name!r}", signed(good, alg=name))
        bare = _part({"alg": name, "typ": "JWT"}) + b"." + claims
        yield case(f"as {name!r}, bare", bare + b".")
    for digest in ("sha384", "sha512", "sha1", "md5"):
        yield case(f"by {digest}", signed(good, digest=digest))
    for key in (b"", b"\0", SECRET[:-1], SECRET + b"\n", SECRET.upper(), b"secret", SECRET[::-1]):
        yield case(f"with {key!r}", signed(good, key=key))
    own = {"kty": "oct", "k": _part(b"mine" * 8).decode()}
    for header in (
        {"kid": "../../../dev/null"},
        {"kid": "' UNION SELECT ''"},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "file:///etc/passwd"},
        {"jwk": own},
    ):
        yield case(f"header {header}", signed(good, key=b"mine" * 8, **header))
        yield case(f"header {header}, no key", signed(good, key=b"", **header))
    for name, token in {
        "no signature": head + b"." + claims,
        "an empty one": head + b"." + claims + b".",
        "half of one": right[:-20],
        "another's claims": b".".join((head, _part(good | {"exp": now + 9}), signature)),
        "four parts": right + b"." + signature,
        "five parts": right + b"." + signature + b"." + signature,
        "a blank": right.replace(b".", b". ", 1),
        "deep": _part(b"[" * 11_000) + b"." + claims + b"." + signature,
        "no JSON": _part(b"{") + b"." + claims + b"." + signature,
        "in itself": _part(right) + b"." + _part(right) + b"." + signature,
        "nothing": b"..",
        "long": right * 40,
    }.items():
        yield case(name, token)
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
        yield case(name, signed(good | change))
    for left_out in good:
        yield case(f"without {left_out}", signed({k: v for k, v in good.items() if k != left_out}))
    twice = b'{"exp":%d,"exp":1}' % (now + 600)
    oddities: list[object] = [[], "them", 1, None, b"", b"\xff", twice, b"[" * 9_000]
    for odd in oddities:
        yield case(f"claims {odd!r:.30}", signed(odd))


# -- random changes of a right header

_SHOWN = re.compile(
    rb"authorization:[ \t]*bearer [\s\x1c-\x1f]*" + re.escape(TOKEN.encode()) + rb"[\s\x1c-\x1f]*",
    re.IGNORECASE,
)
_BYTES = bytes(value for value in range(256) if value != ord("\r"))


def changed_headers(count: int, seed: int) -> Iterator[tuple[bytes, bool]]:
    """Return headers with a change or a few, and whether each still shows the token."""
    chance = random.Random(seed)
    for _ in range(count):
        line = bytearray(b"Authorization: Bearer " + TOKEN.encode())
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            at = chance.randrange(len(line))
            how = chance.randrange(5)
            if how == 0:
                line[at] = chance.choice(_BYTES)
            elif how == 1 and len(line) > 1:
                del line[at]
            elif how == 2:
                line[at:at] = bytes([chance.choice(_BYTES)])
            elif how == 3:
                line[at] = line[at] ^ 0x20 if chr(line[at]).isalpha() else line[at]
            else:
                line[at:at] = line[at : at + chance.randint(1, 9)]
        text = bytes(line)
        found = _SHOWN.fullmatch(text)
        # The token itself has a case, unlike the rest.
        yield text, found is not None and TOKEN.encode() in text


# -- the token file, while the server runs


def _reload(server: ServerProcess) -> str:
    """Send SIGHUP, wait until it is logged what became of it, and return that."""
    before = server.errors
    os.kill(server.pid, signal.SIGHUP)
    deadline = time.monotonic() + LIMIT
    while "SIGHUP" not in (said := server.errors[len(before) :]):
        assert time.monotonic() < deadline, "nothing was logged"
        time.sleep(0.002)
    return said


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    _remove(path)
    path.touch(mode)
    path.chmod(mode)
    path.write_bytes(content)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _spoils(path: Path) -> dict[str, Callable[[], object]]:
    """Return ways to spoil a token file. In each of them a token would be the attacker's."""
    mine = b"the-token-of-the-attacker\n"
    beside = path.with_name("beside")

    def link() -> None:
        _write(beside, mine)
        path.symlink_to(beside)

    ways: dict[str, Callable[[], object]] = {
        "removed": lambda: None,
        "emptied": lambda: _write(path, b""),
        "only words": lambda: _write(path, b"# a\n\n"),
        "too short": lambda: _write(path, b"short\n"),
        "for others to read": lambda: _write(path, mine, 0o644),
        "for others to write": lambda: _write(path, mine, 0o622),
        "for the group": lambda: _write(path, mine, 0o640),
        "a link": link,
        "a link to nothing": lambda: path.symlink_to("nothing"),
        "a folder": lambda: path.mkdir(0o700),
        "a FIFO": lambda: os.mkfifo(path, 0o600),
        "no text": lambda: _write(path, b"\xff" * 40),
        "a token that no header can have": lambda: _write(path, "tökén-of-the-attacker".encode()),
        "a reserved name": lambda: _write(path, b"local " + mine),
        "three words": lambda: _write(path, b"a b " + mine),
        "without an end": lambda: _write(path, mine * 4_000),
    }
    if os.geteuid() == 0:

        def another() -> None:
            _write(path, mine)
            os.chown(path, 65534, 65534)

        ways["of another user"] = another
    return ways


def attack_token_file(server: ServerProcess, path: Path) -> int:
    """Spoil the token file in every way: what was read before stays in use. Returns how many."""
    address = address_of(server.url)
    ways = _spoils(path)
    for name, spoil in ways.items():
        _remove(path)
        spoil()
        said = _reload(server)
        assert "what was read before stays in use" in said, f"{name}: {said}"
        for token, status in ((TOKEN, 101), ("the-token-of-the-attacker", 401), ("short", 401)):
            answer = ask_when_free(address, bearing(f"Bearer {token}"))
            assert answer == status, f"{name}: {token}"
    _write(path, f"{OTHER}\n".encode())
    assert "read again" in _reload(server)
    assert ask(address, bearing(f"Bearer {TOKEN}")) == 401
    assert ask(address, bearing(f"Bearer {OTHER}")) == 101
    return len(ways) + 1


# -- limits, sockets


def attack_limits(address: tuple[str, int], most: int) -> int:
    """Use up the connections of one principal; refusals count for nobody. Returns how many."""
    with ExitStack() as held:
        for _ in range(most):
            line = held.enter_context(socket.create_connection(address, LIMIT))
            line.sendall(bearing(f"Bearer {OTHER}"))
            assert line.recv(4096).startswith(b"HTTP/1.1 101 ")
        assert ask(address, bearing(f"Bearer {OTHER}")) == 429
        for token, status in ((f"{OTHER}x", 401), (TOKEN, 101)):
            assert ask_when_free(address, bearing(f"Bearer {token}")) == status, token
    assert ask_when_free(address, bearing(f"Bearer {OTHER}")) == 101
    return most + 4


_CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


def attack_sockets(folder: Path, runtime: Path) -> int:
    """Try a port that was handed over, and a socket file as another user. Returns how many."""
    own = {"XDG_RUNTIME_DIR": str(runtime)}
    with socket.create_server(("127.0.0.1", 0)) as port, activated([port], **own) as (_, (url,)):
        for header in ("", "Bearer x", f"Bearer {TOKEN}"):
            assert ask(address_of(url), bearing(header)) == 401, "the port that was handed over"
    if os.geteuid() != 0:
        return 3
    # A socket that anybody can reach, if only its own mode did not say otherwise.
    folder.chmod(0o755)
    path = folder / "open.sock"
    with serving("--listen", f"unix://{path}", command=_SERVE, env={**os.environ, **own}):
        for user, connects in ((65534, False), (0, True)):
            done = subprocess.run(
                ["/usr/bin/python3", "-c", _CONNECT, path],
                user=user,
                group=user,
                extra_groups=[],
                capture_output=True,
                timeout=2 * LIMIT,
                check=False,
            )
            assert (done.returncode == 0) is connects, done
    return 5


# -- the run


def attack_authentication(*, count: int, seed: int) -> Figures:
    """
    Try all that is in the tables, and so many changed headers.

    Raises:
        AssertionError: Somebody was let in, or the server fails, or says a token.
    """
    cases, let_in, most = 0, 0, 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens, secret = folder / "tokens", folder / "secret"
        _write(tokens, f"{TOKEN}\nci {OTHER}\n".encode())
        _write(secret, SECRET)
        runtime = folder / "runtime"  # that of the user is neither looked at nor changed
        runtime.mkdir(0o700)
        env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "HOLDFAST_LOG": "info"}
        options = ("--token-file", str(tokens), "--max-connections", str(most))
        with serving(*options, command=_SERVE, env=env) as server:
            address = address_of(server.url)
            cases += _try(address, [*header_cases(), *page_cases()])
            for line, shows in changed_headers(count, seed):
                status = ask_when_free(address, request(line))
                let_in += status == 101
                assert status in (IN if shows else (*OUT, *WRONG)), line
            cases += attack_limits(address, most)
            cases += attack_token_file(server, tokens)
            assert server.stop() == 0
            _check_log(server.errors)
        jwt = ("--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", str(secret))
        whose = ("--ws-issuer", "us", "--ws-audience", "them", "--ws-max-clock-skew-seconds", "0")
        with serving(*jwt, *whose, command=_SERVE, env=env) as server:
            cases += _try(address_of(server.url), list(signed_cases()))
            assert server.stop() == 0
            _check_log(server.errors)
        cases += attack_sockets(folder, runtime)
    return Figures(cases, count, let_in)


def _try(address: tuple[str, int], cases: list[Case]) -> int:
    for case in cases:
        status = ask_when_free(address, case.request)
        assert status in case.expected, f"{case.name}: {status}, not {case.expected}"
    return len(cases)


def _check_log(log: str) -> None:
    assert "Traceback" not in log, log
    for secret in (TOKEN, OTHER, SECRET.decode()):
        assert secret not in log


def main() -> None:
    parser = argparse.ArgumentParser(description="Try to get in without the right to.")
    parser.add_argument("--count", type=int, default=100_000, help="headers changed at random")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    figures = attack_authentication(count=options.count, seed=options.seed)
    sys.stdout.write(f"{figures} in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
