"""
Contract of `waiting_for`, in every kind of environment; a Codex server cannot tell.

A program needs a moment from its prompt to its read, so answers that come are waited for. An
answer that must never come is asked for a few times.
"""

import asyncio

import msgspec
import pytest

from holdfast.backends import ExecProcess
from holdfast.base.errors import ConnectionLost
from holdfast.environments.commands.running import Running
from holdfast.environments.environment import Environment
from holdfast.events import WaitingFor
from holdfast.wire.protocol.process import StartParams
from tests.contract.conftest import Subject
from tests.contract.running import Output, finish, program, shell
from tests.e2e.wire import LIMIT

GETPASS = "import getpass; getpass.getpass('secret? ')"
POLLS = "import select; print('polls'); p = select.poll(); p.register(0, 1); p.poll(); input()"
PIPE_POLLS = "import os, select; print('ready'); select.select(os.pipe()[:1], [], [])"


def terminal(*argv: str) -> StartParams:
    return program(*argv, tty=True)


async def start(subject: Subject, params: StartParams) -> ExecProcess:
    async with asyncio.timeout(LIMIT):
        return await subject.backend.start(params)


async def comes_to(process: ExecProcess | Running, *expected: WaitingFor) -> None:
    """Wait until it waits for one of these."""
    async with asyncio.timeout(2 * LIMIT):
        while (found := await process.waiting_for()) not in expected:
            assert found is WaitingFor.NONE  # it has not come so far
            await asyncio.sleep(0.02)  # nothing tells of the moment


async def ended(process: ExecProcess) -> None:
    await process.terminate()
    await finish(process)


READERS: dict[str, tuple[StartParams, set[WaitingFor]]] = {
    "read -p": (terminal("bash", "-c", "read -p 'name? ' x"), {WaitingFor.LINE}),
    "cat": (terminal("cat"), {WaitingFor.LINE}),
    "getpass": (terminal("python3", "-c", GETPASS), {WaitingFor.PASSWORD}),
    "read -n 1": (terminal("bash", "-c", "read -n 1 x"), {WaitingFor.KEY}),
    # With line editing it reads keys; some builds have none.
    "python": (terminal("python3", "-i"), {WaitingFor.KEY, WaitingFor.LINE}),
    "poll": (terminal("python3", "-c", POLLS), {WaitingFor.LINE}),
    "/dev/tty": (terminal("bash", "-c", "sleep 60 | cat /dev/tty"), {WaitingFor.LINE}),
}

OTHERS: dict[str, StartParams] = {
    "sleep": shell("echo ready; exec sleep 60", tty=True),
    "busy": shell("echo ready; while :; do :; done", tty=True),
    "poll of a pipe": terminal("python3", "-uc", PIPE_POLLS),
    "read of a pipe": shell("echo ready; sleep 60 | cat", tty=True),
}


def named(name: str, params: StartParams) -> StartParams:
    return msgspec.structs.replace(params, process_id=name)


@pytest.mark.requirement("extension.waiting-for")
async def test_a_process_that_reads_its_terminal_waits_for_input(subject: Subject) -> None:
    processes = {
        name: await start(subject, named(name, params)) for name, (params, _) in READERS.items()
    }
    for name, process in processes.items():
        if subject.real:
            assert await process.waiting_for() is WaitingFor.UNKNOWN
        else:
            await comes_to(process, *READERS[name][1])
        await ended(process)


@pytest.mark.requirement("extension.waiting-for")
async def test_a_process_that_does_something_else_waits_for_none(subject: Subject) -> None:
    expected = WaitingFor.UNKNOWN if subject.real else WaitingFor.NONE
    for name, params in OTHERS.items():
        process = await start(subject, named(name, params))
        await Output(process).until(b"ready")
        for _ in range(5):
            assert await process.waiting_for() is expected, name
        await ended(process)


async def test_an_answer_ends_the_wait(subject: Subject) -> None:
    process = await start(subject, shell("read x; echo got; exec sleep 60", tty=True))
    if not subject.real:
        await comes_to(process, WaitingFor.LINE)
    await process.write(b"x\n")
    await Output(process).until(b"got")
    assert await process.waiting_for() is not WaitingFor.LINE
    await ended(process)


async def test_without_a_terminal_nobody_knows(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    assert await process.waiting_for() is WaitingFor.UNKNOWN
    await ended(process)


async def test_an_exited_process_waits_for_none(subject: Subject) -> None:
    process = await start(subject, shell("exit 3", tty=True))
    async with asyncio.timeout(LIMIT):
        await process.wait()
    expected = WaitingFor.UNKNOWN if subject.real else WaitingFor.NONE
    assert await process.waiting_for() is expected


@pytest.mark.every_transport
async def test_of_a_lost_server_nobody_knows(subject: Subject) -> None:
    if not subject.remote or subject.real:
        pytest.skip("there is no server that could be asked")
    process = await start(subject, shell("echo ready; exec sleep 60", tty=True))
    await Output(process).until(b"ready")
    await subject.lose()
    with pytest.raises(ConnectionLost):
        await process.waiting_for()


@pytest.mark.slow
@pytest.mark.requirement("extension.waiting-for")
async def test_it_is_seen_from_outside_of_a_sandbox(env: Environment, subject: Subject) -> None:
    for command, expected in (
        (["bash", "-c", "read -p 'name? ' x"], WaitingFor.LINE),
        (["python3", "-c", GETPASS], WaitingFor.PASSWORD),
        (["python3", "-c", POLLS], WaitingFor.LINE),
    ):
        async with env.start(command, tty=True, sandbox="workspace-write") as process:
            if subject.real:
                assert await process.waiting_for() is WaitingFor.UNKNOWN
            else:
                await comes_to(process, expected)
    command = ["sh", "-c", "echo ready; exec sleep 60"]
    async with env.start(command, tty=True, sandbox="workspace-write") as process:
        await process.expect("ready", timeout=LIMIT)
        expected = WaitingFor.UNKNOWN if subject.real else WaitingFor.NONE
        assert await process.waiting_for() is expected
