"""Holdfast: `exec_command` through an MCP server in this process, over two pipes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

from bench.subjects.tool_harness import main
from holdfast.front.mcp.mcp_options import ServerOptions
from holdfast.front.mcp.mcp_server import McpServer
from holdfast.wire.transports.stdio import connect_pipes
from holdfast.wire.transports.transport import Receiver, Transport

_HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


class _Client:
    """A minimal client."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    async def request(self, method: str, params: object) -> bytes:
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._transport.send(json.dumps(message).encode())
        return await answer

    def received(self, message: bytes) -> None:
        parsed = json.loads(message)
        if "result" in parsed:
            self._waiting.pop(parsed["id"]).set_result(message)

    def lost(self, reason: str) -> None:
        pass

    def pause_sending(self) -> None:
        pass

    def resume_sending(self) -> None:
        pass


class _Tools:
    def __init__(self, client: _Client) -> None:
        self._client = client

    async def exec_command(self, arguments: str) -> str:
        params = {"name": "exec_command", "arguments": json.loads(arguments)}
        answer = json.loads(await self._client.request("tools/call", params))
        text: str = answer["result"]["content"][0]["text"]
        return text

    def run(self) -> Callable[[], Awaitable[object]] | None:
        return None


@asynccontextmanager
async def _subject(url: str | None, listens: bool) -> AsyncIterator[_Tools]:
    options = ServerOptions(sandbox="danger-full-access", ask_for_approval="never")
    clients: list[_Client] = []

    def receive(transport: Transport) -> Receiver:
        clients.append(_Client(transport))
        return clients[-1]

    async with McpServer(options) as server:
        to_server, from_client = os.pipe()
        to_client, from_server = os.pipe()
        there = await connect_pipes(to_server, from_server, server.accept)
        here = await connect_pipes(to_client, from_client, receive)
        (client,) = clients
        await client.request("initialize", _HELLO)
        await client.request("tools/list", {})
        yield _Tools(client)
        here.abort()
        there.abort()


if __name__ == "__main__":
    main(_subject)
