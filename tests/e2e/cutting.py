"""A proxy that cuts or freezes its connections when told to, whatever they carry."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class CuttingProxy:
    """Passes bytes on in both directions, until it cuts."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        """The URL that new connections lead to."""
        self._open: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self.url = ""
        self.accepted = 0
        """Connections so far."""
        self._changed = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.carried = [0, 0]
        """Pieces passed on so far: from clients, and from the server."""

    def freeze(self) -> None:
        """Pass nothing on any more, and end nothing: the route is lost behind the proxy."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass everything on again, first of all what has come meanwhile."""
        self._flowing.set()

    async def until_carried(self, pieces: int, limit: float) -> None:
        """Wait until so many more pieces were passed on in each direction."""
        goals = [carried + pieces for carried in self.carried]
        async with asyncio.timeout(limit):
            while any(carried < goal for carried, goal in zip(self.carried, goals, strict=True)):
                self._changed.clear()
                await self._changed.wait()

    def cut(self) -> int:
        """End every connection with a reset; returns how many there were."""
        cut = len(self._open)
        for pair in self._open:
            for writer in pair:
                writer.transport.abort()
        self._open.clear()
        return cut

    async def connected(self, limit: float) -> None:
        """Wait until there is a connection to cut."""
        async with asyncio.timeout(limit):
            while not self._open:
                self._changed.clear()
                await self._changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what one connection carries, both ways, until either side ends."""
        self.accepted += 1
        parts = urlsplit(self.upstream)
        try:
            if parts.scheme == "unix":
                far_reader, far_writer = await asyncio.open_unix_connection(parts.path)
            else:
                far_reader, far_writer = await asyncio.open_connection(parts.hostname, parts.port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._open.add(pair)
        self._changed.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(0, reader, far_writer))
                tasks.create_task(self._copy(1, far_reader, writer))
        finally:
            self._open.discard(pair)
            for end in pair:
                end.transport.abort()

    async def _copy(
        self, direction: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
                self.carried[direction] += 1
                self._changed.set()
                await writer.drain()
        except ConnectionError:
            pass
        writer.transport.abort()


@asynccontextmanager
async def cutting(url: str) -> AsyncIterator[CuttingProxy]:
    """A proxy in front of a server."""
    proxy = CuttingProxy(url)
    async with asyncio.TaskGroup() as tasks:
        serving = []

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.append(tasks.create_task(proxy.serve(reader, writer)))

        if url.startswith("unix://"):
            proxy.url = f"{url}.proxy"
            server = await asyncio.start_unix_server(accept, proxy.url.removeprefix("unix://"))
        else:
            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            proxy.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            server.close()
            proxy.cut()
            for task in serving:
                task.cancel()
