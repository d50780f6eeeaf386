"""Order of requests: which one waits for which [dispatch.*]."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wire import Client, Fifo, ServerProcess, connect, serving, start_params

FOREVER = 10**9
WIDE = 4
"""Concurrent requests of the server in the tests on lanes."""


@pytest.fixture(scope="module")
def strict_server() -> Iterator[ServerProcess]:
    with serving("--concurrent-requests", "1") as server:
        yield server
        assert server.errors == ""


@pytest.fixture
async def strict(strict_server: ServerProcess) -> AsyncIterator[Client]:
    """A connection on which one request is served at a time."""
    async with connect(strict_server.url) as client:
        yield client


@pytest.fixture(scope="module")
def wide_server() -> Iterator[ServerProcess]:
    with serving("--concurrent-requests", str(WIDE)) as server:
        yield server
        assert server.errors == ""


@pytest.fixture
async def wide(wide_server: ServerProcess) -> AsyncIterator[Client]:
    """A connection on which a few requests may wait at once."""
    async with connect(wide_server.url) as client:
        yield client


each_server = pytest.mark.parametrize("each", ["default", "strict", "wide"], indirect=True)


@pytest.fixture
def each(
    request: pytest.FixtureRequest,
    server: ServerProcess,
    strict_server: ServerProcess,
    wide_server: ServerProcess,
) -> ServerProcess:
    """One server after the other."""
    return {"default": server, "strict": strict_server, "wide": wide_server}[request.param]


async def _reads_that_wait(client: Client, count: int) -> None:
    """A process that does nothing, and requests that wait for it to write."""
    await client.start("p", ["cat"], pipeStdin=True)
    for number in range(count):
        params = {"processId": "p", "waitMs": FOREVER}
        await client.request("process/read", params, request_id=f"read {number}")


async def _replies(client: Client, count: int) -> list[dict[str, Any]]:
    """The next replies as they come; events between them are left out."""
    replies: list[dict[str, Any]] = []
    while len(replies) < count:
        message = await client.receive()
        if "method" not in message:
            replies.append(message)
    return replies


async def _ids(client: Client, count: int) -> list[str | int]:
    return [reply["id"] for reply in await _replies(client, count)]


# -- at once, in order


@each_server
async def test_what_can_be_answered_at_once_is_answered_in_order(each: ServerProcess) -> None:
    async with connect(each.url) as client:
        asked: list[str | int] = []
        for number in range(100):
            method = ("environment/status", "nope", "environment/info", "process/list")[number % 4]
            asked.append(await client.request(method))
        assert await _ids(client, 100) == asked


# -- the default: who waits steps aside


async def test_a_read_that_waits_holds_up_nothing(client: Client) -> None:
    await _reads_that_wait(client, 200)
    assert await client.is_ready()
    await client.start("q", ["true"])
    await client.finish("q")
    await client.write("p", b"x")
    for number in range(200):
        assert (await client.reply(f"read {number}"))["result"]["nextSeq"] == 2


async def test_terminate_overtakes_the_reads_that_wait_for_it(client: Client) -> None:
    await _reads_that_wait(client, 10)
    assert await client.terminate("p") is True
    for number in range(10):
        assert (await client.reply(f"read {number}"))["result"]["exited"] is True


async def test_a_read_that_times_out_does_not_hold_up_another(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    for wait in (60_000, 1, 0):
        await client.request("process/read", {"processId": "p", "waitMs": wait}, request_id=wait)
    assert await _ids(client, 2) == [0, 1]


# -- one at a time


@pytest.mark.requirement("dispatch.strict")
async def test_with_one_request_at_a_time_the_order_is_strict(strict: Client) -> None:
    await strict.start("p", ["cat"], pipeStdin=True)
    await strict.request("process/read", {"processId": "p", "waitMs": 50}, request_id="read")
    await strict.request("environment/info", request_id="info")
    await strict.request("process/start", start_params("q", ["true"]), request_id="start")
    await strict.request("nope", request_id="nope")
    await strict.request("process/terminate", {"processId": "p"}, request_id="terminate")
    await strict.request("environment/status", request_id="status")
    expected = ["read", "info", "start", "nope", "terminate", "status"]
    assert await _ids(strict, 6) == expected


@pytest.mark.requirement("dispatch.strict", "dispatch.independent")
async def test_a_write_that_blocks_holds_up_what_is_behind_it(
    strict_server: ServerProcess, strict: Client, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        await strict.shell("p", f"read x <{go.path}; exec wc -c", pipeStdin=True)
        for number in range(140):
            params = strict.write_params("p", b"x" * 65_536)
            await strict.request("process/write", params, request_id=number)
        await strict.request("environment/status", request_id="status")
        async with connect(strict_server.url) as other:
            assert await other.is_ready()
        go.write()
        assert await _ids(strict, 141) == [*range(140), "status"]


# -- a few at a time


@pytest.mark.requirement("dispatch.concurrent")
async def test_so_many_requests_run_at_once_and_no_more(wide: Client) -> None:
    await _reads_that_wait(wide, WIDE)
    # There is no slot left for an ordinary request, so the one that would end this waits too.
    await wide.request("process/write", wide.write_params("p", b"x"), request_id="write")
    assert await wide.is_ready()
    assert wide.unread_replies() == []
    await wide.call("process/signal", {"processId": "p", "signal": "SIGKILL"})
    for number in range(WIDE):
        assert (await wide.reply(f"read {number}"))["result"]["exited"] is True
    assert (await wide.reply("write"))["result"] == {"status": "accepted"}


@pytest.mark.requirement("dispatch.handshake-order")
@each_server
async def test_the_handshake_stays_in_order(each: ServerProcess) -> None:
    async with connect(each.url, initialize=False) as client:
        await client.request("environment/info", request_id="before")
        await client.request("initialize", {"clientName": "x"}, request_id="initialize")
        await client.request("environment/info", request_id="between")
        await client.notify("initialized")
        await client.request("environment/status", request_id="after")
        replies = await _replies(client, 4)
        assert [(r["id"], "error" in r) for r in replies] == [
            ("before", True),
            ("initialize", False),
            ("between", True),
            ("after", False),
        ]


@pytest.mark.requirement("limits.queue")
@each_server
async def test_more_than_a_queue_holds_is_served_in_the_end(
    each: ServerProcess, tmp_path: Path
) -> None:
    async with connect(each.url) as client:
        with Fifo(tmp_path / "go") as go:
            await client.shell("p", f"read x <{go.path}")
            params = {"processId": "p", "afterSeq": 0, "waitMs": FOREVER}
            asked = [await client.request("process/read", params) for _ in range(2000)]
            # Where a queue is full nothing more is read from this connection, so only the
            # process itself can end the waiting.
            go.write()
            assert sorted(map(int, await _ids(client, 2000))) == asked
