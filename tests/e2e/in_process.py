"""A server in the test's own process, for what takes minutes with the times of a real one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.server.app import Server
from holdfast.server.listen import parse_listen_url


@asynccontextmanager
async def serving_here(**options: Any) -> AsyncIterator[str]:
    """Serve with other times than the protocol's; yields the URL."""
    async with Server(**options) as server:
        yield await server.listen(parse_listen_url("ws://127.0.0.1:0"))
