"""
A server process, and a client of the wire that shares no code with Holdfast.

The client speaks plain JSON through the `websockets` package, so that a fault of our own client
and the same fault of our server cannot hide each other. Nothing here knows how the server is made,
except that the process one starts guards another one that serves.
"""

import asyncio
import base64
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import ConnectionClosed

from tests.warm import HOLDFAST as WARM
from tests.warm import pid_behind

LIMIT = 5.0 * float(os.environ.get("HOLDFAST_TEST_PATIENCE", "1"))
"""Seconds any single wait may take; more on a machine that is only emulated."""

PATH = "/usr/local/bin:/usr/bin:/bin"
"""`PATH` of the servers and their children."""

HOLDFAST = WARM
"""The command line; `tests.warm` tells how it is started."""

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
"""The headers of a proper request to become a WebSocket."""


class Ended(Exception):
    """The server ended the connection."""


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


# -- a server in a process of its own


ROOT_WARNING = "Warning: this server runs as root"


class ServerProcess:
    """A running server; `pid` is the guardian's, `serving_pid` the server's own."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, errors: Path) -> None:
        self.process = process
        self.pid = pid_behind(process.pid)
        self.url = url
        self._errors = errors
        (self.serving_pid,) = children(process.pid)

    @property
    def errors(self) -> str:
        """Text that it has written to stderr, except that root should not start it."""
        lines = self._errors.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(ROOT_WARNING))

    @property
    def warns_of_root(self) -> bool:
        """True if it has written that it runs as root."""
        return ROOT_WARNING in self._errors.read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(2 * LIMIT)


@contextmanager
def serving(
    *options: str, command: Iterable[str] = (*HOLDFAST, "exec-server"), **popen: Any
) -> Iterator[ServerProcess]:
    """Start a server, wait for its URL, and end it, however the test goes."""
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder, "stderr")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, *options],
                **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **popen},
                stderr=stderr,
            )
        try:
            url = first_line(process)
            assert url, f"no URL, but: {errors.read_text()}"
            yield ServerProcess(process, url, errors)
        finally:
            _end(process)


def first_line(process: subprocess.Popen[bytes]) -> str:
    """The first line a process prints, without its end."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 2 * LIMIT)[0], "nothing was printed"
    return process.stdout.readline().decode().removesuffix("\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(2 * LIMIT)
    except subprocess.TimeoutExpired:
        for pid in children(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait(LIMIT)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def children(pid: int) -> list[int]:
    """The children of a process, of all its threads; of a launcher, those of what it stands for."""
    found: list[int] = []
    for task in Path(f"/proc/{pid_behind(pid)}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def is_alive(pid: int) -> bool:
    """Return True if a process runs; a zombie does not."""
    try:
        return _state(pid) not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _state(pid: int) -> str:
    """Return the letter that the kernel has for the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


async def stopped(pid: int, *, limit: float = LIMIT) -> None:
    """Wait until a signal has stopped a process; the kernel takes a moment for it."""
    async with asyncio.timeout(limit):
        while _state(pid) != "T":  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)


async def gone(pid: int, *, limit: float = LIMIT) -> None:
    """Wait until a process has ended; fails if it does not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        async with asyncio.timeout(limit):
            await readable(descriptor)
    finally:
        os.close(descriptor)


async def readable(descriptor: int) -> None:
    """Wait until there is something to read."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class Fifo:
    """A way to hold up a script, or to hear from it, that is no part of the protocol."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Open for both: neither side then waits for the other to come, nor sees it go.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def write(self, text: str = "\n") -> None:
        """Let a script go on that waits in `read`."""
        os.write(self._descriptor, text.encode())

    def has_something(self) -> bool:
        """Return True if a script has written output that was not read yet."""
        return bool(select.select([self._descriptor], [], [], 0)[0])

    async def line(self) -> str:
        """The next line a script writes."""
        text = b""
        async with asyncio.timeout(LIMIT):
            while not text.endswith(b"\n"):
                await readable(self._descriptor)
                text += os.read(self._descriptor, 1)
        return text.decode().removesuffix("\n")


# -- plain HTTP


@dataclass(frozen=True)
class Answer:
    """A response to a plain HTTP request."""

    status: int
    body: str
    headers: Mapping[str, str]


async def http(
    url: str,
    target: str = "/",
    *,
    method: str = "GET",
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    body: bytes = b"",
) -> Answer:
    """One request on a connection of its own, byte for byte as given."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    lines = [f"{method} {target} HTTP/1.1", "Host: test", *(f"{n}: {v}" for n, v in pairs)]
    parts = urlsplit(url)
    async with asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            found = {n.lower(): v.strip() for n, _, v in (r.partition(":") for r in rest if r)}
            length = 0 if method == "HEAD" else int(found.get("content-length", "0"))
            return Answer(int(first.split()[1]), (await reader.readexactly(length)).decode(), found)
        finally:
            writer.close()


# -- frames by hand


class Frames:
    """A WebSocket connection on which frames are made by hand, whole or broken."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes as they are, in one piece as far as the kernel allows."""
        self._writer.write(data)
        async with asyncio.timeout(LIMIT):
            await self._writer.drain()

    async def receive(self) -> tuple[int, bytes]:
        """
        The next frame: its kind and its payload.

        Raises:
            Ended: There is none any more.
        """
        try:
            async with asyncio.timeout(LIMIT):
                head = await self._reader.readexactly(2)
                size = head[1]
                if size >= 126:
                    size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8))
                return head[0] & 0xF, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Ended from error

    def abort(self) -> None:
        """Go away at once, with a reset instead of an end."""
        self._writer.transport.abort()


@asynccontextmanager
async def frames(url: str) -> AsyncIterator[Frames]:
    """Connect and become a WebSocket; nothing is said on it yet."""
    parts = urlsplit(url)
    async with asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
        lines = ["GET / HTTP/1.1", "Host: test", *(f"{n}: {v}" for n, v in UPGRADE.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    connection = Frames(reader, writer)
    try:
        yield connection
    finally:
        connection.abort()


TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0


def frame(payload: bytes | str | object, *, kind: int = TEXT, final: bool = True) -> bytes:
    """One frame of a client, masked with zeros; what is neither text nor bytes becomes JSON."""
    if not isinstance(payload, bytes):
        payload = (payload if isinstance(payload, str) else json.dumps(payload)).encode()
    size = len(payload)
    if size < 126:
        length = bytes((0x80 | size,))
    elif size < 1 << 16:
        length = b"\xfe" + size.to_bytes(2)
    else:
        length = b"\xff" + size.to_bytes(8)
    return bytes(((0x80 if final else 0) | kind,)) + length + bytes(4) + payload


INITIALIZE = frame({"id": 0, "method": "initialize", "params": {"clientName": "frames"}})
INITIALIZED = frame({"method": "initialized"})


# -- a client


@dataclass(frozen=True)
class Event:
    """A notification about a process."""

    kind: str
    """`output`, `exited` or `closed`."""
    params: Mapping[str, Any]

    @property
    def process_id(self) -> str:
        return str(self.params["processId"])

    @property
    def seq(self) -> int:
        return int(self.params["seq"])

    @property
    def data(self) -> bytes:
        return from_base64(self.params.get("chunk", ""))


@dataclass(frozen=True)
class Run:
    """All that came of a process."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    pty: bytes = b""


class Client:
    """
    One connection, read only while a method of it waits for something.

    Events of processes are kept apart from other messages, so a test may look at
    either first. What a method waits for has to come within `LIMIT`.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self.socket = connection
        self.session_id = ""
        self._last_id = 0
        self._replies: deque[dict[str, Any]] = deque()
        self._events: dict[str, list[Event]] = {}
        # The output of each process in the order in which it came.
        self._output: dict[str, bytearray] = {}
        # Unique also among the connections of one session, whose processes remember them.
        self._write_ids = (f"{id(self):x}-{number}" for number in count(1))

    # messages

    async def send(self, message: object) -> None:
        await self.send_raw(json.dumps(message))

    async def send_raw(
        self, data: str | bytes | list[str] | list[bytes], *, text: bool | None = None
    ) -> None:
        try:
            async with asyncio.timeout(2 * LIMIT):
                await self.socket.send(data, text=text)
        except ConnectionClosed as error:
            raise Ended from error

    async def receive(self) -> dict[str, Any]:
        """The next message as it comes, of whatever kind."""
        try:
            async with asyncio.timeout(2 * LIMIT):
                message = json.loads(await self.socket.recv())
        except ConnectionClosed as error:
            raise Ended from error
        assert isinstance(message, dict)
        return message

    async def ended(self) -> bool:
        """Return True if the server ends the connection without another message."""
        try:
            await self.receive()
        except Ended:
            return True
        return False

    async def request(
        self, method: str, params: object = None, *, request_id: str | int | None = None
    ) -> str | int:
        """Ask without waiting for the answer."""
        if request_id is None:
            self._last_id += 1
            request_id = self._last_id
        await self.send({"id": request_id, "method": method, "params": params})
        return request_id

    async def notify(self, method: str, params: object = None) -> None:
        await self.send({"method": method, "params": params})

    async def reply(self, request_id: str | int) -> dict[str, Any]:
        """The answer to a request, result or error."""
        while True:
            for message in self._replies:
                if message["id"] == request_id:
                    self._replies.remove(message)
                    return message
            await self._pull()

    def unread_replies(self) -> list[dict[str, Any]]:
        """Answers that came while something else was waited for."""
        return list(self._replies)

    async def call(self, method: str, params: object = None) -> Any:
        """
        Ask and wait for the result.

        Raises:
            Refused: It is an error.
        """
        reply = await self.reply(await self.request(method, params))
        if "error" in reply:
            raise Refused(reply["error"]["code"], reply["error"]["message"])
        return reply["result"]

    async def refusal(self, method: str, params: object = None) -> tuple[int, str]:
        """Ask for what has to be refused: the code and the text."""
        try:
            result = await self.call(method, params)
        except Refused as error:
            return error.code, error.message
        raise AssertionError(f"{method} was not refused: {result}")

    async def initialize(self, *, resume: str | None = None) -> dict[str, Any]:
        """The whole handshake."""
        params = {"clientName": "test", "resumeSessionId": resume}
        result: dict[str, Any] = await self.call("initialize", params)
        self.session_id = result["sessionId"]
        await self.notify("initialized", {})
        return result

    async def vanish(self) -> None:
        """End the connection without a word, as a machine does that loses its network."""
        self.socket.transport.abort()
        await self.socket.wait_closed()

    # processes

    async def start(self, process_id: str, argv: list[str], **params: object) -> dict[str, Any]:
        result: dict[str, Any] = await self.call(
            "process/start", start_params(process_id, argv, **params)
        )
        return result

    async def shell(self, process_id: str, script: str, **params: object) -> None:
        await self.start(process_id, ["/bin/sh", "-c", script], **params)

    async def run(self, argv: list[str], **params: object) -> Run:
        """Start a process and wait for its end."""
        process_id = f"run-{len(self._events)}"
        await self.start(process_id, argv, **params)
        return await self.finish(process_id)

    async def run_shell(self, script: str, **params: object) -> Run:
        return await self.run(["/bin/sh", "-c", script], **params)

    async def events(self, process_id: str, *, first: int = 1) -> list[Event]:
        """Every event up to `closed`, checked for what holds of all of them, in order of `seq`."""
        while not self._closed(process_id):
            await self._pull()
        events = sorted(self._events[process_id], key=lambda event: event.seq)
        assert [event.seq for event in events] == list(range(first, first + len(events)))
        assert [event.kind for event in events].count("exited") <= 1
        assert events[-1].kind == "closed"
        return events

    async def finish(self, process_id: str) -> Run:
        """Wait for the end of a process that was watched from its start."""
        return run_of(await self.events(process_id))

    async def output(self, process_id: str, until: bytes) -> bytes:
        """Wait until the output so far holds a text, and return all of it."""
        while until not in (data := self._output.get(process_id, bytearray())):
            assert not self._closed(process_id), f"{until!r} did not come in {bytes(data)!r}"
            await self._pull()
        return bytes(data)

    async def exited(self, process_id: str) -> int:
        """Wait for the exit, which may come before the last output."""
        while True:
            for event in self._events.get(process_id, []):
                if event.kind == "exited":
                    return int(event.params["exitCode"])
            await self._pull()

    def seen(self, process_id: str) -> list[Event]:
        """The events that have been read so far."""
        return list(self._events.get(process_id, []))

    async def write(self, process_id: str, data: bytes, write_id: str | None = None) -> str:
        """Write to a process and return the status."""
        params = self.write_params(process_id, data, write_id)
        return str((await self.call("process/write", params))["status"])

    def write_params(
        self, process_id: str, data: bytes, write_id: str | None = None
    ) -> dict[str, str]:
        return {
            "processId": process_id,
            "chunk": to_base64(data),
            "writeId": next(self._write_ids) if write_id is None else write_id,
        }

    async def read(self, process_id: str, **options: object) -> dict[str, Any]:
        result: dict[str, Any] = await self.call(
            "process/read", {"processId": process_id, **options}
        )
        return result

    async def terminate(self, process_id: str) -> bool:
        return bool((await self.call("process/terminate", {"processId": process_id}))["running"])

    async def is_ready(self) -> bool:
        """Return True if it still answers."""
        return bool(await self.call("environment/status") == {"status": "ready"})

    # inside

    async def _pull(self) -> None:
        message = await self.receive()
        method = message.get("method", "")
        if method.startswith("process/"):
            event = Event(method.removeprefix("process/"), message["params"])
            self._events.setdefault(event.process_id, []).append(event)
            self._output.setdefault(event.process_id, bytearray()).extend(event.data)
        else:
            self._replies.append(message)

    def _closed(self, process_id: str) -> bool:
        # It is the last one to come, or close to it.
        return any(event.kind == "closed" for event in self._events.get(process_id, [])[-3:])


@asynccontextmanager
async def connect(
    url: str,
    *,
    initialize: bool = True,
    resume: str | None = None,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    """Connect and, unless told otherwise, go through the handshake."""
    settings = {
        "additional_headers": headers,
        "compression": None,
        "max_size": None,
        "ping_interval": None,
        "open_timeout": LIMIT,
        "close_timeout": LIMIT,
        "proxy": None,
        **options,
    }
    client = Client(await connect_socket(url, **settings))
    try:
        if initialize:
            await client.initialize(resume=resume)
        yield client
    finally:
        await client.vanish()


@asynccontextmanager
async def connect_slowly(url: str) -> AsyncIterator[Client]:
    """Connect as one for whom the kernel keeps little: what is not read is soon not sent."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as small:
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        small.setblocking(False)
        await asyncio.get_running_loop().sock_connect(small, (parts.hostname, parts.port))
        async with connect(url, sock=small) as client:
            yield client


@asynccontextmanager
async def resume(url: str, session_id: str) -> AsyncIterator[Client]:
    """Attach to a session as soon as the server has seen the end of its last connection."""
    async with connect(url, initialize=False) as client:
        async with asyncio.timeout(LIMIT):
            while not client.session_id:
                try:
                    await client.initialize(resume=session_id)
                except Refused as error:
                    if error.code != -32010:
                        raise
        yield client


def start_params(process_id: str, argv: list[str], **params: object) -> dict[str, object]:
    """The params of `process/start`, with what most tests want unless told otherwise."""
    plain: dict[str, object] = {
        "processId": process_id,
        "argv": argv,
        "cwd": "file:///",
        "env": {"PATH": PATH},
        "tty": False,
    }
    return {**plain, **params}


def run_of(events: list[Event]) -> Run:
    """The result of a process, from all of its events."""
    streams: dict[str, bytes] = {}
    for event in events:
        if event.kind == "output":
            stream = event.params["stream"]
            streams[stream] = streams.get(stream, b"") + event.data
    (code,) = [event.params["exitCode"] for event in events if event.kind == "exited"]
    return Run(code, **streams)


def joined(read: Mapping[str, Any]) -> bytes:
    """The bytes of a `process/read` reply."""
    return b"".join(from_base64(chunk["chunk"]) for chunk in read["chunks"])


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def file_uri(path: Path | str) -> str:
    return f"file://{quote(str(path))}"
