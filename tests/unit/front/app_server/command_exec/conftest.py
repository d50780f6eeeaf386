"""Commands whose processes do what a test says, near and far."""

from collections.abc import AsyncIterator

import pytest

from holdfast.testing import FakeBackend, FakeEnvironment

BACKENDS = {
    "local": FakeBackend,
    "holdfast": lambda: FakeBackend(remote=True),
    "codex": FakeBackend.codex,
}


@pytest.fixture(params=BACKENDS)
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[FakeEnvironment]:
    """A fake environment like this machine, like a Holdfast server, and like a Codex server."""
    async with FakeEnvironment(BACKENDS[request.param]()) as env:
        yield env


@pytest.fixture(params=["holdfast", "codex"])
async def far(request: pytest.FixtureRequest) -> AsyncIterator[FakeEnvironment]:
    """An environment behind a connection."""
    async with FakeEnvironment(BACKENDS[request.param]()) as env:
        yield env
