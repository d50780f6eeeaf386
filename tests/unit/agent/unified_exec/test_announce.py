"""Events about the calls of one command, and their order."""

import asyncio

import pytest

from holdfast.agent.unified_exec import CommandBegan, CommandEnded, InputSent, UnifiedExec
from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments, WriteArguments
from holdfast.testing import FakeEnvironment

pytestmark = [pytest.mark.virtual_time, pytest.mark.requirement("unified.12.interaction")]


@pytest.mark.parametrize(
    ("chars", "told"),
    [
        # A poll that reports the end is no interaction, in contrast to one before it.
        ("", [CommandBegan, InputSent, CommandEnded]),
        ("x", [CommandBegan, InputSent, InputSent, CommandEnded]),
    ],
)
async def test_an_interaction_is_told_before_the_end(chars: str, told: list[type]) -> None:
    environment = FakeEnvironment()
    async with UnifiedExec(environment) as tools, tools.listen() as events:
        begun = await tools.exec_command(ExecArguments(cmd="x", tty=True, yield_time_ms=250))
        assert begun.session_id is not None
        (process,) = environment.backend.processes
        poll = WriteArguments(session_id=begun.session_id)
        assert (await tools.write_stdin(poll)).session_id == begun.session_id
        asyncio.get_running_loop().call_later(0.2, process.end, 7)
        last = WriteArguments(session_id=begun.session_id, chars=chars)
        assert (await tools.write_stdin(last)).exit_code == 7
    assert [type(event) async for event in events] == told
