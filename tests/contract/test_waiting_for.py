"""
What `waiting_for` answers, on every place there is; a Codex server cannot tell.

A program needs a moment from its prompt to its read, so answers that come are waited for. An
answer that must never come is asked for a few times.
"""

import asyncio

import pytest

from holdfast.backends import ExecProcess
from holdfast.environments.commands.running import Running
from holdfast.environments.environment import Environment
from holdfast.errors import ConnectionLost
from holdfast.events import WaitingFor
from holdfast.protocol.process import StartParams
from tests.contract.conftest import Place
from tests.contract.running import Output, finish, program, shell
from tests.e2e.wire import LIMIT

GETPASS = "import getpass; getpass.getpass('secret? ')"
POLLS = "import select; print('polls'); p = select.poll(); p.register(0, 1); p.poll(); input()"
PIPE_POLLS = "import os, select; print('ready'); select.select(os.pipe()[:1], [], [])"


def on_terminal(*argv: str) -> StartParams:
    return program(*argv, tty=True)


async def start(place: Place, params: StartParams) -> ExecProcess:
    async with asyncio.timeout(LIMIT):
        return await place.backend.start(params)


async def comes_to(process: ExecProcess | Running, *expected: WaitingFor) -> None:
    """Wait until it waits for one of these."""
    async with asyncio.timeout(2 * LIMIT):
        while (found := await process.waiting_for()) not in expected:
            assert found is WaitingFor.NONE  # it has not come so far
            await asyncio.sleep(0.005)  # nothing tells of the moment


async def ended(process: ExecProcess) -> None:
    await process.terminate()
    await finish(process)


@pytest.mark.requirement("extension.waiting-for")
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        pytest.param(
            on_terminal("bash", "-c", "read -p 'name? ' x"), [WaitingFor.LINE], id="read -p"
        ),
        pytest.param(on_terminal("cat"), [WaitingFor.LINE], id="cat"),
        pytest.param(on_terminal("python3", "-c", GETPASS), [WaitingFor.PASSWORD], id="getpass"),
        pytest.param(on_terminal("bash", "-c", "read -n 1 x"), [WaitingFor.KEY], id="read -n 1"),
        pytest.param(
            # With line editing it reads keys; some builds have none.
            on_terminal("python3", "-i"),
            [WaitingFor.KEY, WaitingFor.LINE],
            id="python",
        ),
        pytest.param(on_terminal("python3", "-c", POLLS), [WaitingFor.LINE], id="poll"),
        pytest.param(
            on_terminal("bash", "-c", "sleep 60 | cat /dev/tty"), [WaitingFor.LINE], id="/dev/tty"
        ),
    ],
)
async def test_a_process_that_reads_its_terminal_waits_for_input(
    place: Place, params: StartParams, expected: list[WaitingFor]
) -> None:
    process = await start(place, params)
    if place.real:
        assert await process.waiting_for() is WaitingFor.UNKNOWN
    else:
        await comes_to(process, *expected)
    await ended(process)


@pytest.mark.requirement("extension.waiting-for")
@pytest.mark.parametrize(
    "params",
    [
        pytest.param(shell("echo ready; exec sleep 60", tty=True), id="sleep"),
        pytest.param(shell("echo ready; while :; do :; done", tty=True), id="busy"),
        pytest.param(on_terminal("python3", "-uc", PIPE_POLLS), id="poll of a pipe"),
        pytest.param(shell("echo ready; sleep 60 | cat", tty=True), id="read of a pipe"),
    ],
)
async def test_a_process_that_does_something_else_waits_for_none(
    place: Place, params: StartParams
) -> None:
    process = await start(place, params)
    await Output(process).until(b"ready")
    for _ in range(5):
        expected = WaitingFor.UNKNOWN if place.real else WaitingFor.NONE
        assert await process.waiting_for() is expected
    await ended(process)


async def test_an_answer_ends_the_wait(place: Place) -> None:
    process = await start(place, shell("read x; echo got; exec sleep 60", tty=True))
    if not place.real:
        await comes_to(process, WaitingFor.LINE)
    await process.write(b"x\n")
    await Output(process).until(b"got")
    assert await process.waiting_for() is not WaitingFor.LINE
    await ended(process)


async def test_without_a_terminal_nobody_knows(place: Place) -> None:
    process = await start(place, program("cat", pipe_stdin=True))
    assert await process.waiting_for() is WaitingFor.UNKNOWN
    await ended(process)


async def test_an_exited_process_waits_for_none(place: Place) -> None:
    process = await start(place, shell("exit 3", tty=True))
    async with asyncio.timeout(LIMIT):
        await process.wait()
    expected = WaitingFor.UNKNOWN if place.real else WaitingFor.NONE
    assert await process.waiting_for() is expected


async def test_of_a_lost_server_nobody_knows(place: Place) -> None:
    if not place.remote or place.real:
        pytest.skip("there is no server that could be asked")
    process = await start(place, shell("echo ready; exec sleep 60", tty=True))
    await Output(process).until(b"ready")
    await place.lose()
    with pytest.raises(ConnectionLost):
        await process.waiting_for()


@pytest.mark.slow
@pytest.mark.requirement("extension.waiting-for")
async def test_it_is_seen_from_outside_of_a_sandbox(env: Environment, place: Place) -> None:
    for command, expected in (
        (["bash", "-c", "read -p 'name? ' x"], WaitingFor.LINE),
        (["python3", "-c", GETPASS], WaitingFor.PASSWORD),
        (["python3", "-c", POLLS], WaitingFor.LINE),
    ):
        async with env.start(command, tty=True, sandbox="workspace-write") as process:
            if place.real:
                assert await process.waiting_for() is WaitingFor.UNKNOWN
            else:
                await comes_to(process, expected)
    command = ["sh", "-c", "echo ready; exec sleep 60"]
    async with env.start(command, tty=True, sandbox="workspace-write") as process:
        await process.expect("ready", timeout=LIMIT)
        expected = WaitingFor.UNKNOWN if place.real else WaitingFor.NONE
        assert await process.waiting_for() is expected
