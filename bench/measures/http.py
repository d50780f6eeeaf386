"""HTTP calls that a server makes for its client: one at a time, and many in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast

from bench import wire
from bench.calls import AtOnce, InTurn
from bench.figures import (
    Acks,
    Benchmark,
    Better,
    Context,
    Figure,
    Subject,
    Target,
    both_clients,
    through_both,
)
from bench.processes import on_one_core
from bench.servers import talking

__all__ = ["REQUESTS"]

_METHOD = "http/request"
_WARM_UP = 20

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"


class _Origin(asyncio.Protocol):
    """Answers every request in the same way, on connections that stay open."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._unanswered = b""

    def data_received(self, data: bytes) -> None:
        *heads, self._unanswered = (self._unanswered + data).split(b"\r\n\r\n")
        if heads:
            self._transport.write(_ANSWER * len(heads))


@asynccontextmanager
async def _origin() -> AsyncIterator[str]:
    """Serve HTTP from this process, at the same cost for every subject; yields the URL."""
    server = await asyncio.get_running_loop().create_server(_Origin, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


def _requests(url: str, count: int) -> list[bytes]:
    return [
        wire.request(number, _METHOD, {"method": "GET", "url": url, "requestId": str(number)})
        for number in range(count)
    ]


async def _measure(context: Context, acks: Acks) -> Mapping[str, float]:
    count = context.sizes.http_requests
    async with _origin() as url, talking(context.command, acks) as (server, client):
        await InTurn(client, _requests(url, _WARM_UP)).run()
        apart = await InTurn(client, _requests(url, count)).run()
        await AtOnce(client, _requests(url, _WARM_UP)).run()
        at_once = await AtOnce(client, _requests(url, count)).run()
        with on_one_core(server.processes()):
            await InTurn(client, _requests(url, _WARM_UP)).run()
            together = await InTurn(client, _requests(url, count)).run()
    return {
        "http": count / together,
        "http_apart": count / apart,
        "http_pipelined": count / at_once,
    }


REQUESTS = Benchmark(
    name="http",
    figures=both_clients(
        Figure(
            key="http",
            title=f"small `{_METHOD}`s to a local server, in turn, client and server on one core",
            unit="calls/s",
            better=Better.HIGHER,
            targets=(Target(factor=1.0),),
        ),
        Figure(
            key="http_apart",
            title=f"small `{_METHOD}`s to a local server, in turn, on any core",
            unit="calls/s",
            better=Better.HIGHER,
        ),
        Figure(
            key="http_pipelined",
            title=f"small `{_METHOD}`s to a local server, 500 at once",
            unit="calls/s",
            better=Better.HIGHER,
            targets=(Target(factor=1.0),),
        ),
    ),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_measure)),
)
