"""TLS of the server itself: wss, certificates that change, and clients that never finish."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectFailed
from holdfast.base.token_file import NamedToken
from holdfast.client import ExecServerClient
from holdfast.server.app import Server
from holdfast.server.operate.auth import check_tokens
from holdfast.wire.transports import tls, websocket_listener
from holdfast.wire.transports.tls import BadCertificate, ServerTls
from tests.unit.engine.process.starting import shell

pytestmark = pytest.mark.both_loops

PEMS = Path(__file__).parents[1] / "unit" / "engine" / "http"
PEM = PEMS / "localhost.pem"
GOOD = PEM.read_text()
TOKEN = "a-token-for-the-tests"


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    """A certificate with its key, which clients of this process trust."""
    path = tmp_path / "server.pem"
    shutil.copy(PEM, path)
    path.chmod(0o600)
    return path


class TlsServer:
    def __init__(self, server: Server, tls: ServerTls, url: str) -> None:
        self.server = server
        self.tls = tls
        self.url = url
        self.port = int(url.rpartition(":")[2])

    async def connect(self, token: str = TOKEN) -> ExecServerClient:
        url = f"wss://localhost:{self.port}"
        return await ExecServerClient.connect(url, bearer_token=token)


@pytest.fixture
async def served(pem: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TlsServer]:
    monkeypatch.setenv("SSL_CERT_FILE", str(PEMS / "authority.pem"))
    shown = ServerTls(str(pem), str(pem))
    async with Server() as server:
        check = check_tokens([NamedToken("default", TOKEN)])
        yield TlsServer(server, shown, await server.listen("ws://127.0.0.1:0", check, tls=shown))


async def test_all_works_over_tls(served: TlsServer) -> None:
    assert served.url.startswith("wss://127.0.0.1:")
    async with await served.connect() as client:
        process = await client.start(shell("head -c 3000000 /dev/zero; echo done >&2"))
        seen = 0
        async for event in process.events():
            seen += len(getattr(event, "chunk", b""))
        assert seen == 3_000_005
    with pytest.raises(ConnectFailed, match="401"):
        await served.connect("another")


async def test_nothing_is_answered_in_the_clear(served: TlsServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(5):
        assert b"HTTP" not in await reader.read()
    writer.close()


def write(path: Path, text: str) -> None:
    path.write_text(text)


_OPENSSL = [
    *("openssl", "req", "-x509", "-nodes", "-newkey", "ec"),
    *("-pkeyopt", "ec_paramgen_curve:prime256v1"),
]


def other_certificate(folder: Path) -> str:
    """A certificate of nobody that anybody trusts, as text with its key."""
    made = ["-keyout", folder / "k.pem", "-out", folder / "c.pem", "-subj", "/CN=localhost"]
    subprocess.run(
        [*_OPENSSL, *map(str, made)],
        check=True,
        capture_output=True,
    )
    return (folder / "c.pem").read_text() + (folder / "k.pem").read_text()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_a_new_certificate_is_shown_from_the_reload_on(
    served: TlsServer, pem: Path, tmp_path: Path
) -> None:
    async with await served.connect() as client:
        write(pem, await asyncio.to_thread(other_certificate, tmp_path))
        async with await served.connect():
            pass  # it was not read yet
        served.tls.read()()
        with pytest.raises(ConnectFailed, match=r"(?i)certificate"):
            await served.connect()
        for broken in ("", "not a certificate", GOOD.partition("-----END")[0]):
            write(pem, broken)
            with pytest.raises(BadCertificate, match=str(pem)):
                served.tls.read()()
        with pytest.raises(ConnectFailed, match=r"(?i)certificate"):
            await served.connect()  # the one that was read last is still shown
        write(pem, GOOD)
        served.tls.read()()
        async with await served.connect():
            pass
        await client.info()  # it never noticed


def test_a_key_for_everybody_or_behind_a_password_is_refused(pem: Path) -> None:
    pem.chmod(0o604)
    with pytest.raises(BadCertificate, match="all users of this machine can read the key"):
        ServerTls(str(pem), str(pem))
    pem.chmod(0o640)
    ServerTls(str(pem), str(pem))
    if shutil.which("openssl") is None:
        return
    key = pem.with_name("locked")
    subprocess.run(
        ["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", str(pem), "-out", str(key)],
        check=True,
    )
    key.chmod(0o600)
    with pytest.raises(BadCertificate, match=f"the key {key} is encrypted"):
        ServerTls(str(pem), str(key))


@pytest.mark.parametrize(
    ("certificate", "key", "named"),
    [("", GOOD, "certificate"), (GOOD, "", "key"), ("x", "x", "certificate")],
)
def test_a_file_without_what_it_is_given_for_is_named(
    tmp_path: Path, certificate: str, key: str, named: str
) -> None:
    paths = {"certificate": tmp_path / "c.pem", "key": tmp_path / "k.pem"}
    for path, text in zip(paths.values(), (certificate, key), strict=True):
        path.write_text(text)
        path.chmod(0o600)
    with pytest.raises(BadCertificate) as caught:
        ServerTls(str(paths["certificate"]), str(paths["key"]))
    what = "CERTIFICATE" if named == "certificate" else "PRIVATE KEY"
    assert str(caught.value) == f"{paths[named]} has no PEM block `{what}`"


@pytest.mark.requirement("security.tls.handshakes")
@pytest.mark.slow
async def test_clients_that_never_finish_the_handshake_hold_up_nobody(
    served: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_listener, "HEAD_TIMEOUT", 1.0)  # for the listener made below
    check = check_tokens([NamedToken("default", TOKEN)])
    url = await served.server.listen("ws://127.0.0.1:0", check, tls=served.tls)
    port = int(url.rpartition(":")[2])
    monkeypatch.setattr(tls, "MAX_HANDSHAKES", 150)
    lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
    hello = _client_hello()
    for number, (_, writer) in enumerate(lines):
        writer.write((b"", hello[:40], b"\x16\x03\x01", hello)[number % 4])
    async with asyncio.timeout(5):
        async with await ExecServerClient.connect(
            f"wss://localhost:{port}", bearer_token=TOKEN
        ) as client:
            await client.info()
        for reader, writer in lines:
            with suppress(ConnectionError):
                await reader.read()  # what the server says, and then the end
            writer.close()


@pytest.mark.requirement("security.tls.handshakes")
@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_request_that_does_not_come_is_given_up(
    served: TlsServer, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    monkeypatch.setattr(websocket_listener, "HEAD_TIMEOUT", 0.2)
    url = await served.server.listen("ws://127.0.0.1:0", tls=served.tls if encrypted else None)
    context = ssl.create_default_context() if encrypted else None
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    async with asyncio.timeout(5):
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


def _client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    line = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        line.do_handshake()
    return outgoing.read()
