"""Handles of one connection: requests on them keep their order, and none outlives it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.server.app import Server
from holdfast.testing import FakeFileSystem
from tests.unit.server.serving import Client

FILE = {"handleId": "h", "path": "file:///data/a"}
UNKNOWN = (-32004, "unknown file handle `h`")


class StuckHandle:
    """A handle whose writes never end."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.written = asyncio.Event()

    async def read_block(self, offset: int, size: int) -> tuple[bytes, bool]:
        raise NotImplementedError

    async def write_block(self, offset: int, data: bytes) -> None:
        self.calls.append("write")
        self.written.set()
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.calls.append("close")

    def discard(self) -> None:
        self.calls.append("discard")


class StuckFiles(FakeFileSystem):
    """Files whose handles are all the same one."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = StuckHandle()

    async def open(self, *arguments: Any, **options: Any) -> Any:
        return self.handle


@pytest.fixture
async def files() -> FakeFileSystem:
    return FakeFileSystem({"/data/a": "alpha"})


@pytest.fixture
async def client(files: FakeFileSystem) -> AsyncIterator[Client]:
    async with Server(files=files) as server:
        client = Client(server)
        await client.initialize()
        yield client
        client.hang_up()


@pytest.mark.requirement("fs.open.per-connection")
async def test_requests_need_not_wait_for_the_answer_to_the_opening(
    client: Client, files: FakeFileSystem
) -> None:
    files.hold("open")
    asked = [
        client.ask("fs/open", **FILE, mode="replace"),
        client.ask("fs/writeBlock", handleId="h", offset=0, chunk="b25l"),
        client.ask("fs/writeBlock", handleId="h", offset=3, chunk="dHdv"),
        client.ask("fs/close", handleId="h"),
        client.ask("fs/open", **FILE),
        client.ask("fs/readBlock", handleId="h", offset=0, len=9),
    ]
    await files.until(lambda: len(files.asked) == 2)
    files.let(1)
    *replaced, opened, read = asked
    for request in replaced:
        assert await client.transport.answer(request) in ({"handleId": "h"}, {})
    assert files.path("/data/a").read_text() == "onetwo"
    files.let()
    assert await client.transport.answer(opened) == {"handleId": "h"}
    assert await client.transport.answer(read) == {"chunk": "b25ldHdv", "eof": True}


async def test_a_file_that_does_not_open_has_no_handle(
    client: Client, files: FakeFileSystem
) -> None:
    files.hold("open")
    opened = client.ask("fs/open", handleId="h", path="file:///data/missing")
    read = client.ask("fs/readBlock", handleId="h", offset=0, len=9)
    written = client.ask("fs/writeBlock", handleId="h", offset=0, chunk="b25l")
    closed = client.ask("fs/close", handleId="h")
    files.let()
    assert await client.transport.answer(opened) == (
        -32004,
        "No such file or directory (os error 2)",
    )
    assert await client.transport.answer(read) == UNKNOWN
    assert await client.transport.answer(written) == UNKNOWN
    assert await client.transport.answer(closed) == {}
    assert await client.call("fs/open", **FILE) == {"handleId": "h"}


async def test_a_client_that_leaves_before_its_file_is_closed_leaves_no_handle() -> None:
    files = StuckFiles()
    async with Server(files=files) as server:
        client = Client(server)
        await client.initialize()
        await client.call("fs/open", **FILE, mode="replace")
        client.ask("fs/writeBlock", handleId="h", offset=0, chunk="b25l")
        client.ask("fs/close", handleId="h")
        async with asyncio.timeout(5):
            await files.handle.written.wait()
        client.hang_up()
    assert files.handle.calls == ["write", "discard"]
