"""An environment whose server is the test."""

from collections.abc import AsyncIterator

import pytest

from holdfast.client import recovery
from holdfast.environments.remote import RemoteEnvironment
from holdfast.testing import ScriptedServer


@pytest.fixture(autouse=True)
def no_time_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make retries immediate."""
    monkeypatch.setattr(recovery, "RETRY_INTERVAL", 0.0)


@pytest.fixture
async def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
async def environment(server: ScriptedServer) -> AsyncIterator[RemoteEnvironment]:
    """Not connected yet."""
    environment = RemoteEnvironment("far", server)
    yield environment
    await environment.aclose()
