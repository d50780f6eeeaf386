"""One server for all tests that do not need one of their own, and connections to it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.e2e.wire import Client, ServerProcess, connect, serving


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A server with default options. Whatever the tests did to it, it ends well and in silence."""
    with serving() as server:
        yield server
        assert server.process.poll() is None
        assert server.stop() == 0
        assert server.errors == ""


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    """A connection with a session of its own, past the handshake."""
    async with connect(server.url) as client:
        yield client
