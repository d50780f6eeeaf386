"""A server that answers as it is told, byte for byte, and remembers what it was asked."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Takes a connection over, which ends with it."""


def redirect(location: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()


class Last:
    """An answer with which the connection ends."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer


class Origin:
    """A web server that a test controls. Answers not given in time are `OK`."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[bytes] = []
        """Each request as it came, head and body."""
        self.connections = 0
        self.was_asked = asyncio.Event()
        self._answers: list[bytes | Last | Talk] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, *answers: bytes | Last | Talk) -> None:
        """Answer the next requests like this."""
        self._answers += answers

    def heads(self) -> list[list[str]]:
        """The lines of each request's head, without the port, which is never the same."""
        return [
            asked.partition(b"\r\n\r\n")[0]
            .decode("latin-1")
            .replace(str(self.port), "PORT")
            .split("\r\n")
            for asked in self.asked
        ]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"\r\ncontent-length: (\d+)\r\n", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                if b"\r\ntransfer-encoding: chunked\r\n" in head:
                    body = await reader.readuntil(b"\r\n0\r\n\r\n")
                self.asked.append(head + body)
                self.was_asked.set()
                answer = self._answers.pop(0) if self._answers else OK
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                elif isinstance(answer, Last):
                    writer.write(answer.answer)
                    break
                else:
                    await answer(reader, writer)
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side has gone
        finally:
            writer.close()


@asynccontextmanager
async def origin(tls: SSLContext | None = None) -> AsyncIterator[Origin]:
    """Run one on a free port; whatever it still does ends with the block."""
    it = Origin()
    running: set[asyncio.Task[None]] = set()
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await it.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the end of the test; streams would log it
        finally:
            running.discard(task)
            gone.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
    it.port = server.sockets[0].getsockname()[1]
    try:
        yield it
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        while running:
            gone.clear()
            await gone.wait()
