"""Daemons that commands start: gone with the command that is ended, and with the environment."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import holdfast
from holdfast.events import Reason
from holdfast.server.app import Server
from tests.e2e.wire import HOLDFAST, LIMIT, gone, is_alive

DAEMON = "setsid sh -c 'setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $!'"
"""A process in a session of its own, whose parent has ended."""


@pytest.fixture(params=["here", "server"])
async def where(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    if request.param == "here":
        yield "local"
        return
    async with Server(session_expiry=0.05) as server:
        yield await server.listen("ws://127.0.0.1:0")


async def all_gone(*pids: int) -> None:
    async with asyncio.timeout(LIMIT):
        for pid in pids:
            await gone(pid)


async def test_none_outlives_a_command_that_took_too_long(where: str) -> None:
    async with holdfast.connect(where) as env:
        done = await env.run(f"{DAEMON}; sleep 600", timeout=1)
        assert done.reason is Reason.TIMED_OUT
        await all_gone(int(done.stdout))


async def test_none_outlives_the_block_of_its_process(where: str) -> None:
    async with holdfast.connect(where) as env:
        async with env.start(f"{DAEMON}; exec sleep 600") as process:
            found = await process.expect("\n", timeout=LIMIT)
        await all_gone(int(found.before))


async def test_one_of_a_command_that_ended_lives_as_long_as_the_environment(where: str) -> None:
    async with holdfast.connect(where) as env:
        pid = int((await env.run(DAEMON, check=True)).stdout)
        other = int((await env.run("sleep 600 >/dev/null 2>&1 & echo $!", check=True)).stdout)
        assert is_alive(pid)
        assert is_alive(other)
    await all_gone(pid, other)


async def test_a_server_ends_those_of_a_client_that_does_not_come_back() -> None:
    async with Server(session_expiry=0.05) as server:
        env = holdfast.connect(await server.listen("ws://127.0.0.1:0"))
        pid = int((await env.run(DAEMON, check=True)).stdout)
        await env.aclose()  # without a block, nothing is said about what was started
        await all_gone(pid)


async def test_none_outlives_a_run_of_the_command_line() -> None:
    async with Server() as server:
        url = await server.listen("ws://127.0.0.1:0")
        run = await asyncio.create_subprocess_exec(
            *(*HOLDFAST, "run", "--url", url, "--", "sh", "-c", DAEMON),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(2 * LIMIT):
            out, _ = await run.communicate()
        await all_gone(int(out))
