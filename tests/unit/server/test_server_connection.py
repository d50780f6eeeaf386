"""A connection and its session: lost, slow, or at the end of a server."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.server.app import Server
from holdfast.wire.protocol.methods import METHODS
from tests.unit.server.serving import Client


def test_every_method_of_the_table_is_served() -> None:
    router = Server()._router
    assert [method for method in METHODS if method.name not in router] == []


@pytest.mark.requirement("dispatch.lost")
async def test_a_read_that_waits_does_not_survive_its_connection(
    server: Server, client: Client
) -> None:
    await client.start("/bin/cat", pipeStdin=True)
    client.ask("process/read", processId="p", waitMs=60_000)
    sent = len(client.transport.sent)
    client.hang_up()
    await client.settled()
    assert len(client.transport.sent) == sent
    assert len(server.state.connections) == 0


async def test_a_client_that_does_not_read_holds_its_processes(client: Client) -> None:
    await client.start("/bin/sh", "-c", "read x; echo out; read x", pipeStdin=True)
    client.connection.pause_sending()
    await client.write(b"\n", "1")
    read = await client.call("process/read", processId="p", waitMs=1)
    assert read["chunks"] == []
    client.connection.resume_sending()
    await client.sees(b"out")


async def test_a_client_that_does_not_read_before_its_session_holds_it_from_the_start(
    server: Server,
) -> None:
    client = Client(server)
    client.connection.pause_sending()
    await client.initialize()
    await client.start("/bin/sh", "-c", "echo out; read x", pipeStdin=True)
    read = await client.call("process/read", processId="p", waitMs=1)
    assert read["chunks"] == []
    client.connection.resume_sending()
    await client.sees(b"out")


# The end of a server.


async def test_everything_ends_with_the_server() -> None:
    async with Server() as server:
        client = Client(server)
        await client.initialize()
        await client.start("/bin/sh", "-c", "trap '' TERM; sleep 60 & wait")
        client.ask("process/read", processId="p", waitMs=60_000, afterSeq=9)
        asyncio.get_running_loop().call_soon(client.hang_up)
    assert "abort" in client.transport.calls
    assert len(server.state.sessions) == 0


async def test_a_connection_that_comes_after_the_end_starts_nothing_and_ends(
    tmp_path: Path,
) -> None:
    """A listener may have accepted it before it was closed."""
    async with Server() as server:
        pass
    client = Client(server)
    client.ask("initialize", clientName="late")
    client.ask("fs/createDirectory", path=f"file://{tmp_path}/made")
    await asyncio.sleep(0)
    assert client.transport.calls == ["abort"]
    assert client.transport.sent == []
    client.hang_up()
    assert not server.state.connections


async def test_a_server_may_keep_no_sessions_without_a_connection() -> None:
    async with Server(resumable=False) as server:
        client = Client(server)
        await client.initialize()
        client.hang_up()
        assert len(server.state.sessions) == 1  # it ends with the server


# -- watches


@pytest.mark.requirement("fs.watch.one-instance")
async def test_watches_of_all_connections_are_one_instance_and_leave_nothing(
    server: Server, tmp_path: Path
) -> None:
    filesystem = server.state.filesystem
    assert isinstance(filesystem, LocalFileSystem)
    missing = (tmp_path / "missing").as_uri()
    clients = [Client(server) for _ in range(10)]
    for client in clients:
        await client.initialize()
        asked = [
            client.ask("fs/watchMissing", watchId=number, missing=[missing], present=None)
            for number in range(1, 6)
        ]
        answers = [await client.transport.answer(request) for request in asked]
        assert answers[-1] == {"watching": True}
    instances = [name for name in open_files() if "inotify" in name]
    assert len(instances) == 1
    for number, client in enumerate(clients):
        if number % 2:  # so that its last watch has not begun to wait when it leaves
            client.ask("fs/watchMissing", watchId=9, missing=[missing], present=None)
        client.hang_up()
    async with asyncio.timeout(5):
        while len(filesystem._inotify):  # noqa: ASYNC110 - threads give up what they began
            await asyncio.sleep(0.001)


def open_files() -> list[str]:
    """Return what this process has open, as `/proc` names it."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found
