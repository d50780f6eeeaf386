"""A closed process answers as before when its server, or its table, has forgotten it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from holdfast.backends import ExecBackend, ExecProcess
from holdfast.base.errors import InvalidRequest
from holdfast.client.client import ExecServerClient
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver
from holdfast.engine.process.registry import LocalBackend, ProcessRegistry
from holdfast.events import WaitingFor
from holdfast.server.app import Server
from holdfast.wire.protocol.process import StartParams, WriteStatus
from tests.contract.conftest import MemoryTarget
from tests.contract.running import program
from tests.e2e.wire import LIMIT


class Forgetful(ProcessObserver):
    """A subject that forgets a process right after its close."""

    def __init__(self) -> None:
        self.backend: ExecBackend
        self._forgotten = asyncio.Event()

    def forgotten(self, process: LoggedProcess) -> None:
        self._forgotten.set()

    async def ended(self, params: StartParams) -> ExecProcess:
        """Run a process until it is forgotten."""
        async with asyncio.timeout(LIMIT):
            process = await self.backend.start(params)
            await process.wait()
            await self._forgotten.wait()
        return process


@pytest.fixture(params=["local", "memory"])
async def forgetful(request: pytest.FixtureRequest) -> AsyncIterator[Forgetful]:
    subject = Forgetful()
    async with AsyncExitStack() as stack:
        if request.param == "local":
            processes = ProcessRegistry(retention=0.0, observers=[subject])
            subject.backend = await stack.enter_async_context(LocalBackend(processes))
        else:
            server = Server(process_retention=0.0, observers=[subject])
            target = MemoryTarget(await stack.enter_async_context(server))
            client = await ExecServerClient.connect(target)
            subject.backend = await stack.enter_async_context(client)
        yield subject


async def test_pipes(forgetful: Forgetful) -> None:
    process = await forgetful.ended(program("true", pipe_stdin=True))
    assert await process.write(b"x") is WriteStatus.ACCEPTED  # and vanishes
    with pytest.raises(InvalidRequest, match="process p has no terminal to resize"):
        await process.resize(10, 20)
    await process.signal("interrupt")
    assert await process.waiting_for() is WaitingFor.NONE
    assert await process.terminate(left=True) is False
    assert (await process.read()).closed
    await process.close_stdin()
    assert await process.write(b"x") is WriteStatus.STDIN_CLOSED


async def test_no_input(forgetful: Forgetful) -> None:
    process = await forgetful.ended(program("true"))
    assert await process.write(b"x") is WriteStatus.STDIN_CLOSED
    await process.close_stdin()


async def test_a_terminal(forgetful: Forgetful) -> None:
    process = await forgetful.ended(program("true", tty=True))
    assert await process.write(b"x") is WriteStatus.ACCEPTED
    await process.resize(10, 20)
    await process.close_stdin()
    assert await process.write(b"x") is WriteStatus.STDIN_CLOSED
