"""The handshake of a WebSocket whose caller gives up, and errors that asyncio would log."""

import asyncio
import base64
import gc
import hashlib
import weakref

import pytest
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in its stub

from holdfast.base.errors import ConnectFailed
from holdfast.wire.transports import websocket
from holdfast.wire.transports.websocket_client import connect_websocket
from tests.unit.wire.transports.recorder import Recorder


def reports() -> list[str]:
    """Return a list to which the event loop adds what it would log."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(f"{context['message']}: {context.get('exception')}")
    )
    return reported


@pytest.mark.both_loops
@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_a_connection_is_closed_with_the_caller_who_gives_up(how: str) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()  # and never answers
        await reader.read()
        ended.set()
        writer.close()

    async with asyncio.timeout(10), await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connecting = asyncio.create_task(
            connect_websocket(
                f"ws://127.0.0.1:{port}",
                lambda _: Recorder(),
                timeout=0.05 if how == "too late" else 60.0,
            )
        )
        if how == "cancelled":
            await asked.wait()
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
        else:
            with pytest.raises(ConnectFailed, match="timed out connecting"):
                await connecting
        await ended.wait()


@pytest.mark.both_loops
async def test_a_caller_who_gives_up_at_the_first_moment_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[weakref.ref[WSProtocol]] = []

    class Cancelling(WSProtocol):  # type: ignore[misc]  # picows has no types for it
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            made.append(weakref.ref(self))
            connecting.cancel()

    monkeypatch.setattr(websocket, "WSProtocol", Cancelling)
    reported = reports()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with asyncio.timeout(10), await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connecting = asyncio.create_task(
            connect_websocket(f"ws://127.0.0.1:{port}", lambda _: Recorder(), timeout=0.1)
        )
        with pytest.raises(asyncio.CancelledError):
            await connecting
        # A future with an exception is reported when it is collected.
        while made[0]() is not None:
            gc.collect()
            await asyncio.sleep(0)

    assert reported == []


@pytest.mark.both_loops
async def test_a_server_that_breaks_the_rules_leaves_no_error_behind() -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).splitlines()
        key = next(line.split()[1] for line in head if line.startswith(b"Sec-WebSocket-Key"))
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
            # There is no opcode 3.
            b"\x83\x00"
        )
        await reader.read()
        writer.close()

    reported = reports()
    async with asyncio.timeout(10), await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        recorder = Recorder()
        transport = await connect_websocket(f"ws://127.0.0.1:{port}", recorder.accept)
        await transport.wait_closed()
    # Whatever the transport refers to is collected with it.
    del transport, recorder
    await asyncio.sleep(0)
    gc.collect()

    assert reported == []
