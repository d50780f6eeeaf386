"""Holdfast: `exec_command` of `UnifiedExec`; floods with a listener that reads all live output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import holdfast
from bench.subjects.tool_harness import main
from holdfast.agent.unified_exec import ExecResult, UnifiedExec
from holdfast.agent.unified_exec.sessions.session_events import Listener, OutputDelta
from holdfast.environments.environment import Environment


class _Tools:
    def __init__(self, tools: UnifiedExec, environment: Environment, argv: list[str]) -> None:
        self._tools = tools
        self._environment = environment
        self._argv = argv

    async def exec_command(self, arguments: str) -> str:
        return (await self._tools.call("exec_command", arguments)).text()

    def run(self) -> Callable[[], Awaitable[object]]:
        return lambda: self._environment.run(self._argv)


async def _read(listener: Listener) -> None:
    async for event in listener:
        if isinstance(event, OutputDelta):
            _ = event.text


@asynccontextmanager
async def _subject(url: str | None, listens: bool) -> AsyncIterator[_Tools]:
    async with holdfast.connect(url) as environment, UnifiedExec(environment) as tools:
        first = await tools.call("exec_command", {"cmd": "true", "login": False})
        assert isinstance(first, ExecResult), first
        ready = _Tools(tools, environment, list(first.command))
        if not listens:
            yield ready
            return
        async with tools.listen() as listener:
            reading = asyncio.ensure_future(_read(listener))
            yield ready
        await reading


if __name__ == "__main__":
    main(_subject)
