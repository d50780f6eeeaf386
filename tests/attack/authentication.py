"""
Tries to get into servers without the right to, and sees that nobody does.

A table of requests asks with every wrong form of a token, header, page, method and origin that
is known. Then random changes of a right header follow; another reading of the rules says which
of them still shows the token. Last come the token file, which is spoiled while the server runs,
the sockets, and the limits of principals.

The long form: `python -m tests.attack.authentication --count 100000`.
"""

import argparse
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
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.attack.authentication_cases import (
    ENDED,
    IN,
    OTHER,
    OUT,
    SECRET,
    TOKEN,
    WRONG,
    Case,
    bearing,
    header_cases,
    page_cases,
    request,
    signed_cases,
)
from tests.e2e.test_operating import activated
from tests.e2e.wire import HOLDFAST, LIMIT, ServerProcess, serving

__all__ = ["Figures", "attack_authentication"]

_SERVE = (*HOLDFAST, "serve")


class Figures(NamedTuple):
    """Counts of a run."""

    cases: int
    """Of the tables, files, sockets and limits."""
    changed: int
    """Headers that were changed at random."""
    let_in: int
    """Of those, the ones that showed the token all the same."""


# -- requests


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
                    return ENDED
                answer += data
        except ConnectionError:
            return ENDED
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
    """Spoil the token file in every way: the previous values stay in use. Returns how many."""
    address = address_of(server.url)
    ways = _spoils(path)
    for name, spoil in ways.items():
        _remove(path)
        spoil()
        said = _reload(server)
        assert "the previous values stay in use" in said, f"{name}: {said}"
        for token, status in ((TOKEN, 101), ("the-token-of-the-attacker", 401), ("short", 401)):
            answer = ask_when_free(address, bearing(f"Bearer {token}"))
            assert answer == status, f"{name}: {token}"
    # A file without a token is not spoiled: it revokes all of them.
    for content in (b"", b"# a\n\n"):
        _write(path, content)
        assert "were reloaded" in _reload(server)
        assert ask_when_free(address, bearing(f"Bearer {TOKEN}")) == 401
    _write(path, f"{OTHER}\n".encode())
    assert "were reloaded" in _reload(server)
    assert ask(address, bearing(f"Bearer {TOKEN}")) == 401
    assert ask(address, bearing(f"Bearer {OTHER}")) == 101
    return len(ways) + 3


# -- limits, sockets


_OPEN_A_SESSION = b'{"id":1,"method":"initialize","params":{"clientName":"attack"}}'


def attack_limits(address: tuple[str, int], most: int) -> int:
    """Use up the connections of one principal; refusals do not count. Returns how many."""
    # Unmasked in effect (the mask is 0). Without a session a connection would make room for others.
    frame = bytes((0x81, 0x80 | len(_OPEN_A_SESSION), 0, 0, 0, 0)) + _OPEN_A_SESSION
    with ExitStack() as held:
        for _ in range(most):
            line = held.enter_context(socket.create_connection(address, LIMIT))
            line.sendall(bearing(f"Bearer {OTHER}") + frame)
            answer = b""
            while b"sessionId" not in answer:
                answer += line.recv(4096)
            assert answer.startswith(b"HTTP/1.1 101 ")
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
