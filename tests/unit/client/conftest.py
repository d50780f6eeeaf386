"""A client whose server is the test."""

from collections.abc import AsyncIterator

import pytest

from holdfast.client import recovery
from holdfast.client.client import ExecServerClient
from holdfast.testing import ScriptedPeer, ScriptedServer


@pytest.fixture(autouse=True)
def no_time_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make retries immediate."""
    monkeypatch.setattr(recovery, "RETRY_INTERVAL", 0.0)


@pytest.fixture
async def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[ExecServerClient]:
    async with await ExecServerClient.connect(server) as client:
        yield client


@pytest.fixture
async def peer(client: ExecServerClient, server: ScriptedServer) -> ScriptedPeer:
    """The first connection, after its handshake."""
    return await server.peer(0)
