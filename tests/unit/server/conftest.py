"""A server for each test, and a client of it."""

from collections.abc import AsyncIterator

import pytest

from holdfast.server.app import Server
from tests.unit.server.serving import Client


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as server:
        yield server
        for connection in list(server.state.connections):
            connection.connection.lost("the test is over")


@pytest.fixture
async def client(server: Server) -> Client:
    """A client past the handshake."""
    client = Client(server)
    await client.initialize()
    return client
