"""
Sends a server messages that are wrong in every way, and sees that it bears them.

Each message is a request that was right, with something changed: a byte, a type, a length, a
member, the nesting. After each batch the server has to answer a plain question in time. At the
end it must not have grown, nor complained of itself. It runs in a namespace of its own, where
nothing it is told to remove or to kill belongs to anybody.

The long form: `python -m tests.attack.fuzz --count 1000000`.
"""

import argparse
import base64
import copy
import json
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from tests.e2e.wire import LIMIT, children, first_line
from tests.warm import COLD

__all__ = ["TRANSPORTS", "Figures", "fuzz"]

TRANSPORTS = ("websocket", "unix", "stdio")

_PROJECT = Path(__file__).parents[2]

BATCH = 100
"""Messages between two plain questions."""

_PER_CONNECTION = 2_000
"""Messages after which a client goes away and another one comes."""

_QUESTION = json.dumps({"id": "alive", "method": "environment/status"}).encode()
_ANSWER = b'"id":"alive"'
_HELLO = {"id": 0, "method": "initialize", "params": {"clientName": "fuzz"}}

_WARM_UP = 4_000
"""Messages before its memory is looked at for the first time."""


@dataclass
class Figures:
    """The findings of one run."""

    transport: str
    messages: int = 0
    ended_connections: int = 0
    """Connections that the server ended, because of what was sent."""
    growth: float = 0.0
    """MiB that the server has grown by since its first messages."""
    slowest: float = 0.0
    """Seconds that the slowest plain question took, behind its batch."""
    complaints: list[str] = field(default_factory=list)
    """Lines of the server about faults of its own."""


class Gone(Exception):
    """The server ended the connection."""


# -- what is sent


def right_requests(folder: str) -> list[dict[str, Any]]:
    """Requests of every kind that a server knows, all of them right."""
    uri = f"file://{folder}/f"
    start = {
        "processId": "p",
        "argv": ["/bin/echo", "hi"],
        "cwd": f"file://{folder}",
        "env": {"PATH": "/bin"},
        "tty": False,
        "pipeStdin": True,
        "arg0": None,
    }
    data = base64.b64encode(b"some bytes").decode()
    walk = {
        "maxDepth": 3,
        "maxDirectories": 10,
        "maxEntries": 10,
        "followDirectorySymlinks": False,
    }
    calls: list[tuple[str, Any]] = [
        ("environment/info", {}),
        ("environment/status", None),
        (
            "environmentConfig/read",
            {"cwd": f"file://{folder}", "configPaths": [["f"]], "requirementsPaths": []},
        ),
        ("process/start", start),
        ("process/start", start | {"tty": True, "terminalSize": {"rows": 24, "cols": 80}}),
        ("process/start", start | {"limits": {"wallTimeMs": 1000, "outputBytes": 1000}}),
        ("process/read", {"processId": "p", "afterSeq": 0, "maxBytes": 100, "waitMs": 0}),
        ("process/write", {"processId": "p", "chunk": data, "writeId": "w"}),
        ("process/signal", {"processId": "p", "signal": "interrupt"}),
        ("process/resize", {"processId": "p", "rows": 1, "cols": 1}),
        ("process/closeStdin", {"processId": "p"}),
        ("process/hold", {"processId": "p", "held": True}),
        ("process/ack", {"processId": "p", "seq": 1}),
        ("process/list", {}),
        ("process/waitingFor", {"processId": "p"}),
        ("process/endMarked", {"mark": "0123456789abcdef"}),
        ("process/terminate", {"processId": "p", "tree": True, "left": True}),
        ("fs/readFile", {"path": uri, "sandbox": None}),
        ("fs/writeFile", {"path": uri, "dataBase64": data}),
        ("fs/createDirectory", {"path": uri + "d", "recursive": True}),
        ("fs/getMetadata", {"path": uri}),
        ("fs/readDirectory", {"path": f"file://{folder}"}),
        ("fs/remove", {"path": uri, "recursive": False, "force": True}),
        ("fs/copy", {"sourcePath": uri, "destinationPath": uri + "2", "recursive": False}),
        ("fs/rename", {"sourcePath": uri + "2", "destinationPath": uri + "3"}),
        ("fs/canonicalize", {"path": uri}),
        ("fs/walk", {"path": f"file://{folder}", "options": walk}),
        ("fs/open", {"handleId": "1", "path": uri}),
        ("fs/readBlock", {"handleId": "1", "offset": 0, "len": 10}),
        ("fs/writeBlock", {"handleId": "1", "offset": 0, "chunk": data}),
        ("fs/close", {"handleId": "1"}),
        ("fs/watchMissing", {"watchId": 1, "missing": [uri + "x"], "present": uri}),
        ("http/request", {"requestId": "h", "method": "GET", "url": "http://127.0.0.1:1/"}),
        ("capabilityRoots/discoverV1", {"roots": []}),
        ("capabilities/discoverV2", {"cwd": f"file://{folder}"}),
        ("initialize", {"clientName": "again"}),
    ]
    return [
        {"id": number, "method": method} | ({} if params is None else {"params": params})
        for number, (method, params) in enumerate(calls, 1)
    ]


_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    1e308,
    0.5,
    "",
    "\0",
    "\ud800",
    "é" * 50,
    "../" * 20,
    "file:///",
    "A" * 5_000,
    [],
    [[]],
    {},
    {"": {}},
    [None] * 100,
]


class Mutator:
    """Makes wrong messages, the same ones for the same seed."""

    def __init__(self, seed: int, folder: str) -> None:
        self._random = random.Random(seed)
        self._requests = right_requests(folder)
        self._plain = [json.dumps(request).encode() for request in self._requests]

    def message(self, *, ends: bool) -> bytes:
        """Return the next one; with `ends`, now and then one that ends the connection."""
        while True:
            message = self._message().replace(b"\n", b" ")  # which would end a line
            if not _is_ending(message) or (ends and self._random.randrange(100) == 0):
                return message

    def _message(self) -> bytes:
        chance = self._random
        kind = chance.randrange(10)
        if kind < 3:
            return self._bytes_changed(chance.choice(self._plain))
        if kind < 8:
            return self._members_changed(json.loads(chance.choice(self._plain)))
        if kind == 8:
            depth = chance.choice((10, 200, 5_000))
            return (
                b'{"id":1,"method":"process/start","params":' + b"[" * depth + b"]" * depth + b"}"
            )
        return chance.choice(self._plain)

    def _bytes_changed(self, message: bytes) -> bytes:
        chance, text = self._random, bytearray(message)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text))
            how = chance.randrange(4)
            if how == 0:
                text[at] = chance.randrange(256)
            elif how == 1:
                del text[at : at + chance.randint(1, 8)]
            elif how == 2:
                text[at:at] = text[at : at + chance.randint(1, 40)]
            else:
                text[at:at] = bytes([chance.choice(b'{}[]",:\\0-e\x00\x7f\x80\xff')])
            if not text:
                return b" "
        return bytes(text)

    def _members_changed(self, message: dict[str, Any]) -> bytes:
        chance = self._random
        for _ in range(chance.randint(1, 3)):
            positions = list(_positions(message))
            where, key = chance.choice(positions)
            how = chance.randrange(4)
            if how == 0 and isinstance(where, dict):
                where.pop(key)
            elif how == 1 and isinstance(where, dict):
                where[f"{key}2"] = copy.deepcopy(where[key])
            else:
                where[key] = copy.deepcopy(chance.choice(_VALUES))
            if not message:
                break
        return json.dumps(message).encode("utf-8", "surrogatepass")


def _is_ending(message: bytes) -> bool:
    """Return True for what ends a connection: what is no text, and notes nobody knows."""
    try:
        read = json.loads(message.decode())
    except UnicodeDecodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return isinstance(read, dict) and "method" in read and "id" not in read


def _positions(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return all that can be changed in a message: what holds it, and where."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in list(items):
        yield value, key
        if isinstance(part, dict | list):
            yield from _positions(part)


# -- a connection that is only bytes


class Line(Protocol):
    """A connection to the server."""

    def send(self, messages: list[bytes]) -> None:
        """Send messages in one go."""

    def wait_for(self, answer: bytes) -> None:
        """Read until a message with these bytes has come."""

    def close(self) -> None:
        """Go away."""


class _WebSocket:
    """A WebSocket by hand."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._socket = socket.create_connection((parts.hostname, parts.port), LIMIT)
        self._socket.settimeout(4 * LIMIT)
        self._read = b""
        self._socket.sendall(
            b"GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        self.wait_for(b"\r\n\r\n")

    def send(self, messages: list[bytes]) -> None:
        try:
            self._socket.sendall(b"".join(map(_frame, messages)))
        except OSError as error:
            raise Gone from error

    def wait_for(self, answer: bytes) -> None:
        try:
            while answer not in self._read:
                # Enough to find an answer that comes in two parts.
                self._read = self._read[-len(answer) :]
                data = self._socket.recv(1 << 16)
                if not data:
                    raise Gone
                self._read += data
        except TimeoutError:
            raise
        except OSError as error:
            raise Gone from error
        self._read = self._read.partition(answer)[2]

    def close(self) -> None:
        self._socket.close()


def _frame(payload: bytes) -> bytes:
    """Return a text frame; its mask is zero, so the payload is seen as it is."""
    size = len(payload)
    if size < 126:
        head = bytes([0x81, 0x80 | size])
    elif size < 1 << 16:
        head = b"\x81\xfe" + size.to_bytes(2, "big")
    else:
        head = b"\x81\xff" + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload


class _Lines:
    """A message in each line, over two descriptors."""

    def __init__(self, reads: int, writes: int) -> None:
        self._in, self._out = writes, reads
        os.set_blocking(writes, False)
        os.set_blocking(reads, False)
        self._read = b""

    def send(self, messages: list[bytes]) -> None:
        data = memoryview(b"".join(message + b"\n" for message in messages))
        while data:
            try:
                data = data[os.write(self._in, data) :]
            except BlockingIOError:
                # The server may want to be read before it reads on.
                self._wait([self._in])
            except OSError as error:
                raise Gone from error

    def wait_for(self, answer: bytes) -> None:
        while answer not in self._read:
            self._read = self._read[-len(answer) :]
            self._wait([])
        self._read = self._read.partition(answer)[2]

    def _wait(self, writes: list[int]) -> None:
        readable, writable, _ = select.select([self._out], writes, [], 4 * LIMIT)
        if not (readable or writable):
            raise TimeoutError
        if readable:
            try:
                data = os.read(self._out, 1 << 16)
            except OSError as error:
                raise Gone from error
            if not data:
                raise Gone
            self._read += data

    def close(self) -> None:
        """Leave it open: a server on its standard streams ends with it."""


class _UnixLines(_Lines):
    """The same, over a unix socket."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        super().__init__(self._socket.fileno(), self._socket.fileno())

    def close(self) -> None:
        self._socket.close()


# -- a server that can do no harm


class _Server:
    """A server in namespaces of its own, with all files read-only but an empty `/tmp`."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, errors: Path) -> None:
        self.process = process
        self.url = url
        self.errors = errors

    def memory(self) -> float:
        """Return the MiB that all of its processes hold, without what a fork shares."""
        return sum(_memory(pid) for pid in _tree(self.process.pid)) / (1 << 20)

    def connect(self) -> Line:
        if self.url.startswith("unix"):
            return _UnixLines(urlsplit(self.url).path)
        if self.url != "stdio":
            return _WebSocket(self.url)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return _Lines(self.process.stdout.fileno(), self.process.stdin.fileno())


@contextmanager
def _server(transport: str, folder: Path) -> Iterator[_Server]:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise FileNotFoundError("bwrap: please install bubblewrap")
    # Beside the folder: a request may remove all that the server can write to.
    errors = folder.with_name(f"{folder.name}.stderr")
    where = {"websocket": "ws://127.0.0.1:0", "unix": f"unix://{folder}/s", "stdio": "stdio"}
    command = [bwrap, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for path in (str(_PROJECT), sys.prefix):  # either may be below /tmp
        command += ["--ro-bind", path, path]
    command += ["--bind", str(folder), str(folder), "--unshare-pid", "--unshare-ipc"]
    command += ["--die-with-parent", "--", *COLD, "exec-server", "--listen", where[transport]]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=folder
        )
    try:
        url = "stdio" if transport == "stdio" else first_line(process)
        yield _Server(process, url, errors)
    finally:
        process.kill()
        process.communicate()
        errors.unlink()


def _tree(pid: int) -> list[int]:
    found = [pid]
    with suppress(FileNotFoundError):
        for child in children(pid):
            found += _tree(child)
    return found


def _memory(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) << 10
    return 0


# -- the run


def fuzz(transport: str, *, messages: int, seed: int, growth: float = 32.0) -> Figures:
    """
    Send so many wrong messages to a server over one transport; it may grow by so many MiB.

    Raises:
        AssertionError: It hangs, has ended, has grown, or complains of itself.
    """
    figures = Figures(transport)
    with tempfile.TemporaryDirectory() as name, _server(transport, Path(name)) as server:
        mutator = Mutator(seed, name)
        line = _shaken_hands(server)
        since, before = 0, 0.0
        while figures.messages < messages:
            size = min(BATCH, messages - figures.messages)
            batch = [mutator.message(ends=transport != "stdio") for _ in range(size)]
            figures.messages += len(batch)
            since += len(batch)
            try:
                asked = time.monotonic()
                line.send([*batch, _QUESTION])
                line.wait_for(_ANSWER)
                figures.slowest = max(figures.slowest, time.monotonic() - asked)
            except Gone:
                assert transport != "stdio", f"it ended: {server.errors.read_text()}"
                figures.ended_connections += 1
                since = _PER_CONNECTION
            if since >= _PER_CONNECTION and transport != "stdio":
                line.close()
                line = _shaken_hands(server)
                since = 0
            if not before and figures.messages >= min(_WARM_UP, messages // 2):
                before = server.memory()
        figures.growth = server.memory() - before
        assert server.process.poll() is None
        line.close()
        text = server.errors.read_text(errors="replace")
    figures.complaints = [one for one in text.splitlines() if "Traceback" in one or "ERROR" in one]
    assert figures.growth < growth, f"{figures}"
    assert not figures.complaints, f"{figures}\n{text[-10_000:]}"
    return figures


def _shaken_hands(server: _Server) -> Line:
    line = server.connect()
    line.send([json.dumps(_HELLO).encode()])
    line.wait_for(b'"sessionId"')
    line.send([b'{"method":"initialized"}'])
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description="Send wrong messages to servers.")
    parser.add_argument(
        "--count", "--messages", type=int, default=100_000, help="messages over all transports"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for number, transport in enumerate(TRANSPORTS):
        share = options.count // len(TRANSPORTS) + (number < options.count % len(TRANSPORTS))
        began = time.monotonic()
        figures = fuzz(transport, messages=share, seed=options.seed + number)
        sys.stdout.write(f"{figures} in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
