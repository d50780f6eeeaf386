"""HTTP calls of one client beside those of another."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from holdfast.server.app import Server
from tests.unit.server.serving import Client


async def test_names_that_are_not_answered_hold_up_only_who_asked(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **more: Any) -> Any:
        if host == "unanswered.test":
            let_go.wait(10)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return look_up("127.0.0.1", *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    def request(client: Client, host: str, number: int) -> int:
        port = web.sockets[0].getsockname()[1]
        params = {"method": "GET", "url": f"http://{host}:{port}/", "headers": []}
        params["requestId"] = str(number)
        client.say(id=1000 + number, method="http/request", params=params)
        return 1000 + number

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as web:
        stuck, other = Client(server), Client(server)
        for client in (stuck, other):
            await client.initialize()
        asked = [request(stuck, "unanswered.test", number) for number in range(100)]
        async with asyncio.timeout(5):
            found = await other.transport.answer(request(other, "answered.test", 1))
        assert isinstance(found, dict)
        assert found["status"] == 204
        let_go.set()
        for number in asked:
            refused = await stuck.transport.answer(number)
            assert isinstance(refused, tuple)
            assert (refused[0], "unanswered.test" in refused[1]) == (-32603, True)
