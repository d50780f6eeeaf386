"""A WebSocket between a client and an exec-server that notes requests, and can be cut."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

_LARGEST = 64 << 20


class Wiretap:
    """Passes messages both ways and keeps the requests of the client."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._open: set[ServerConnection] = set()
        self.lost = False
        """Let no connection through any more."""
        self.requests: list[tuple[str, Any]] = []
        """Method and params of each message that named a method, in order."""
        self.url = ""

    async def serve(self, client: ServerConnection) -> None:
        """Pass on the messages of one connection."""
        if self.lost:
            client.transport.abort()
            return
        self._open.add(client)
        try:
            async with connect(self._upstream, max_size=_LARGEST, proxy=None) as server:
                there = asyncio.create_task(self._pass(client, server))
                back = asyncio.create_task(self._pass(server, client))
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                for task in (there, back):
                    task.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        except OSError:
            client.transport.abort()
        finally:
            self._open.discard(client)

    async def _pass(
        self, source: ClientConnection | ServerConnection, sink: ClientConnection | ServerConnection
    ) -> None:
        with suppress(ConnectionClosed):
            async for message in source:
                if isinstance(source, ServerConnection):
                    self._note(message)
                await sink.send(message)

    def _note(self, message: str | bytes) -> None:
        decoded = json.loads(message)
        if "method" in decoded:
            self.requests.append((decoded["method"], decoded.get("params")))

    def cut(self, *, for_good: bool = False) -> None:
        """Close every connection as a broken network does."""
        self.lost = for_good
        for client in self._open:
            client.transport.abort()


@asynccontextmanager
async def tapped(upstream: str) -> AsyncIterator[Wiretap]:
    """Listen on a free port of this machine for one server."""
    tap = Wiretap(upstream)
    async with serve(tap.serve, "127.0.0.1", 0, max_size=_LARGEST, close_timeout=1) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        tap.url = f"ws://127.0.0.1:{port}"
        yield tap
