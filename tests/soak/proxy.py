"""
A TCP proxy that ends its connections in every way a network can.

It passes bytes on in both directions. A cut is chosen by name: see `CUTS`.
"""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

CUTS = ("reset", "end", "mid-frame", "half-open-server", "half-open-client", "delayed")
"""
`reset`: RST to both sides. `end`: FIN to both sides. `mid-frame`: a few more bytes pass, then
RST. `half-open-server`: only the client sees an end. `half-open-client`: only the server does,
and the client has to notice the silence. `delayed`: nothing passes for a while, then RST.
"""

_RESET = struct.pack("ii", 1, 0)


class _Pair:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.passing = asyncio.Event()
        self.passing.set()
        self.budget: int | None = None
        """Bytes that still pass, if it is about to be cut in the middle of a frame."""
        self.cut = asyncio.Event()
        self.idle = asyncio.Event()
        """Set when the event loop watches neither end any more."""

    async def copy(self, source: socket.socket, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while not self.cut.is_set():
            data = await loop.sock_recv(source, 1 << 16)
            await self.passing.wait()
            if self.budget is not None:
                data, self.budget = data[: self.budget], max(0, self.budget - len(data))
            if not data:
                break
            await loop.sock_sendall(target, data)


class CutProxy:
    """Stands before one server."""

    def __init__(self, upstream: str, chance: random.Random) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname, parts.port)
        self._chance = chance
        self._pairs: set[_Pair] = set()
        self._left: list[socket.socket] = []
        self._changed = asyncio.Event()
        self.url = ""
        self.accepted = 0
        """Connections so far."""

    async def connected(self) -> None:
        """Wait until there is a connection to cut."""
        while not self._pairs:
            self._changed.clear()
            await self._changed.wait()

    async def cut(self, how: str) -> None:
        """End every connection in one of the ways of `CUTS`."""
        pairs, self._pairs = list(self._pairs), set()
        if how == "mid-frame":
            for pair in pairs:
                pair.budget = self._chance.randrange(1, 5000)
            await asyncio.sleep(self._chance.uniform(0.0, 0.02))
        elif how == "delayed":
            for pair in pairs:
                pair.passing.clear()
            await asyncio.sleep(self._chance.uniform(0.02, 0.3))
        for pair in pairs:
            pair.cut.set()
        for pair in pairs:
            # A descriptor that is closed while it is watched, and then used again by another
            # connection of this loop, would take the watch of that one with it.
            await pair.idle.wait()
            if how == "half-open-server":
                self._end(pair.client, reset=True)
                self._left.append(pair.server)
            elif how == "half-open-client":
                self._end(pair.server, reset=True)
                self._left.append(pair.client)
            else:
                self._end(pair.client, reset=how != "end")
                self._end(pair.server, reset=how != "end")
        while len(self._left) > 8:
            self._end(self._left.pop(0), reset=True)

    def close(self) -> None:
        """End all connections, also those left half open."""
        for pair in self._pairs:
            pair.cut.set()
            self._left += [pair.client, pair.server]
        self._pairs.clear()
        while self._left:
            self._end(self._left.pop(), reset=True)

    def _end(self, end: socket.socket, *, reset: bool) -> None:
        with suppress(OSError):
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            else:
                end.shutdown(socket.SHUT_RDWR)
        end.close()

    async def serve(self, client: socket.socket) -> None:
        """Pass on what one connection carries until it ends or is cut."""
        loop = asyncio.get_running_loop()
        self.accepted += 1
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setblocking(False)
        pair = _Pair(client, server)
        try:
            await loop.sock_connect(server, self._upstream)
        except OSError:
            client.close()
            server.close()
            return
        self._pairs.add(pair)
        self._changed.set()
        copying = [
            asyncio.ensure_future(pair.copy(client, server)),
            asyncio.ensure_future(pair.copy(server, client)),
            asyncio.ensure_future(pair.cut.wait()),
        ]
        try:
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in copying:
                task.cancel()
            await asyncio.gather(*copying, return_exceptions=True)
            pair.idle.set()
            if pair in self._pairs:  # an end of its own
                self._pairs.discard(pair)
                client.close()
                server.close()


@asynccontextmanager
async def cut_proxy(url: str, chance: random.Random) -> AsyncIterator[CutProxy]:
    """Run a proxy in front of a server."""
    proxy = CutProxy(url, chance)
    loop = asyncio.get_running_loop()
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    listening.setblocking(False)
    proxy.url = f"ws://127.0.0.1:{listening.getsockname()[1]}"
    serving: set[asyncio.Task[None]] = set()

    async def accept() -> None:
        while True:
            client, _ = await loop.sock_accept(listening)
            client.setblocking(False)
            task = asyncio.ensure_future(proxy.serve(client))
            serving.add(task)
            task.add_done_callback(serving.discard)

    accepting = asyncio.ensure_future(accept())
    try:
        yield proxy
    finally:
        accepting.cancel()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(accepting, *serving, return_exceptions=True)
        proxy.close()
        await asyncio.sleep(0)
        listening.close()
