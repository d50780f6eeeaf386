"""The end of the tools, and of one session, leaves no task behind."""

import asyncio

from holdfast.agent.unified_exec import ExecResult, ToolError, UnifiedExec
from holdfast.environments.local_environment import LocalEnvironment


async def test_the_reader_of_a_killed_command_ends_with_it() -> None:
    before = asyncio.all_tasks()
    async with LocalEnvironment() as environment, UnifiedExec(environment) as tools:
        calls = [
            tools.call("exec_command", {"cmd": "sleep 600", "yield_time_ms": 250, "login": False})
            for _ in range(3)
        ]
        ids = [
            result.session_id
            for result in await asyncio.gather(*calls)
            if isinstance(result, ExecResult)
        ]
        assert ids[0] is not None
        tools.terminate(ids[0])
        tools.clean()
        async with asyncio.timeout(4):  # less than closing waits for what does not end
            await tools.aclose()
    assert asyncio.all_tasks() <= before


async def test_a_closed_environment_starts_nothing() -> None:
    environment = LocalEnvironment()
    async with UnifiedExec(environment) as tools:
        given = {"cmd": "true", "login": False}
        async with environment:
            assert isinstance(await tools.call("exec_command", given), ExecResult)
        result = await tools.call("exec_command", given)
        assert isinstance(result, ToolError)
        assert "environment `local` is closed" in result.message
