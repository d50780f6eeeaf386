"""Faults that an environment has to survive, whoever serves it: a cut, a restart, a death."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.backends import ExecProcess
from holdfast.base.errors import ConnectionLost
from holdfast.environments.environment import Environment
from holdfast.environments.remote import RemoteEnvironment
from holdfast.events import Exited, ProcessEvent
from holdfast.wire.protocol.fs import FileContent, ReadFileParams, WriteFileParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputChunk, StartParams, WriteStatus
from tests.e2e.cutting import CuttingProxy
from tests.e2e.wire import LIMIT, PATH


async def start(environment: Environment, process_id: str, script: str) -> ExecProcess:
    """A shell whose input can be written."""
    return await environment.backend.start(
        StartParams(
            process_id=process_id,
            argv=["/bin/sh", "-c", script],
            cwd=PathUri.parse("file:///"),
            env={"PATH": PATH},
            tty=False,
            pipe_stdin=True,
        )
    )


async def output(
    events: AsyncIterator[ProcessEvent], wanted: bytes, *, limit: float = 2 * LIMIT
) -> None:
    """Wait for exactly these bytes, and for no others before them."""
    got = b""
    async with asyncio.timeout(limit):
        while got != wanted:
            event = await anext(events)
            assert isinstance(event, OutputChunk), f"it ended after {got!r}"
            got += event.chunk
            assert wanted.startswith(got)


async def works(environment: Environment, folder: Path) -> None:
    """Processes and files can be used."""
    process = await start(environment, f"works-{folder.name}", "echo fine; exit 7")
    assert (await process.wait()).exit_code == 7
    file = PathUri.from_path(str(folder / "file"))
    await environment.filesystem.write_file(
        WriteFileParams(file, data_base64=FileContent(b"content"))
    )
    assert await environment.filesystem.read_file(ReadFileParams(file)) == b"content"


async def lives_through_a_cut(
    environment: RemoteEnvironment, proxy: CuttingProxy, folder: Path
) -> None:
    """The session goes on after a cut: nothing is lost or doubled, and callers only wait."""
    process = await start(environment, "p", "echo one; read x; echo two $x; read y; exit 9")
    events = process.events()
    await output(events, b"one\n")
    client = await environment.client()
    session = client.session_id
    for number, word in enumerate((b"two ebb\n", b""), start=2):
        assert proxy.cut() == 1
        async with asyncio.timeout(2 * LIMIT):
            # Made before there is a connection again.
            assert await process.write(b"ebb\n") is WriteStatus.ACCEPTED
        await output(events, word)
        await environment.wait_ready()
        assert proxy.accepted == number
    last = [event async for event in events]
    assert [event.verdict.exit_code for event in last if isinstance(event, Exited)] == [9]
    states: AsyncIterator[bool] = environment.connection_states()
    assert await anext(states)
    assert proxy.cut() == 1
    async with asyncio.timeout(2 * LIMIT):
        await anext(states)  # noticed: a start that was under way would not be repeated
        await works(environment, folder)
    assert await environment.client() is client
    assert client.session_id == session
    assert (await environment.status()).state == "ready"


async def is_recovering(environment: RemoteEnvironment) -> None:
    """It has noticed that its server is gone."""
    async with asyncio.timeout(2 * LIMIT):
        async for connected in environment.connection_states():
            if not connected:
                break
    assert (await environment.status()).error == "exec-server environment is recovering"


async def loses_its_session(environment: RemoteEnvironment, process: ExecProcess) -> None:
    """The server was replaced by one that knows nothing: old handles fail, with the reason."""
    text = "failed to resume exec-server session: exec-server rejected request (-32600): "
    async with asyncio.timeout(4 * LIMIT):
        with pytest.raises(ConnectionLost) as caught:
            await process.wait()
    assert text in str(caught.value)
    status = await environment.status()
    assert (status.state, status.error) == ("disconnected", str(caught.value))
    with pytest.raises(ConnectionLost) as again:
        await process.write(b"x")
    assert str(again.value) == str(caught.value)


async def opens_a_new_session(
    environment: RemoteEnvironment, process: ExecProcess, folder: Path
) -> None:
    """The next use does; what was lost stays lost."""
    await works(environment, folder)
    assert (await environment.status()).state == "ready"
    with pytest.raises(ConnectionLost):
        await process.write(b"x")
    with pytest.raises(ConnectionLost):
        await process.wait()


async def dies_for_good(environment: RemoteEnvironment) -> None:
    """A command that serves on its standard streams is not started again after its end."""
    process = await start(environment, "killer", "read x; kill -9 $PPID; read forever")
    async with asyncio.timeout(4 * LIMIT):
        with suppress(ConnectionLost):  # the answer may be lost with its server
            await process.write(b"now\n")
        with pytest.raises(ConnectionLost) as caught:
            await process.wait()
    assert str(caught.value).startswith("exec-server transport disconnected")
    for _ in range(2):
        with pytest.raises(ConnectionLost) as again:
            await start(environment, "p2", "true")
        assert str(again.value) == str(caught.value)
    status = await environment.status()
    assert (status.state, status.error) == ("disconnected", str(caught.value))
