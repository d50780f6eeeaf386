"""Choice among a host's addresses, and what is left behind (RFC 8305)."""

import asyncio
import gc
import socket
from collections.abc import Iterator

import pytest

from holdfast.engine.http import connector as module
from holdfast.engine.http.connector import Connector
from holdfast.engine.http.proxies import Proxy
from holdfast.engine.http.urls import Url


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def refusing() -> Iterator[socket.socket]:
    """An address that is taken, so nobody else gets it, and that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """An address that answers nobody: the queue of its listener is full."""
    with socket.socket() as full, socket.socket() as only:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        only.connect(full.getsockname())
        yield full


def addresses(monkeypatch: pytest.MonkeyPatch, *given: socket.socket) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", sock.getsockname()) for sock in given]

    async def resolve(host: str, port: int, run_look_up: object) -> module.NamesFound:
        return found

    monkeypatch.setattr(module, "_resolve", resolve)


async def reached() -> tuple[str, int]:
    async with asyncio.timeout(5):
        with await module._connected("h", 80) as sock:
            name: tuple[str, int] = sock.getpeername()
            return name


async def test_the_next_address_is_tried_if_one_refuses(
    listening: socket.socket, refusing: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses(monkeypatch, refusing, listening, refusing)
    assert await reached() == listening.getsockname()


async def test_an_address_that_does_not_answer_is_overtaken(
    listening: socket.socket, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STAGGER", 0.01)
    addresses(monkeypatch, silent, listening)
    assert await reached() == listening.getsockname()


async def test_if_all_refuse_the_first_says_why(
    refusing: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses(monkeypatch, refusing, refusing)
    with pytest.raises(ConnectionRefusedError):
        await reached()


@pytest.mark.parametrize(("host", "family"), [("1.2.3.4", "AF_INET"), ("::1", "AF_INET6")])
async def test_an_address_is_not_looked_up(host: str, family: str) -> None:
    ((found, _, _, _, where),) = await module._resolve(host, 80, None)
    assert (socket.AddressFamily(found).name, where[0]) == (family, host)


async def test_a_connection_that_cannot_be_made_leaves_no_socket(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise OSError

    monkeypatch.setattr(module, "HttpConnection", broken)
    url = Url.parse(f"http://127.0.0.1:{listening.getsockname()[1]}/")
    with pytest.raises(OSError, match=r"^$"):
        await Connector({}).open(url, None)


@pytest.mark.both_loops
async def test_a_caller_who_gives_up_on_a_proxy_leaves_no_error(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cancelling(module._TunnelAnswer):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            opening.cancel()

    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(f"{context['message']}: {context.get('exception')}")
    )
    monkeypatch.setattr(module, "_TunnelAnswer", Cancelling)
    proxy = Proxy(Url.parse(f"http://127.0.0.1:{listening.getsockname()[1]}"))
    opening = asyncio.create_task(Connector({}).open(Url.parse("https://h/"), proxy))
    with pytest.raises(asyncio.CancelledError):
        await opening
    # The end of the connection is reported after that of the caller.
    listening.accept()[0].close()
    await asyncio.sleep(0)
    gc.collect()

    assert reported == []
