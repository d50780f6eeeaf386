"""
openai-agents: the tool `exec_command` on a sandbox session of this machine.

It does not report live output, and keeps all of it until asked for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agents.sandbox.capabilities.tools import ExecCommandTool  # type: ignore[import-not-found]
from agents.sandbox.sandboxes.unix_local import (  # type: ignore[import-not-found]
    UnixLocalSandboxClient,
)

from bench.subjects.tool_harness import main


class _Tools:
    def __init__(self, tool: ExecCommandTool) -> None:
        self._tool = tool

    async def exec_command(self, arguments: str) -> str:
        text: str = await self._tool.on_invoke_tool(None, arguments)
        return text

    def run(self) -> None:
        return None


@asynccontextmanager
async def _subject(url: str | None, listens: bool) -> AsyncIterator[_Tools]:
    assert url is None, "it has no server"
    client = UnixLocalSandboxClient()
    session = await client.create()
    try:
        await session.start()
        yield _Tools(ExecCommandTool(session=session))
    finally:
        await session.pty_terminate_all()
        await client.delete(session)


if __name__ == "__main__":
    main(_subject)
