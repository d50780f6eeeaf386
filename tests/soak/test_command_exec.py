"""
Commands whose client goes away at any moment leave no process, task or descriptor.

`HOLDFAST_COMMAND_SOAK=2000` makes so many commands on each subject; 200 are made otherwise.
"""

import asyncio
import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.base.errors import RemoteProtocolError
from holdfast.environments.environment import Environment
from holdfast.front.app_server.command_exec import (
    Command,
    CommandExec,
    CommandExecError,
    DrainPolicy,
)
from tests.e2e.wire import serving
from tests.real.codex import codex_serving
from tests.soak.leftovers import descriptors, left_running, until, until_nothing

COUNT = int(os.environ.get("HOLDFAST_COMMAND_SOAK", "200"))
AT_ONCE = 10

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(60 + COUNT)]

SCRIPTS = [
    "echo short",
    "sleep 60",
    "cat",
    "trap '' TERM INT HUP; echo ready; while :; do sleep 1; done",
    "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; sleep 60",
    "yes & yes >&2",
    "exec 1>&-; yes >&2",
]
FOR_HOLDFAST = [
    "sleep 60 & exit 3",
    "(while :; do echo x; sleep 0.01; done) & exit 0",
    "setsid sleep 60 & sleep 60",
]
"""A Codex server kills groups only, and nothing that an exited process has left in its own."""


@pytest.fixture(params=["local", "holdfast", pytest.param("codex", marks=pytest.mark.real)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | None]:
    match request.param:
        case "local":
            yield None
        case "holdfast":
            with serving() as server:
                yield server.url
        case _:
            with codex_serving(tmp_path) as codex_url:
                yield codex_url


async def use(env: Environment, mark: str, made: random.Random, count: int) -> None:
    """Be a client that starts some commands, uses them in some way and goes away at any moment."""
    full = (await env.capabilities()).process_resize
    scripts = [*SCRIPTS, *FOR_HOLDFAST] if full else SCRIPTS
    try:
        async with (
            CommandExec(env, drain=DrainPolicy(limit=0.2)) as commands,
            asyncio.timeout(60),
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(count):
                starting = start(commands, mark, made, made.choice(scripts), full)
                # Starts that are given up beside a flood make a Codex server stop for ever.
                command = tasks.create_task(starting) if full else await starting
                tasks.create_task(follow(command, made))
            await asyncio.sleep(made.uniform(0, 0.15))
            raise _Gone
    except* (_Gone, CommandExecError):
        pass
    except* RemoteProtocolError:
        # A Codex server numbers the bytes of a flood in one order and sends them in another.
        if full:
            raise


class _Gone(Exception):
    """The client has gone."""


async def start(
    commands: CommandExec, mark: str, made: random.Random, script: str, full: bool
) -> Command:
    return await commands.start(
        ["/bin/sh", "-c", script],
        env={"HOLDFAST_TEST_MARK": mark},
        tty=full and made.random() < 0.2,
        stdin=full and made.random() < 0.5,
        stream=made.random() < 0.5,
        timeout=made.choice([0, 0.02, 0.1, 10, None]),
        cap=made.choice([0, 1, 1000, None]),
        process_id=secrets.token_hex(4),
    )


async def follow(started: Command | asyncio.Task[Command], made: random.Random) -> None:
    command = started if isinstance(started, Command) else await started
    match made.randrange(4):
        case 0:
            await command.terminate()
        case 1:
            await asyncio.sleep(60)  # never reads
    await command.wait()


async def test_clients_that_go_away_leave_nothing(url: str | None) -> None:
    mark = secrets.token_hex(16)
    made = random.Random(0)
    async with holdfast.connect(*([] if url is None else [url])) as env:
        await env.run("true")
        before, tasks_before = descriptors(), len(asyncio.all_tasks())
        for _ in range(COUNT // AT_ONCE):
            await use(env, mark, made, AT_ONCE)
        await asyncio.to_thread(until_nothing, lambda: left_running(mark))
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        await until(lambda: descriptors() <= before)
