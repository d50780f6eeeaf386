"""The connection to a server is cut again and again: nothing is lost, doubled or reordered."""

import asyncio
import os

from holdfast import ExecServerClient, OutputChunk, PathUri, Server, StartParams, WriteStatus
from holdfast.server.listen import parse_listen_url

CUTS = 5
LINES = 300


class Line:
    """A wire between client and server that can be cut: a proxy for TCP connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self.up = asyncio.Event()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either end is gone."""
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._open |= {writer, far_writer}
        self.up.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._copy(reader, far_writer))
            tasks.create_task(self._copy(far_reader, writer))
        self._open -= {writer, far_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # cut
        finally:
            writer.close()

    def cut(self) -> None:
        """Break all connections at once, in the middle of whatever they carry."""
        self.up.clear()
        for writer in self._open:
            writer.transport.abort()


async def count(client: ExecServerClient, line: Line) -> None:
    """Have every line repeated by a process, and cut the connection while that goes on."""
    request = StartParams(
        process_id="cat",
        argv=["cat"],
        cwd=PathUri.from_path("/"),
        env={"PATH": os.defpath},
        tty=False,
        pipe_stdin=True,
    )
    process = await client.start(request)

    async def write() -> None:
        for number in range(LINES):
            if number % (LINES // CUTS) == LINES // CUTS // 2:
                await line.up.wait()  # there is something to cut again
                line.cut()
            # Accepted also while the line is down, and repeated with the same id: written once.
            assert await process.write(b"%d\n" % number) is WriteStatus.ACCEPTED
        await process.close_stdin()

    output = b""
    numbers = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        async for event in process.events():
            numbers.append(event.seq)
            if isinstance(event, OutputChunk):
                output += event.chunk
    assert output == b"".join(b"%d\n" % number for number in range(LINES))
    assert numbers == list(range(1, len(numbers) + 1))
    assert (await process.wait()).ok


async def main() -> None:
    async with asyncio.timeout(25), Server() as server, asyncio.TaskGroup() as tasks:
        url = await server.listen(parse_listen_url("ws://127.0.0.1:0"))
        line = Line(int(url.rpartition(":")[2]))

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.create_task(line.carry(reader, writer))

        proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        async with await ExecServerClient.connect(f"ws://127.0.0.1:{port}") as client:
            session = client.session_id
            await count(client, line)
            assert client.session_id == session
        proxy.close()
        assert line.connections > CUTS
        print(f"{LINES} lines, {line.connections} connections, one session, nothing lost")


asyncio.run(main())
