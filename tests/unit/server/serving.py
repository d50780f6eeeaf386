"""A server in this process, and clients of it that are played by hand."""

import asyncio
import base64
import json
from typing import Any

from holdfast.server.app import Server
from holdfast.wire.transports.transport import Receiver
from tests.unit.fakes import LIMIT, FakeTransport

PATH = "/usr/bin:/bin"


class Client:
    """One connection to a server, whose transport goes nowhere."""

    def __init__(self, server: Server, transport: FakeTransport | None = None) -> None:
        self.transport = transport or FakeTransport()
        self.connection: Receiver = server.accept(self.transport)
        self._next_id = 0

    # What a client says.

    def say(self, **message: Any) -> None:
        self.connection.received(json.dumps(message).encode())

    def ask(self, method: str, **params: Any) -> int:
        """Send a request; its id."""
        self._next_id += 1
        self.say(id=self._next_id, method=method, params=params or None)
        return self._next_id

    async def call(self, method: str, **params: Any) -> Any:
        """Ask and wait: the result, or the code and the text of an error."""
        return await self.transport.answer(self.ask(method, **params))

    def hang_up(self) -> None:
        self.connection.lost("gone")

    # What a client does first.

    async def initialize(self, **params: Any) -> str:
        """Open a session and use it; its id."""
        reply = await self.call("initialize", clientName="test", **params)
        self.say(method="initialized")
        session_id: str = reply["sessionId"]
        return session_id

    async def start(self, *argv: str, process_id: str = "p", **more: Any) -> Any:
        params: dict[str, Any] = {
            "processId": process_id,
            "argv": list(argv),
            "cwd": "file:///",
            "env": {"PATH": PATH},
            "tty": False,
        }
        return await self.call("process/start", **(params | more))

    async def write(self, text: bytes, write_id: str, process_id: str = "p") -> Any:
        chunk = base64.b64encode(text).decode()
        return await self.call("process/write", processId=process_id, chunk=chunk, writeId=write_id)

    # What a client hears.

    def notifications(self, method: str) -> list[dict[str, Any]]:
        """The params of all notifications of that name so far."""
        return [m["params"] for m in self.transport.messages if m.get("method") == method]

    def output(self, process_id: str = "p") -> bytes:
        return b"".join(
            base64.b64decode(event["chunk"])
            for event in self.notifications("process/output")
            if event["processId"] == process_id
        )

    async def hears(self, method: str, count: int = 1) -> dict[str, Any]:
        """Wait for a notification; the params of the last one."""
        await self.transport.until(lambda: len(self.notifications(method)) >= count)
        return self.notifications(method)[-1]

    async def sees(self, text: bytes, process_id: str = "p") -> None:
        """Wait for output."""
        await self.transport.until(lambda: text in self.output(process_id))

    async def settled(self) -> None:
        """Let everything that can happen at once happen."""
        async with asyncio.timeout(LIMIT):
            for _ in range(10):
                await asyncio.sleep(0)
