"""The official client of the Model Context Protocol, on a server in this process."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from holdfast.base.token_file import NamedToken
from holdfast.front.mcp.mcp_options import ServerOptions
from holdfast.front.mcp.mcp_server import McpServer
from holdfast.front.mcp.stream_pair import StreamPair
from holdfast.front.mcp.streamable_http import HttpAccess
from holdfast.server.listen import ListenUrl
from holdfast.server.operate.auth import Check, check_tokens
from holdfast.wire.transports.stdio import connect_pipes
from holdfast.wire.transports.transport import Receiver, Transport

HANDSHAKE = "legacy"
MODERN = "2026-07-28"

Kind = Literal["stdio", "http"]
Answer = Callable[[types.ElicitRequestFormParams], Awaitable[types.ElicitResult]]


def accepting(decision: str = "accept") -> Answer:
    """An answer that says yes."""

    async def answer(params: types.ElicitRequestFormParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"decision": decision})

    return answer


async def declining(params: types.ElicitRequestFormParams) -> types.ElicitResult:
    """An answer that says no."""
    return types.ElicitResult(action="decline")


@asynccontextmanager
async def _piped(server: McpServer) -> AsyncIterator[tuple[Any, Any]]:
    """Two pipes between a client and a server, with a message in each line."""
    to_server, from_client = os.pipe()
    to_client, from_server = os.pipe()
    wires: list[StreamPair] = []

    def receive(transport: Transport) -> Receiver:
        wires.append(StreamPair(transport))
        return wires[-1]

    there = await connect_pipes(to_server, from_server, server.accept)
    here = await connect_pipes(to_client, from_client, receive)
    try:
        yield wires[0].incoming, wires[0].outgoing
    finally:
        here.abort()
        there.abort()
        await here.wait_closed()
        await there.wait_closed()


class ServedMcp:
    """A server, and clients of it."""

    def __init__(self, kind: Kind, mode: str, server: McpServer, url: str) -> None:
        self.kind = kind
        self.mode = mode
        self.server = server
        self.url = url

    @asynccontextmanager
    async def client(
        self, answer: Answer | None = None, *, token: str | None = None, **more: Any
    ) -> AsyncIterator[Client]:
        """One more client; it can be asked if it has an answer."""

        async def elicited(context: object, params: Any) -> types.ElicitResult:
            assert answer is not None
            return await answer(params)

        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with create_mcp_http_client(headers=headers) as http:
            over: Any = (
                streamable_http_client(self.url, http_client=http)
                if self.kind == "http"
                else _piped(self.server)
            )
            async with Client(
                over,
                mode=self.mode,
                elicitation_callback=None if answer is None else elicited,
                **more,
            ) as client:
                yield client


@asynccontextmanager
async def serving(
    kind: Kind,
    mode: str,
    folder: Path,
    *,
    tokens: Sequence[str] = (),
    check: Check | None = None,
    origins: Sequence[str] = (),
    **options: Any,
) -> AsyncIterator[ServedMcp]:
    """A server whose commands run in a folder."""
    access = HttpAccess(origins=origins) if kind == "http" else None
    if tokens:
        check = check_tokens([NamedToken("default", token) for token in tokens])
    chosen = {"sandbox": "danger-full-access", "ask_for_approval": "never", **options}
    async with McpServer(ServerOptions(cwd=str(folder), **chosen), access) as server:
        url = ""
        if kind == "http":
            url = await server.listen(ListenUrl("http", "127.0.0.1", 0), check)
        yield ServedMcp(kind, mode, server, url)


class Ending:
    """The end of a process that runs, to be waited for."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    async def wait(self) -> None:
        """Return once the process has exited; a zombie has."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(self._fd, over.set)
        try:
            async with asyncio.timeout(20):
                await over.wait()
        finally:
            loop.remove_reader(self._fd)
            os.close(self._fd)


def text(result: types.CallToolResult) -> str:
    """Return the text that a model reads."""
    return "".join(part.text for part in result.content if isinstance(part, types.TextContent))
