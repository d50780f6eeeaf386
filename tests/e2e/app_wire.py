"""A client of the app-server that shares no code with Holdfast, over any kind of connection."""

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.asyncio.client import connect as connect_socket

from tests.e2e.wire import HOLDFAST, LIMIT, UPGRADE, ServerProcess, serving

APP_SERVER = (*HOLDFAST, "app-server")
TOKEN = "the-token-of-all-app-servers"
APP_UPGRADE = {**UPGRADE, "Authorization": f"Bearer {TOKEN}"}
"""The headers of a proper request to become a WebSocket of such a server."""
FULL = {"type": "dangerFullAccess"}
HELLO: dict[str, Any] = {
    "id": 0,
    "method": "initialize",
    "params": {
        "clientInfo": {"name": "test", "version": "1"},
        "capabilities": {"experimentalApi": True},
    },
}


@contextmanager
def app_serving(*options: str, **popen: Any) -> Iterator[ServerProcess]:
    """Start an app-server on a free port of loopback, with the token of all tests."""
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    auth = ("--ws-auth", "capability-token", "--ws-token-sha256", digest)
    listen = () if "--listen" in options else ("--listen", "ws://127.0.0.1:0", *auth)
    with serving(*listen, *options, command=APP_SERVER, **popen) as server:
        yield server


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


class AppClient:
    """
    One connection, read only while a method of it waits for something.

    What a method waits for has to come within `LIMIT`. All messages are kept in `log`.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self.socket = connection
        self.log: list[dict[str, Any]] = []
        self._last_id = 0

    async def send(self, message: object) -> None:
        await self.send_raw(json.dumps(message))

    async def send_raw(self, text: str | bytes) -> None:
        async with asyncio.timeout(2 * LIMIT):
            await self.socket.send(text, text=True)

    async def receive(self) -> dict[str, Any]:
        """Return the next message."""
        async with asyncio.timeout(2 * LIMIT):
            message = json.loads(await self.socket.recv())
        assert isinstance(message, dict)
        self.log.append(message)
        return message

    async def request(self, method: str, **params: Any) -> int:
        """Ask without waiting for the answer; returns the id of the request."""
        self._last_id += 1
        await self.send({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    async def answer(self, request_id: int | str) -> Any:
        """Return the result of a request, or the code and the text of its error."""
        while True:
            for message in self.log:
                if message.get("id") == request_id and "method" not in message:
                    error = message.get("error")
                    if error is None:
                        return message["result"]
                    return error["code"], error["message"]
            await self.receive()

    async def call(self, method: str, **params: Any) -> Any:
        return await self.answer(await self.request(method, **params))

    async def exec(self, *argv: str, **params: Any) -> int:
        """Ask for a command without a sandbox, and do not wait for its end."""
        return await self.request(
            "command/exec", command=list(argv), **{"sandboxPolicy": FULL, **params}
        )

    async def run(self, *argv: str, **params: Any) -> Any:
        return await self.answer(await self.exec(*argv, **params))

    async def write(self, process_id: str, data: bytes = b"", *, close: bool = False) -> Any:
        return await self.call(
            "command/exec/write",
            processId=process_id,
            deltaBase64=base64.b64encode(data).decode(),
            closeStdin=close,
        )

    def notes(self, method: str) -> list[dict[str, Any]]:
        """Return the params of the notifications of one kind that have come so far."""
        return [message["params"] for message in self.log if message.get("method") == method]

    def output(self, process_id: str, stream: str = "stdout") -> bytes:
        """Return what has come so far of a stream of `command/exec`."""
        return b"".join(
            base64.b64decode(note["deltaBase64"])
            for note in self.notes("command/exec/outputDelta")
            if note["processId"] == process_id and note["stream"] == stream
        )

    async def until_output(self, process_id: str, text: bytes) -> None:
        """Read until the output of a command holds `text`."""
        while text not in self.output(process_id):
            await self.receive()

    async def until_note(self, method: str) -> dict[str, Any]:
        """Return the first notification of a kind."""
        while not self.notes(method):
            await self.receive()
        return self.notes(method)[0]


@asynccontextmanager
async def app_connect(
    url: str, *, hello: dict[str, Any] | None = HELLO, token: str | None = TOKEN
) -> AsyncIterator[AppClient]:
    """Connect over TCP or a unix socket, and initialize unless `hello` is None."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if url.startswith("unix://"):
        connecting = unix_connect(url.removeprefix("unix://"), max_size=None)
    else:
        connecting = connect_socket(
            url, additional_headers=headers, max_size=None, compression=None, proxy=None
        )
    async with connecting as connection:
        client = AppClient(connection)
        if hello is not None:
            await client.send(hello)
            await client.answer(0)
        yield client


async def blocked_in_write(pid: int) -> None:
    """Wait until a process sleeps because nobody reads its pipe."""
    async with asyncio.timeout(LIMIT):
        while "pipe_write" not in _wait_channel(pid):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)


def _wait_channel(pid: int) -> str:
    with open(f"/proc/{pid}/wchan") as file:
        return file.read()


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
