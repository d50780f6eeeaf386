"""The handshake of a WebSocket whose caller gives up."""

import asyncio

import pytest

from holdfast.base.errors import ConnectFailed
from holdfast.wire.transports.websocket_client import connect_websocket
from tests.unit.wire.transports.recorder import Recorder


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
