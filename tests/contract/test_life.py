"""Contract of every transport: a lost peer is noticed, and a living one is kept."""

import asyncio
import base64
import hashlib
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from holdfast.server.listen import make_gate
from holdfast.wire.transports.line_transport import LineTransport
from holdfast.wire.transports.liveness import TcpState
from holdfast.wire.transports.memory import connect_memory
from holdfast.wire.transports.stdio import connect_pipes
from holdfast.wire.transports.unix import connect_unix, listen_unix
from holdfast.wire.transports.websocket_client import connect_websocket
from holdfast.wire.transports.websocket_listener import listen_websocket
from tests.contract.test_message_stream import End, Pair, message
from tests.e2e.cutting import CuttingProxy, cutting
from tests.e2e.wire import LIMIT

pytestmark = pytest.mark.both_loops

INTERVAL = 0.2
"""Seconds between two signs of life."""

NEVER = 1000.0
"""Seconds between two pings where pings are not what a test is about."""


class Route:
    """Two ends and what is between them, which can freeze."""

    def __init__(self) -> None:
        self.near, self.far = End(), End()
        self.freeze: Callable[[], None]

    @property
    def ends(self) -> Pair:
        return self.near, self.far

    async def until_signs(self, count: int) -> None:
        """Wait until signs of life went both ways so many times."""
        raise NotImplementedError

    def expect_heartbeats(self) -> None:
        for end in self.ends:
            end.transport.expect_heartbeats(INTERVAL)


class ProxyRoute(Route):
    """Sockets, through a proxy."""

    def __init__(self, proxy: CuttingProxy, accepting: End) -> None:
        super().__init__()
        self.far = accepting
        self.proxy = proxy
        self.freeze = proxy.freeze

    async def until_signs(self, count: int) -> None:
        await self.proxy.until_carried(count, LIMIT)


class PipeRoute(Route):
    """Pipes through two processes, as to a server behind ssh."""

    def __init__(self, stack: AsyncExitStack) -> None:
        super().__init__()
        self._stack = stack
        self._relays: list[subprocess.Popen[bytes]] = []
        self.freeze = self._stop

    async def connect(self) -> None:
        pipes = []
        for _ in range(2):
            source, sink = os.pipe(), os.pipe()
            relay = await asyncio.to_thread(
                subprocess.Popen, ["cat"], stdin=source[0], stdout=sink[1]
            )
            self._relays.append(relay)
            self._stack.callback(relay.wait)
            self._stack.callback(relay.kill)
            os.close(source[0])
            os.close(sink[1])
            pipes.append((sink[0], source[1]))
        (to_far, from_near), (to_near, from_far) = pipes
        await connect_pipes(to_near, from_near, self.near.accept)
        await connect_pipes(to_far, from_far, self.far.accept)

    def _stop(self) -> None:
        for relay in self._relays:
            relay.send_signal(signal.SIGSTOP)

    async def until_signs(self, count: int) -> None:
        # The relays tell nothing, so the readers are asked.
        for end in self.ends:
            assert isinstance(end.transport, LineTransport)
            life = end.transport._heartbeats
            assert life is not None
            heard: set[float] = set()
            async with asyncio.timeout(LIMIT):
                while len(heard) <= count:
                    heard.add(life.last_received)
                    await asyncio.sleep(INTERVAL / 10)


@pytest.fixture(params=["websocket", "unix", "stdio"])
async def route(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Route]:
    """Two ends with a route between them, of each kind in turn."""
    async with AsyncExitStack() as stack:
        found: Route
        if request.param == "stdio":
            pipes = PipeRoute(stack)
            await pipes.connect()
            found = pipes
        else:
            far = End()
            if request.param == "unix":
                url = f"unix://{tmp_path}/s"
                stack.callback((await listen_unix(str(tmp_path / "s"), far.accept)).close)
            else:
                listener = await listen_websocket(
                    "127.0.0.1", 0, gate=make_gate(None), accept=far.accept, ping_interval=NEVER
                )
                stack.callback(listener.close)
                url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            found = ProxyRoute(await stack.enter_async_context(cutting(url)), far)
            assert isinstance(found, ProxyRoute)
            if request.param == "unix":
                path = found.proxy.url.removeprefix("unix://")
                await connect_unix(path, found.near.accept)
            else:
                await connect_websocket(found.proxy.url, found.near.accept, ping_interval=NEVER)
        await found.far.until(lambda: found.far.connected)
        try:
            yield found
        finally:
            for end in found.ends:
                end.transport.abort()
                await end.until(lambda end=end: bool(end.lost_reasons))  # type: ignore[misc]
            await asyncio.sleep(0)


# Silence.


@pytest.mark.slow
async def test_a_lost_route_is_noticed_on_both_sides(route: Route) -> None:
    route.expect_heartbeats()
    await route.until_signs(2)
    route.freeze()
    for end in route.ends:
        await end.until(lambda end=end: bool(end.lost_reasons))  # type: ignore[misc]
        assert end.lost_reasons[0].startswith("no answer for ")


@pytest.mark.slow
async def test_a_lost_route_is_noticed_while_output_flows(route: Route) -> None:
    near, far = route.ends
    route.expect_heartbeats()
    await route.until_signs(1)
    route.freeze()
    # What is on its way fills every buffer, so that no sign could be sent any more.
    while not far.paused:
        far.transport.send(message(64 << 10))
        await asyncio.sleep(0)
    for end in (near, far):
        await end.until(lambda end=end: bool(end.lost_reasons))  # type: ignore[misc]
        assert end.lost_reasons[0].startswith("no answer for ")


@pytest.mark.slow
async def test_an_idle_connection_is_kept_by_signs_of_life_that_are_no_messages(
    route: Route,
) -> None:
    route.expect_heartbeats()
    await route.until_signs(5)
    for end in route.ends:
        assert end.lost_reasons == []
        assert end.messages == []


@pytest.mark.slow
async def test_signs_of_life_never_fall_into_a_message(route: Route) -> None:
    near, far = route.ends
    for end in (near, far):
        end.transport.expect_heartbeats(0.001)
    sent = [message(100_000, number) for number in range(200)]
    for number, text in enumerate(sent):
        near.transport.send_parts([text[:50_000], text[50_000:]])
        if number % 10 == 0:
            await asyncio.sleep(0.002)
        if near.lost_reasons or far.lost_reasons:
            break  # so short an interval may end it on a busy machine; nothing may be torn
    with suppress(TimeoutError):
        await far.until(lambda: len(far.messages) == len(sent) or bool(far.lost_reasons))
    assert far.messages == sent[: len(far.messages)]
    assert far.messages


@pytest.mark.slow
async def test_a_peer_that_does_not_read_is_kept(route: Route) -> None:
    near, far = route.ends
    route.expect_heartbeats()
    near.transport.pause_receiving()
    sent: list[bytes] = []
    while not far.paused:
        sent.append(message(64 << 10, len(sent)))
        far.transport.send(sent[-1])
        await asyncio.sleep(0)
    # It still says that it lives; that it hears nothing is its own doing.
    async with asyncio.timeout(LIMIT):
        for _ in range(4):
            await asyncio.sleep(INTERVAL)
    assert near.lost_reasons == far.lost_reasons == []
    near.transport.resume_receiving()
    await near.until(lambda: len(near.messages) == len(sent))
    assert near.messages == sent
    await route.until_signs(3)
    assert near.lost_reasons == far.lost_reasons == []


@pytest.mark.slow
async def test_a_loop_that_was_busy_does_not_take_its_peer_for_lost(route: Route) -> None:
    route.expect_heartbeats()
    await route.until_signs(1)
    for _ in range(3):
        time.sleep(3 * INTERVAL)  # noqa: ASYNC251 - as a long computation does
        await route.until_signs(1)
    await route.until_signs(3)
    assert [end.lost_reasons for end in route.ends] == [[], []]


async def test_nothing_is_expected_before_both_sides_agreed(route: Route) -> None:
    near, far = route.ends
    if near.transport.kind == "websocket":
        return  # a client pings from the start, since every server answers
    near.transport.send(b"{}")
    await far.until(lambda: far.messages == [b"{}"])
    for end in (near, far):
        assert isinstance(end.transport, LineTransport)
        assert end.transport._heartbeats is None


async def test_in_memory_nothing_is_expected() -> None:
    near, far = End(), End()
    connect_memory(near.accept, far.accept)
    near.transport.expect_heartbeats(0.001)
    near.transport.excuse_silence(lambda: False)
    await asyncio.sleep(0.01)
    assert near.lost_reasons == far.lost_reasons == []


# Silence of a WebSocket server that is not asked to agree.


@pytest.mark.slow
async def test_a_client_notices_a_server_that_answers_no_ping() -> None:
    near, far = End(), End()
    async with AsyncExitStack() as stack:
        server = await listen_websocket("127.0.0.1", 0, gate=make_gate(None), accept=far.accept)
        stack.callback(server.close)
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        proxy = await stack.enter_async_context(cutting(url))
        await connect_websocket(proxy.url, near.accept, ping_interval=INTERVAL)
        await far.until(lambda: far.connected)
        await proxy.until_carried(4, LIMIT)  # a ping and a pong each
        assert near.lost_reasons == []
        busy = True
        near.transport.excuse_silence(lambda: busy)
        proxy.freeze()
        await asyncio.sleep(4 * INTERVAL)
        assert near.lost_reasons == []
        busy = False
        await near.until(lambda: bool(near.lost_reasons))
        assert near.lost_reasons[0].startswith("no answer for ")
        proxy.cut()
        await far.until(lambda: bool(far.lost_reasons))


@pytest.mark.slow
async def test_a_server_keeps_a_client_that_neither_answers_nor_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    enough = asyncio.Event()
    of = TcpState.of

    def counted(sock: socket.socket) -> TcpState | None:
        nonlocal looks
        looks += 1
        if looks > 16 / INTERVAL:  # 4 seconds of looks, 4 in each interval
            enough.set()
        return of(sock)

    monkeypatch.setattr(TcpState, "of", counted)
    far = End()
    server = await listen_websocket(
        "127.0.0.1", 0, gate=make_gate(None), accept=far.accept, ping_interval=INTERVAL
    )
    client = await asyncio.to_thread(raw_client, server.sockets[0].getsockname()[1])
    try:
        await far.until(lambda: far.connected)
        while not far.paused:
            far.transport.send(message(64 << 10))
            await asyncio.sleep(0)
        async with asyncio.timeout(3 * LIMIT):
            await enough.wait()
        assert far.lost_reasons == []
    finally:
        client.close()
        server.close()
        await far.until(lambda: bool(far.lost_reasons))
        await asyncio.sleep(0)


# An end that the kernel tells of.


def reset(sock: socket.socket) -> None:
    """Close a TCP socket with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def raw_client(port: int) -> socket.socket:
    """Connect to a WebSocket server and shake hands, by hand."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
    sock.sendall(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    )
    assert sock.recv(4096).startswith(b"HTTP/1.1 101")
    return sock


def raw_server(listening: socket.socket) -> socket.socket:
    """Accept a WebSocket client and shake hands, by hand."""
    sock, _ = listening.accept()
    sock.settimeout(LIMIT)
    head = b""
    while b"\r\n\r\n" not in head:
        head += sock.recv(4096)
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    key = next(value for name, value in fields.items() if name.lower() == b"sec-websocket-key")
    accept = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    sock.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + base64.b64encode(accept) + b"\r\n\r\n"
    )
    return sock


class RawPeer:
    """Our end of a connection whose other end is a socket of the test."""

    def __init__(self, end: End, sock: socket.socket) -> None:
        self.end = end
        self.sock = sock

    def say(self, count: int, size: int = 60_000) -> None:
        """Send so many messages of a size."""
        text = message(size)
        if self.end.transport.kind != "websocket":
            data = text + b"\n"
        elif isinstance(self, RawWebSocketClient):
            data = b"\x81\xfe" + len(text).to_bytes(2) + bytes(4) + text  # masked with zeros
        else:
            data = b"\x81\x7e" + len(text).to_bytes(2) + text
        self.sock.sendall(data * count)

    def reset(self) -> None:
        if self.sock.family != socket.AF_UNIX:
            reset(self.sock)
            return
        # A unix socket is reset if it is closed with something unread.
        while not self.sock.recv(1, socket.MSG_PEEK):
            pass
        self.sock.close()


class RawWebSocketClient(RawPeer):
    pass


@pytest.fixture(params=["websocket server", "websocket client", "unix"])
async def peer(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RawPeer]:
    """A connection to a peer that is played by hand; nobody pings."""
    end = End()
    found: RawPeer
    async with AsyncExitStack() as stack:
        if request.param == "unix":
            stack.callback((await listen_unix(str(tmp_path / "s"), end.accept)).close)
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.settimeout(LIMIT)
            sock.connect(str(tmp_path / "s"))
            found = RawPeer(end, sock)
        elif request.param == "websocket server":
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            url = f"ws://127.0.0.1:{listening.getsockname()[1]}"
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(asyncio.to_thread(raw_server, listening))
                await connect_websocket(url, end.accept, ping_interval=NEVER)
            found = RawPeer(end, stack.enter_context(serving.result()))
        else:
            server = await listen_websocket(
                "127.0.0.1", 0, gate=make_gate(None), accept=end.accept, ping_interval=NEVER
            )
            stack.callback(server.close)
            sock = await asyncio.to_thread(raw_client, server.sockets[0].getsockname()[1])
            found = RawWebSocketClient(end, stack.enter_context(sock))
        await end.until(lambda: end.connected)
        try:
            yield found
        finally:
            end.transport.abort()
            await end.until(lambda: bool(end.lost_reasons))
            await asyncio.sleep(0)


@pytest.mark.parametrize("paused", [False, True], ids=["reading", "paused"])
@pytest.mark.parametrize("unread", [0, 2], ids=["nothing unread", "unread"])
async def test_a_reset_is_noticed_at_once(peer: RawPeer, paused: bool, unread: int) -> None:
    end = peer.end
    end.transport.send(b"{}")
    if paused:
        end.transport.pause_receiving()
    peer.say(unread)
    peer.reset()
    await end.until(lambda: bool(end.lost_reasons))
    assert len(end.lost_reasons) == 1


@pytest.mark.parametrize("paused", [False, True], ids=["reading", "paused"])
async def test_a_reset_is_noticed_with_much_left_to_send(peer: RawPeer, paused: bool) -> None:
    end = peer.end
    if paused:
        end.transport.pause_receiving()
    while not end.paused:
        end.transport.send(message(60_000))
    peer.say(2)
    peer.reset()
    await end.until(lambda: bool(end.lost_reasons))


async def test_an_end_is_noticed_at_once_while_paused(peer: RawPeer) -> None:
    peer.end.transport.pause_receiving()
    peer.sock.close()
    await peer.end.until(lambda: bool(peer.end.lost_reasons))


async def test_an_end_while_paused_waits_for_what_is_unread(peer: RawPeer) -> None:
    end = peer.end
    end.transport.expect_heartbeats(0.02)  # a sign would break the connection
    end.transport.pause_receiving()
    peer.say(2, 1000)  # no more than the kernel takes, so that the end is behind it at once
    peer.sock.close()
    await asyncio.sleep(0.1)
    assert end.lost_reasons == []
    end.transport.resume_receiving()
    await end.until(lambda: bool(end.lost_reasons))
    assert len(end.messages) == 2


@pytest.mark.requirement("security.others.requests")
async def test_a_server_does_not_wait_for_ever_to_read_on_what_a_client_left(
    peer: RawPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.wire.transports.liveness.LEFT_UNREAD", 0.03)
    end = peer.end
    end.transport.pause_receiving()
    peer.say(2, 1000)
    peer.sock.close()
    if end.transport.kind == "websocket" and not isinstance(peer, RawWebSocketClient):
        # A client reads what its server said last whenever it gets to it.
        await asyncio.sleep(0.1)
        assert end.lost_reasons == []
        end.transport.resume_receiving()
    await end.until(lambda: bool(end.lost_reasons))
    assert not end.transport.went_silent


@pytest.mark.requirement("security.others.requests")
async def test_a_server_notices_an_end_behind_more_than_the_kernel_takes(
    peer: RawPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells of it until the server writes: so it does after a while."""
    end = peer.end
    if not isinstance(peer, RawWebSocketClient):
        return  # a client waits, and on a unix socket the kernel tells
    end.transport.pause_receiving()
    peer.sock.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            peer.say(1)
    peer.sock.close()
    life = end.transport._heartbeats  # type: ignore[attr-defined]
    life.start(0.03, judge_silence=False)
    await end.until(lambda: bool(end.lost_reasons))


async def test_a_reset_after_an_end_is_noticed_while_paused(peer: RawPeer) -> None:
    end = peer.end
    end.transport.pause_receiving()
    peer.say(1)
    peer.sock.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0.02)
    assert end.lost_reasons == []
    end.transport.send(b"{}")
    peer.reset()
    await end.until(lambda: bool(end.lost_reasons))


@pytest.mark.parametrize("paused", [False, True], ids=["reading", "paused"])
async def test_the_end_of_a_pipe_is_noticed_at_once(paused: bool) -> None:
    end = End()
    (incoming, to_end), (from_end, outgoing) = os.pipe(), os.pipe()
    await connect_pipes(incoming, outgoing, end.accept)
    if paused:
        end.transport.pause_receiving()
    os.close(to_end)
    await end.until(lambda: bool(end.lost_reasons))
    os.close(from_end)
    await asyncio.sleep(0)


async def test_the_end_of_a_paused_pipe_waits_for_what_is_unread() -> None:
    end = End()
    (incoming, to_end), (from_end, outgoing) = os.pipe(), os.pipe()
    await connect_pipes(incoming, outgoing, end.accept)
    end.transport.pause_receiving()
    os.write(to_end, b"{}\n")
    os.close(to_end)
    await asyncio.sleep(0.02)
    assert end.lost_reasons == []
    end.transport.resume_receiving()
    await end.until(lambda: bool(end.lost_reasons))
    assert end.messages == [b"{}"]
    os.close(from_end)
    await asyncio.sleep(0)
