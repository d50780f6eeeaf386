"""
Through a line with 20 to 550 ms of random delay, a command loses none of its bytes.

`HOLDFAST_SLOW_LINE_RUNS=200` makes as many runs of each kind; a dozen are made otherwise.
"""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.environments.environment import Environment
from holdfast.front.app_server.command_exec import CommandExec
from tests.e2e.delaying import delaying
from tests.e2e.wire import ServerProcess
from tests.real.codex import codex_serving

RUNS = int(os.environ.get("HOLDFAST_SLOW_LINE_RUNS", "12"))
AT_ONCE = 6
"""Lines that are used at the same time."""
SIZE = 600_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(30 + RUNS * 5)]

WRITE = f"seq 1 1000000 | head -c {SIZE}"
EXPECTED = "".join(f"{number}\n" for number in range(1, 120_000))[:SIZE].encode()

LATE = "(sleep 0.03; echo late) & echo early"
"""A child writes 30 ms after the exit."""


@pytest.fixture(params=["holdfast", pytest.param("codex", marks=pytest.mark.real)])
def url(request: pytest.FixtureRequest, server: ServerProcess, tmp_path: Path) -> Iterator[str]:
    if request.param == "holdfast":
        yield server.url
    else:
        with codex_serving(tmp_path) as codex_url:
            yield codex_url


def digest(data: bytes) -> str:
    return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:16]}"


async def check_run(env: Environment) -> None:
    done = await env.run(WRITE, cap=2 * SIZE)
    assert digest(done.stdout_bytes) == digest(EXPECTED)
    assert (done.ok, done.background, done.omitted) == (True, False, 0)


async def check_start(env: Environment) -> None:
    async with env.start(WRITE) as process:
        data = b"".join([chunk.data async for chunk in process.output()])
        assert digest(data) == digest(EXPECTED)
        assert (await process.wait()).ok
        assert process.missed == 0


async def check_late_child(env: Environment) -> None:
    done = await env.run(LATE)
    assert done.stdout == "early\nlate\n"
    assert not done.background
    async with env.start(LATE) as process:
        assert "".join([chunk.text async for chunk in process.output()]) == "early\nlate\n"


async def check_command(env: Environment) -> None:
    async with CommandExec(env) as commands:
        command = await commands.start(["sh", "-c", WRITE], cap=2 * SIZE, timeout=None)
        done = await command.wait()
        assert digest(done.stdout) == digest(EXPECTED)
        assert (done.exit_code, done.drain_timed_out) == (0, False)


async def check_streamed_command(env: Environment) -> None:
    async with CommandExec(env) as commands:
        argv = ["sh", "-c", f"{WRITE}; echo the end >&2"]
        command = await commands.start(argv, cap=None, timeout=None, stream=True)
        found = {"stdout": b"", "stderr": b""}
        async for delta in command.output():
            found[delta.stream] += delta.data
        assert digest(found["stdout"]) == digest(EXPECTED)
        assert found["stderr"] == b"the end\n"
        assert (await command.wait()).exit_code == 0


@pytest.mark.parametrize(
    "check",
    [check_run, check_start, check_late_child, check_command, check_streamed_command],
)
async def test_a_slow_line_loses_nothing(
    url: str, check: Callable[[Environment], Awaitable[None]]
) -> None:
    numbers = iter(range(RUNS))

    async def use_line(seed: int) -> None:
        async with delaying(url, seed=seed) as proxy, holdfast.connect(proxy.url) as env:
            for _ in numbers:
                await check(env)

    async with asyncio.TaskGroup() as tasks:
        for seed in range(min(AT_ONCE, RUNS)):
            tasks.create_task(use_line(seed))
