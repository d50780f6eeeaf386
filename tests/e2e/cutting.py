"""A proxy for TCP that cuts its connections when told to, in the middle of whatever they carry."""

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
            far_reader, far_writer = await asyncio.open_connection(parts.hostname, parts.port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._open.add(pair)
        self._changed.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, far_writer))
                tasks.create_task(_copy(far_reader, writer))
        finally:
            self._open.discard(pair)
            for end in pair:
                end.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
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

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        proxy.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            server.close()
            proxy.cut()
            for task in serving:
                task.cancel()
