"""`http/request` as a client sees it: answers, deltas, ids, slow readers [http.request.*]."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wire import LIMIT, Client, ServerProcess, connect, from_base64, serving, to_base64
from tests.unit.engine.http.origin import Last, Origin, origin

MIB = 1 << 20


@pytest.fixture
async def web() -> AsyncIterator[Origin]:
    async with origin() as server:
        yield server


class Deltas:
    """A connection whose notifications are kept apart from its answers."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._last_id = 100
        self._replies: dict[int, dict[str, Any]] = {}
        self._deltas: dict[str, list[dict[str, Any]]] = {}
        self.order: list[str] = []
        """Received messages in order: `reply`, or the id of a stream."""

    async def ask(self, url: str, request_id: str = "r", **params: object) -> int:
        self._last_id += 1
        given = {"method": "GET", "url": url, "requestId": request_id, **params}
        await self.client.send({"id": self._last_id, "method": "http/request", "params": given})
        return self._last_id

    async def reply(self, number: int) -> dict[str, Any]:
        while number not in self._replies:
            await self._pull()
        return self._replies.pop(number)

    async def call(self, url: str, request_id: str = "r", **params: object) -> dict[str, Any]:
        """The result; fails if there is none."""
        result: dict[str, Any] = (await self.reply(await self.ask(url, request_id, **params)))[
            "result"
        ]
        return result

    async def refusal(self, url: str, request_id: str = "r", **params: object) -> tuple[int, str]:
        error = (await self.reply(await self.ask(url, request_id, **params)))["error"]
        return error["code"], error["message"]

    async def stream(self, url: str, request_id: str = "s", **params: object) -> dict[str, Any]:
        return await self.call(url, request_id, streamResponse=True, **params)

    async def delta(self, request_id: str = "s") -> dict[str, Any]:
        """The next delta of a stream."""
        while not self._deltas.get(request_id):
            await self._pull()
        return self._deltas[request_id].pop(0)

    async def body(self, request_id: str = "s") -> tuple[bytes, str | None]:
        """All deltas to the end, checked for what holds of all; the body, and the error."""
        body = b""
        seq = 0
        while True:
            delta = await self.delta(request_id)
            seq += 1
            assert delta["seq"] == seq
            piece = from_base64(delta["deltaBase64"])
            assert len(piece) <= MIB
            body += piece
            if delta["done"]:
                assert piece == b""
                error: str | None = delta["error"]
                return body, error
            assert delta["error"] is None
            assert piece != b""

    async def _pull(self) -> None:
        message = await self.client.receive()
        if "id" in message:
            self._replies[message["id"]] = message
            self.order.append("reply")
        else:
            assert message["method"] == "http/request/bodyDelta"
            params = message["params"]
            assert set(params) == {"requestId", "seq", "deltaBase64", "done", "error"}
            self._deltas.setdefault(params["requestId"], []).append(params)
            self.order.append(params["requestId"])


@pytest.fixture
def http(client: Client) -> Deltas:
    return Deltas(client)


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def gated(gate: asyncio.Event) -> Any:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await gate.wait()
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")

    return talk


# -- whole answers


@pytest.mark.requirement("http.request.result")
async def test_a_call_is_made_from_where_the_server_runs(http: Deltas, web: Origin) -> None:
    result = await http.call(
        f"{web.url}/x?y",
        method="POST",
        headers=[
            {"name": "X-A", "value": "1"},
            {"name": "X-P", "value": "=", "valueEnvVar": "PATH"},
        ],
        bodyBase64=to_base64(b"payload"),
    )
    assert result == {
        "status": 200,
        "headers": [{"name": "content-length", "value": "2"}],
        "bodyBase64": to_base64(b"ok"),
    }
    head = web.heads()[0]
    assert head[:2] == ["POST /x?y HTTP/1.1", "x-a: 1"]
    assert head[2].startswith("x-p: =/")
    assert web.asked[0].endswith(b"\r\ncontent-length: 7\r\n\r\npayload")


async def test_the_server_says_that_it_knows_variables(server: ServerProcess) -> None:
    async with connect(server.url, initialize=False) as client:
        info = (await client.initialize())["environmentInfo"]
    assert info["capabilities"]["httpHeaderEnvVars"] is True


@pytest.mark.requirement("http.request.handshake")
async def test_the_family_is_named_before_the_handshake(server: ServerProcess) -> None:
    params = {"method": "GET", "url": "http://h/", "requestId": "r"}
    async with connect(server.url, initialize=False) as client:
        text = "client must call initialize before using http methods"
        assert await client.refusal("http/request", params) == (-32600, text)


@pytest.mark.requirement("fs.errors.base64")
@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"headers": None}, "invalid type: null, expected a sequence"),
        ({"headers": [{"name": "x"}]}, "missing field `value`"),
        ({"timeoutMs": -1}, "invalid number"),
        ({"redirectPolicy": "x"}, "unknown variant `x`, expected `follow` or `stop`"),
        ({"bodyBase64": "!!"}, "Invalid symbol 33, offset 0."),
        ({"method": "a b"}, "http/request method is invalid: invalid HTTP method"),
    ],
)
async def test_bad_params_are_refused(http: Deltas, params: dict[str, Any], text: str) -> None:
    assert await http.refusal("http://127.0.0.1:0/", **params) == (-32602, text)


async def test_a_large_body_comes_whole(http: Deltas, web: Origin) -> None:
    data = bytes(range(256)) * 12_000
    web.answer(f"HTTP/1.1 200 OK\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    result = await http.call(web.url)
    assert from_base64(result["bodyBase64"]) == data
    assert list(result) == ["status", "headers", "bodyBase64"]


async def test_a_call_without_a_limit_holds_up_nothing(http: Deltas, web: Origin) -> None:
    web.answer(hang)
    await http.ask(web.url)
    # Else the second call might reach the origin first, and be the one that hangs.
    async with asyncio.timeout(LIMIT):
        await web.was_asked.wait()
    assert await http.client.is_ready()
    assert (await http.call(web.url))["status"] == 200


async def test_many_calls_at_once_are_all_answered(http: Deltas, web: Origin) -> None:
    numbers = [await http.ask(web.url) for _ in range(300)]
    for number in numbers:
        assert (await http.reply(number))["result"]["status"] == 200
    assert web.connections < len(numbers)


# -- streams


@pytest.mark.requirement("http.request.stream")
async def test_a_stream_begins_with_its_answer_and_ends_with_a_delta(
    http: Deltas, web: Origin
) -> None:
    result = await http.stream(web.url)
    assert (result["status"], result["bodyBase64"]) == (200, "")
    assert await http.body() == (b"ok", None)
    assert http.order[0] == "reply"


@pytest.mark.requirement("http.request.stream")
async def test_a_body_that_is_empty_is_one_delta(http: Deltas, web: Origin) -> None:
    web.answer(b"HTTP/1.1 204 X\r\n\r\n")
    await http.stream(web.url, "")
    assert await http.delta("") == {
        "requestId": "", "seq": 1, "deltaBase64": "", "done": True, "error": None,
    }  # fmt: skip


@pytest.mark.requirement("http.request.stream.as-it-comes")
async def test_deltas_come_as_the_body_does(http: Deltas, web: Origin) -> None:
    gate = asyncio.Event()
    web.answer(gated(gate))
    await http.stream(web.url)
    assert from_base64((await http.delta())["deltaBase64"]) == b"first"
    assert await http.client.is_ready()
    gate.set()
    assert from_base64((await http.delta())["deltaBase64"]) == b"second"
    assert (await http.delta())["done"]


@pytest.mark.requirement("http.request.stream.failed")
async def test_a_body_that_breaks_off_says_so_at_its_end(http: Deltas, web: Origin) -> None:
    web.answer(Last(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"))
    await http.stream(web.url)
    assert await http.body() == (b"abc", "error decoding response body")


@pytest.mark.requirement("http.request.stream.id")
async def test_an_id_is_taken_until_its_end(http: Deltas, web: Origin) -> None:
    gate = asyncio.Event()
    web.answer(gated(gate))
    await http.stream(web.url)
    text = "http/request streamResponse requestId `s` is already active"
    assert await http.refusal(web.url, "s", streamResponse=True) == (-32602, text)
    assert (await http.call(web.url, "s"))["status"] == 200  # that is no stream
    gate.set()
    assert await http.body() == (b"firstsecond", None)
    await http.stream(web.url)
    assert await http.body() == (b"ok", None)


@pytest.mark.requirement("http.request.stream.id-early")
async def test_an_id_is_taken_before_the_answer_and_free_after_a_failure(
    http: Deltas, web: Origin
) -> None:
    web.answer(hang)
    first = await http.ask(web.url, "s", streamResponse=True, timeoutMs=300)
    _, text = await http.refusal("ftp://x/", "s", streamResponse=True)
    assert text.endswith("`s` is already active")
    assert (await http.reply(first))["error"]["code"] == -32603
    assert "got ftp" in (await http.refusal("ftp://x/", "s", streamResponse=True))[1]
    await http.stream(web.url)
    assert await http.body() == (b"ok", None)


@pytest.mark.requirement("http.request.stream.connection")
async def test_streams_end_with_their_connection(server: ServerProcess, web: Origin) -> None:
    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst")
        assert await reader.read() == b""
        ended.set()

    web.answer(talk)
    async with connect(server.url) as client:
        await Deltas(client).stream(web.url)
    async with asyncio.timeout(LIMIT):
        await ended.wait()


async def test_calls_end_with_their_connection(server: ServerProcess, web: Origin) -> None:
    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        ended.set()

    web.answer(talk)
    async with asyncio.timeout(LIMIT):
        async with connect(server.url) as client:
            await Deltas(client).ask(web.url)
            await web.was_asked.wait()
        await ended.wait()


@pytest.mark.slow
async def test_a_client_that_does_not_read_stops_an_endless_body(web: Origin) -> None:
    sent = 0
    stuck = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not stuck.is_set():
            writer.write(bytes(65536))
            sent += 65536
            try:
                async with asyncio.timeout(0.5):
                    await writer.drain()
            except TimeoutError:
                stuck.set()

    with serving() as server:
        async with connect(server.url, max_queue=4) as client:
            http = Deltas(client)
            before = _memory(server.serving_pid)
            web.answer(talk)
            await http.stream(web.url)
            async with asyncio.timeout(4 * LIMIT):
                await stuck.wait()
            assert sent < 64 * MIB  # what fits into the sockets on the way
            assert _memory(server.serving_pid) - before < 24 * MIB
            body, error = await http.body()
            assert (len(body), error) == (sent, None)


def _memory(pid: int) -> int:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(fields["VmRSS"].split()[0]) * 1024


@pytest.mark.slow
async def test_a_server_that_makes_no_calls_loads_nothing_for_them() -> None:
    script = (
        "import sys, holdfast.front.cli.serve, holdfast.server.app\n"
        "late = ('httptools', 'can_ada', 'aiohappyeyeballs', 'holdfast.engine.http.local_http')\n"
        "print([name for name in late if name in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert json.loads(output) == []
