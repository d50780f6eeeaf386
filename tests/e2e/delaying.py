"""A proxy for TCP that delays what it passes on, each piece by a random time, in order."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

_QUEUE = 1024
"""Pieces on their way in one direction."""


class DelayingProxy:
    """Passes bytes on in both directions, late."""

    def __init__(self, upstream: str, delays: tuple[float, float], seed: int) -> None:
        self.url = ""
        self._upstream = upstream
        self._delays = delays
        self._random = random.Random(seed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what one connection carries, both ways, until either side ends."""
        parts = urlsplit(self._upstream)
        far_reader, far_writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            async with asyncio.TaskGroup() as tasks:
                for source, sink in ((reader, far_writer), (far_reader, writer)):
                    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE)
                    tasks.create_task(self._take(source, queue))
                    tasks.create_task(self._pass_on(queue, sink))
        finally:
            for end in (writer, far_writer):
                end.transport.abort()

    async def _take(
        self, source: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        loop = asyncio.get_running_loop()
        data = b"more"
        while data:
            try:
                data = await source.read(1 << 16)
            except ConnectionError:
                data = b""
            await queue.put((loop.time() + self._random.uniform(*self._delays), data))

    async def _pass_on(
        self, queue: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            # One that is due before its predecessor goes right behind that.
            await asyncio.sleep(due - loop.time())
            if not data:
                sink.transport.abort()
                return
            try:
                sink.write(data)
                await sink.drain()
            except ConnectionError:
                pass  # the other direction ends it


@asynccontextmanager
async def delaying(
    url: str, *, least: float = 0.02, most: float = 0.55, seed: int = 0
) -> AsyncIterator[DelayingProxy]:
    """Return a proxy in front of a server; delays are in seconds."""
    proxy = DelayingProxy(url, (least, most), seed)
    async with asyncio.TaskGroup() as tasks:
        serving: list[asyncio.Task[None]] = []

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.append(tasks.create_task(proxy.serve(reader, writer)))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        proxy.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            server.close()
            for task in serving:
                task.cancel()
