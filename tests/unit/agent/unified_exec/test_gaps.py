"""Output that a server keeps no longer: its loss is told, and the command goes on."""

import asyncio

import pytest

from holdfast.agent.unified_exec import OutputMissing, UnifiedExec
from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments, WriteArguments
from holdfast.testing import FakeBackend, FakeEnvironment

pytestmark = pytest.mark.virtual_time


async def test_a_gap_is_told_once_and_the_command_goes_on() -> None:
    environment = FakeEnvironment(FakeBackend.codex())
    async with environment, UnifiedExec(environment) as tools, tools.listen() as events:
        begun = await tools.exec_command(ExecArguments(cmd="x", yield_time_ms=250))
        assert begun.session_id is not None
        assert not begun.output_lost
        (process,) = environment.backend.processes
        process.output(b"before ")
        process.gap(3)
        process.output(b"after")
        poll = WriteArguments(session_id=begun.session_id)
        result = await tools.write_stdin(poll)
        assert (result.output, result.output_lost) == ("before after", True)
        while not isinstance(event := await anext(events), OutputMissing):
            pass
        assert (event.session_id, event.first_seq, event.last_seq) == (begun.session_id, 2, 4)
        # It is told of the call in which it happened, and of no later one.
        asyncio.get_running_loop().call_later(1, process.end, 7)
        result = await tools.write_stdin(poll)
        assert (result.exit_code, result.output_lost) == (7, False)
