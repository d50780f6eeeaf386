"""One command and its reader: where a call that reads it itself stops."""

import asyncio

import pytest

from holdfast.agent.unified_exec.sessions.command_session import CommandSession
from holdfast.testing import FakeProcess

pytestmark = [pytest.mark.virtual_time, pytest.mark.requirement("tools.races")]


def session_of(process: FakeProcess) -> CommandSession:
    return CommandSession(
        process,
        session_id=1_000,
        call_id="call",
        script="x",
        argv=("sh", "-c", "x"),
        cwd="/",
        tty=False,
        environment_id="local",
        started=asyncio.get_running_loop().time(),
    )


async def test_the_end_of_the_output_is_read_if_it_came_with_the_exit() -> None:
    """It is no wait, so a command that ends at once has a wall time of zero."""
    process = FakeProcess()
    session = session_of(process)
    process.output(b"all")
    process.end(0)
    await session.read(until=session.exited)
    assert session.settled.is_set()
    assert session.read_up
    assert session.output.report().head == b"all"


async def test_output_that_a_child_holds_is_left_to_the_next_reader() -> None:
    process = FakeProcess()
    session = session_of(process)
    child = process.child(holds_output=True)
    process.end(0)
    process.output(b"late")
    await session.read(until=session.exited)
    assert not session.settled.is_set()
    assert session.output.unreported.head == b"late"
    process.output(b" and later")
    child.exit()
    await session.read(until=session.settled)
    assert session.output.report().head == b"late and later"
