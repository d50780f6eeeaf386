"""
Bad input of clients: the server goes on, in silence, and nobody else notices.

The examples are random but always the same: each is made from its seed.
"""

import asyncio
import json
import random
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.wire import (
    BINARY,
    CONTINUATION,
    HOLDFAST,
    INITIALIZE,
    INITIALIZED,
    LIMIT,
    TEXT,
    Client,
    Ended,
    Run,
    ServerProcess,
    connect,
    frame,
    frames,
    http,
    is_alive,
    serving,
    start_params,
)

pytestmark = pytest.mark.slow

SEEDS = range(3)
BATCH = 60
"""Messages between two looks at whether the server still answers."""

METHODS = (
    "initialize",
    "initialized",
    "environment/info",
    "environment/status",
    "environmentConfig/read",
    "process/start",
    "process/read",
    "process/write",
    "process/signal",
    "process/terminate",
    "process/resize",
    "process/closeStdin",
    "process/list",
    "fs/readFile",
    "nope",
    "",
)

MEMBERS = (
    "processId",
    "argv",
    "cwd",
    "env",
    "tty",
    "pipeStdin",
    "arg0",
    "envPolicy",
    "metadata",
    "sandbox",
    "enforceManagedNetwork",
    "managedNetwork",
    "networkProxy",
    "shellSnapshot",
    "terminalSize",
    "afterSeq",
    "maxBytes",
    "waitMs",
    "chunk",
    "writeId",
    "signal",
    "rows",
    "cols",
    "clientName",
    "resumeSessionId",
    "configPaths",
    "requirementsPaths",
)

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    24,
    65_536,
    2**31,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    10**400,
    1.5,
    -0.0,
    1e308,
    "",
    "p",
    "q",
    "x" * 5000,
    "\0",
    "é\U0001f600\u2028",
    "file:///",
    "file:///nope/nope",
    "file:///dev/null",
    "file:///%ff%fe",
    "file://host/",
    "http://x",
    "AAAA",
    "AA=",
    "interrupt",
    "SIGCONT",
    "SIGKILL",
    "SIGSTOP",
    [],
    [[]],
    [["a"]],
    [None],
    ["true"],
    ["/bin/true", "x"],
    ["/bin/cat"],
    ["./nope"],
    ["nope"],
    ["\0"],
    [""],
    ["/bin/echo", "x" * 200_000],
    {},
    {"PATH": "/usr/bin:/bin"},
    {"A": "\0"},
    {"": ""},
    {"rows": 5, "cols": 5},
    {"rows": 0},
    {"permissions": {"type": "disabled"}},
    {"permissions": {"type": "readOnly"}},
    {"threadId": "x"},
    {"toolCallId": ""},
    {"scopeId": "", "shell": {"name": "bash", "path": "/bin/bash"}},
    {"inherit": "all", "ignoreDefaultExcludes": 1, "exclude": [], "set": {}, "includeOnly": []},
    {
        "inherit": "core",
        "ignoreDefaultExcludes": True,
        "exclude": ["[", "*"],
        "set": {"=": "="},
        "includeOnly": ["(?"],
    },
)


@pytest.fixture(scope="module")
def target() -> Iterator[ServerProcess]:
    """A server to ill-treat. It is the same one, and has said nothing, at the end."""
    with serving() as server:
        yield server
        assert is_alive(server.serving_pid)
        assert server.process.poll() is None
        assert server.stop() == 0
        assert server.errors == ""


@pytest.fixture
async def bystander(target: ServerProcess) -> AsyncIterator[Client]:
    """Another client, whose process is there before and after, and lost nothing."""
    async with connect(target.url) as client:
        await client.start("echo", ["cat"], pipeStdin=True)
        await client.write("echo", b"before\n")
        await client.output("echo", b"before\n")
        yield client
        await client.write("echo", b"after\n")
        assert await client.output("echo", b"after\n") == b"before\nafter\n"
        assert target.errors == ""


# -- making bad input


def _good(rng: random.Random) -> dict[str, Any]:
    """A request that makes sense."""
    process_id = rng.choice(("p", "q", "r"))
    return {
        "id": rng.randrange(1000),
        **rng.choice(
            (
                {"method": "environment/status"},
                {
                    "method": "process/start",
                    "params": start_params(
                        process_id, ["cat"], pipeStdin=rng.random() < 0.5, tty=rng.random() < 0.3
                    ),
                },
                {"method": "process/read", "params": {"processId": process_id, "waitMs": 5}},
                {
                    "method": "process/write",
                    "params": {
                        "processId": process_id,
                        "chunk": "aGVsbG8K",
                        "writeId": str(rng.randrange(10)),
                    },
                },
                {"method": "process/terminate", "params": {"processId": process_id}},
                {"method": "process/list"},
            )
        ),
    }


def _odd(rng: random.Random) -> dict[str, Any]:
    """A message with anything at any position."""
    message: dict[str, Any] = _good(rng) if rng.random() < 0.5 else {"method": rng.choice(METHODS)}
    # Without an id most of them end the connection, which is then over for the others.
    if rng.random() < 0.99:
        message["id"] = rng.choice(VALUES) if rng.random() < 0.1 else rng.randrange(1000)
    for _ in range(rng.randrange(4)):
        params = message.setdefault("params", {})
        if not isinstance(params, dict):
            break
        params[rng.choice(MEMBERS)] = rng.choice(VALUES)
    if rng.random() < 0.1:
        member = rng.choice(("params", "method", "trace", "result", "error", "x"))
        message[member] = rng.choice(VALUES)
    return message


def _broken(rng: random.Random) -> bytes:
    """The text of a message with some of its bytes changed, lost, doubled or moved."""
    text = bytearray(json.dumps(_good(rng), ensure_ascii=rng.random() < 0.5).encode())
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.randrange(6))
        match rng.randrange(5):
            case 0:
                text[at:end] = rng.randbytes(end - at)
            case 1:
                del text[at:end]
            case 2:
                text[at:at] = text[at:end]
            case 3:
                text[at:at] = rng.choice((b'"', b"\\", b"{", b"]", b"\xc3", b"\0", b",", b"1e999"))
            case _:
                del text[at:]
    return bytes(text)


# -- sending it


def _check(message: dict[str, Any]) -> None:
    """Check that this is an answer of the protocol, and no fault of the server."""
    if "method" in message:
        assert message["method"] in ("process/output", "process/exited", "process/closed")
        return
    assert set(message) in ({"id", "result"}, {"id", "error"})
    if "error" in message:
        assert set(message["error"]) == {"code", "message"}
        assert message["error"]["code"] in (-32600, -32601, -32602, -32603)
        assert message["error"]["message"] != "internal error"
        assert "Traceback" not in message["error"]["message"]


async def _settle(client: Client) -> bool:
    """Take in all answers; `False` if the connection was ended, as some input demands."""
    try:
        # With an id that no answer to the bad input has.
        await client.send({"id": "settle", "method": "environment/status"})
        while (message := await client.receive()).get("id") != "settle":
            _check(message)
    except Ended:
        return False
    return True


@asynccontextmanager
async def _attacker(target: ServerProcess) -> AsyncIterator[Client]:
    # Its queue has no end: it sends much before it reads.
    async with connect(target.url, max_queue=None) as client:
        yield client


@pytest.mark.parametrize("seed", SEEDS)
async def test_messages_that_cannot_be_read(
    target: ServerProcess, bystander: Client, seed: int
) -> None:
    rng = random.Random(f"broken {seed}")
    for _ in range(6):
        async with _attacker(target) as client:
            with suppress(Ended):
                for _ in range(BATCH):
                    await client.send_raw(_broken(rng), text=rng.random() < 0.5)
            await _settle(client)


@pytest.mark.parametrize("seed", SEEDS)
async def test_messages_that_make_no_sense(
    target: ServerProcess, bystander: Client, seed: int
) -> None:
    rng = random.Random(f"odd {seed}")
    for _ in range(6):
        async with _attacker(target) as client:
            with suppress(Ended):
                for _ in range(BATCH):
                    await client.send(_odd(rng))
            await _settle(client)


@pytest.mark.parametrize("seed", SEEDS)
async def test_one_message_after_the_other(
    target: ServerProcess, bystander: Client, seed: int
) -> None:
    """Each kind of oddity gets its answer, or ends its own connection, and only that."""
    rng = random.Random(f"single {seed}")
    sent = 0
    while sent < BATCH:
        async with _attacker(target) as client:
            while sent < BATCH:
                sent += 1
                with suppress(Ended):
                    await client.send(_odd(rng))
                if not await _settle(client):
                    break


@pytest.mark.parametrize("seed", SEEDS)
async def test_messages_before_the_handshake(
    target: ServerProcess, bystander: Client, seed: int
) -> None:
    rng = random.Random(f"early {seed}")
    for _ in range(BATCH // 2):
        async with connect(target.url, initialize=False, max_queue=None) as client:
            with suppress(Ended):
                for _ in range(4):
                    await client.send(_odd(rng))
                    await client.send_raw(_broken(rng))
            with suppress(Ended):
                await client.request("nope", request_id="settle")
                while (message := await client.receive()).get("id") != "settle":
                    _check(message)


@pytest.mark.parametrize("seed", SEEDS)
async def test_bytes_that_are_no_frames(
    target: ServerProcess, bystander: Client, seed: int
) -> None:
    rng = random.Random(f"bytes {seed}")
    for _ in range(BATCH // 2):
        async with frames(target.url) as connection:
            with suppress(Ended, ConnectionError):
                await connection.send(INITIALIZE + INITIALIZED)
                await connection.send(rng.randbytes(rng.randrange(1, 300)))
                for _ in range(3):
                    await connection.send(_odd_frame(rng))
    assert await bystander.is_ready()


def _odd_frame(rng: random.Random) -> bytes:
    payload = _broken(rng) if rng.random() < 0.5 else json.dumps(_odd(rng)).encode()
    whole = bytearray(
        frame(
            payload,
            kind=rng.choice((TEXT, BINARY, CONTINUATION, rng.randrange(16))),
            final=rng.random() < 0.7,
        )
    )
    if rng.random() < 0.3:
        whole[rng.randrange(2)] = rng.randrange(256)
    return bytes(whole)


@pytest.mark.parametrize("seed", SEEDS)
async def test_bytes_that_are_no_http(target: ServerProcess, bystander: Client, seed: int) -> None:
    rng = random.Random(f"http {seed}")
    parts = urlsplit(target.url)
    for _ in range(BATCH):
        async with asyncio.timeout(LIMIT):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            head = bytearray(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\r\n")
            for _ in range(rng.randrange(6)):
                head[rng.randrange(len(head))] = rng.randrange(256)
            writer.write(bytes(head[: rng.randrange(len(head) + 1)]) + rng.randbytes(20))
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()
    assert (await http(target.url, "/readyz")).status == 200


@pytest.mark.parametrize("seed", SEEDS)
async def test_clients_that_vanish_at_any_moment(
    target: ServerProcess, bystander: Client, seed: int
) -> None:
    rng = random.Random(f"vanish {seed}")
    for _ in range(2 * BATCH):
        async with frames(target.url) as connection:
            said = _conversation(rng)
            await connection.send(said)
            if len(said) >= len(INITIALIZE) and rng.random() < 0.5:
                await connection.receive()
    assert await bystander.is_ready()


def _conversation(rng: random.Random) -> bytes:
    """Requests of which some have to wait, cut off anywhere."""
    read = {"processId": "p", "afterSeq": 100, "waitMs": 60_000}
    write = {"processId": "p", "chunk": "eHh4" * 10_000, "writeId": "w"}
    messages = [
        {"id": 1, "method": "process/start", "params": start_params("p", ["cat"], pipeStdin=True)},
        *({"id": 2, "method": "process/read", "params": read} for _ in range(5)),
        *(
            {"id": 3, "method": "process/write", "params": {**write, "writeId": f"w{n}"}}
            for n in range(rng.randrange(5))
        ),
        {"id": 4, "method": "process/list"},
    ]
    whole = INITIALIZE + INITIALIZED + b"".join(map(frame, messages))
    return whole[: rng.randrange(len(whole) + 1)]


async def test_clients_that_never_say_anything(target: ServerProcess, bystander: Client) -> None:
    parts = urlsplit(target.url)
    writers = []
    for number in range(200):
        async with asyncio.timeout(LIMIT):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b"GET / HTTP/1.1\r\n"[: number % 17])
        writers.append(writer)
    assert await bystander.is_ready()
    async with connect(target.url) as client:
        assert await client.is_ready()
    for writer in writers:
        writer.close()


async def test_a_server_without_descriptors_says_so_and_recovers() -> None:
    command = ("/bin/sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *HOLDFAST, "exec-server")
    with serving(command=command) as server:
        async with connect(server.url) as client:
            started, refused = [], []
            for number in range(40):
                params = start_params(
                    f"p{number}", ["cat"], tty=number % 2 == 0, pipeStdin=number % 3 == 0
                )
                reply = await client.reply(await client.request("process/start", params))
                if "error" in reply:
                    refused.append(reply["error"])
                else:
                    started.append(f"p{number}")
            assert started
            assert refused
            for error in refused:
                assert error == {"code": -32603, "message": "Too many open files (os error 24)"}
            assert await client.is_ready()
            # A refused start left nothing open, and what is closed can be used again.
            for name in started:
                await client.terminate(name)
                await client.finish(name)
            assert await client.run(["echo", "again"]) == Run(0, stdout=b"again\n")
            async with connect(server.url) as other:
                assert await other.is_ready()
        assert server.stop() == 0
        assert server.errors == ""


@pytest.mark.parametrize("seed", SEEDS)
def test_lines_that_make_no_sense(seed: int) -> None:
    rng = random.Random(f"lines {seed}")
    odd = [json.dumps(_odd(rng)).encode() for _ in range(100)]
    broken = [_broken(rng) for _ in range(100)]
    done = subprocess.run(
        [*HOLDFAST, "serve", "--listen", "stdio"],
        input=b"\n".join(odd + broken),
        capture_output=True,
        timeout=2 * LIMIT,
        check=False,
    )
    # Some of it ends the connection, and with it the server; but that is a good end.
    assert (done.returncode, done.stderr) == (0, b"")
    for line in done.stdout.splitlines():
        _check(json.loads(line))
