"""The handshake, and what ends a connection."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.server.app import Server
from holdfast.wire.protocol.methods import METHODS
from tests.unit.fakes import FakeTransport
from tests.unit.server.serving import Client

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "process/read": ("exec", {"processId": "p"}),
    "process/list": ("exec", {}),
    "environment/info": ("environment info", {}),
    "environment/status": ("environment status", {}),
    "environmentConfig/read": (
        "environment config",
        {"cwd": "file:///", "configPaths": [["model"]], "requirementsPaths": []},
    ),
}


@pytest.fixture
async def stranger(server: Server) -> Client:
    """A client before its handshake."""
    return Client(server)


def test_every_method_of_the_table_is_served() -> None:
    router = Server()._router
    assert [method for method in METHODS if method.name not in router] == []


# The handshake.


@pytest.mark.requirement("session.initialize", "session.client-name", "environment.info")
async def test_a_session_is_opened_and_the_machine_described(stranger: Client) -> None:
    reply = await stranger.call("initialize", clientName="")
    assert reply.keys() == {"sessionId", "environmentInfo"}
    stranger.say(method="initialized")
    assert await stranger.call("environment/info") == reply["environmentInfo"]
    assert await stranger.call("environment/status") == {"status": "ready"}


@pytest.mark.requirement("session.before-initialize", "session.before-initialized")
@pytest.mark.parametrize("method", FAMILIES)
async def test_methods_wait_for_the_handshake(stranger: Client, method: str) -> None:
    family, params = FAMILIES[method]
    assert await stranger.call(method, **params) == (
        -32600,
        f"client must call initialize before using {family} methods",
    )
    await stranger.call("initialize", clientName="x")
    assert await stranger.call(method, **params) == (
        -32600,
        f"client must send initialized before using {family} methods",
    )


@pytest.mark.requirement("envelope.params.before-state", "envelope.unknown-method")
async def test_params_and_methods_are_looked_at_first(stranger: Client) -> None:
    assert await stranger.call("process/read") == (
        -32602,
        "invalid type: null, expected struct ReadParams",
    )
    assert await stranger.call("nope") == (
        -32601,
        "exec-server stub does not implement `nope` yet",
    )


@pytest.mark.requirement("session.initialize.once")
async def test_a_session_is_opened_once(client: Client) -> None:
    assert await client.call("initialize", clientName="x") == (
        -32600,
        "initialize may only be sent once per connection",
    )


@pytest.mark.requirement("session.initialized.lenient")
async def test_initialized_takes_anything_and_may_be_repeated(stranger: Client) -> None:
    await stranger.call("initialize", clientName="x")
    anything: tuple[object, ...] = (None, [], "x", 7)
    for params in anything:
        stranger.say(method="initialized", params=params)
    assert await stranger.call("environment/status") == {"status": "ready"}
    assert stranger.transport.calls == []


@pytest.mark.requirement("dispatch.handshake-order")
async def test_a_handshake_that_is_not_waited_for_runs_in_order(stranger: Client) -> None:
    ids = [
        stranger.ask("environment/status"),
        stranger.ask("initialize", clientName="x"),
        stranger.ask("environment/status"),
    ]
    stranger.say(method="initialized")
    ids.append(stranger.ask("environment/status"))
    answers = stranger.transport.answers
    assert list(answers) == ids
    assert answers[ids[0]] == (
        -32600,
        "client must call initialize before using environment status methods",
    )
    assert answers[ids[2]] == (
        -32600,
        "client must send initialized before using environment status methods",
    )
    assert answers[ids[3]] == {"status": "ready"}


# Coming back.


@pytest.mark.requirement("session.resume", "session.resume.catch-up", "session.detached.goes-on")
async def test_a_client_comes_back_to_what_it_left(server: Server) -> None:
    first = Client(server)
    session = await first.initialize()
    await first.start("/bin/cat", pipeStdin=True)
    await first.write(b"one", "1")
    await first.sees(b"one")
    first.hang_up()
    second = Client(server)
    assert await second.initialize(resumeSessionId=session) == session
    read = await second.call("process/read", processId="p", afterSeq=0)
    assert [chunk["seq"] for chunk in read["chunks"]] == [1]
    await second.write(b"two", "2")
    await second.sees(b"two")
    assert second.output() == b"two"


@pytest.mark.requirement("session.detached.write-ids")
async def test_a_write_that_is_repeated_after_coming_back_is_written_once(server: Server) -> None:
    first = Client(server)
    session = await first.initialize()
    await first.start("/bin/cat", pipeStdin=True)
    await first.write(b"one", "1")
    first.hang_up()
    second = Client(server)
    await second.initialize(resumeSessionId=session)
    assert await second.write(b"one", "1") == {"status": "accepted"}
    await second.call("process/closeStdin", processId="p")
    await second.hears("process/closed")
    read = await second.call("process/read", processId="p")
    assert [chunk["chunk"] for chunk in read["chunks"]] == ["b25l"]


@pytest.mark.requirement("session.resume.attached", "session.resume.unknown")
async def test_a_client_that_may_not_come_back_may_try_again(
    server: Server, client: Client, stranger: Client
) -> None:
    other = Client(server)
    session = await other.initialize()
    resume = {"clientName": "x", "resumeSessionId": session}
    assert await stranger.call("initialize", **resume) == (
        -32010,
        f"session {session} is already attached to another connection",
    )
    assert await stranger.call("initialize", clientName="x", resumeSessionId="") == (
        -32600,
        "unknown session id ",
    )
    other.hang_up()
    assert (await stranger.call("initialize", **resume))["sessionId"] == session


@pytest.mark.requirement("session.scope", "serve.connections")
async def test_clients_do_not_see_each_others_processes(server: Server, client: Client) -> None:
    await client.start("/bin/cat", pipeStdin=True)
    other = Client(server)
    await other.initialize()
    assert await other.call("process/read", processId="p") == (-32600, "unknown process id p")
    assert await other.call("process/terminate", processId="p") == {"running": False}


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


# What ends a connection.


@pytest.mark.requirement("envelope.violation.notification", "envelope.violation.initialized-early")
async def test_a_notification_nobody_knows_ends_the_connection(stranger: Client) -> None:
    stranger.say(method="initialized")
    assert stranger.transport.calls == ["abort"]
    assert stranger.transport.sent == []


@pytest.mark.requirement("envelope.violation.notification")
@pytest.mark.parametrize("method", ["nope", "process/start", "Initialized"])
async def test_a_request_without_an_id_ends_the_connection(client: Client, method: str) -> None:
    sent = len(client.transport.sent)
    client.say(method=method, params={})
    assert client.transport.calls == ["abort"]
    assert len(client.transport.sent) == sent


@pytest.mark.requirement("envelope.violation.reply", "envelope.violation.resumable")
async def test_an_answer_to_nothing_ends_the_connection_but_not_the_session(
    server: Server,
) -> None:
    client = Client(server)
    session = await client.initialize()
    client.say(id=1, result={})
    assert client.transport.calls == ["abort"]
    client.hang_up()
    successor = Client(server)
    assert await successor.initialize(resumeSessionId=session) == session


@pytest.mark.requirement("envelope.malformed.reply", "envelope.malformed.prefix")
@pytest.mark.parametrize(
    "message", [b"", b"{", b"[]", b"\xff", b'{"id":1}', b'{"id":1,"id":2,"method":"m"}']
)
async def test_what_cannot_be_read_is_reported_and_the_connection_goes_on(
    server: Server, message: bytes
) -> None:
    client = Client(server, FakeTransport(kind="stdio", label="exec-server stdio"))
    client.connection.received(message)
    (report,) = client.transport.messages
    assert report["id"] == -1
    assert report["error"]["code"] == -32600
    assert report["error"]["message"].startswith(
        "failed to parse JSON-RPC message from exec-server stdio: "
    )
    await client.initialize()


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
