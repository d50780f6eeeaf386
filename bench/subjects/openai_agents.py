"""
openai-agents: `exec` of a sandbox session on this machine (`UnixLocalSandboxClient`), which has no
cap.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from agents.sandbox.sandboxes.unix_local import (  # type: ignore[import-not-found]
    UnixLocalSandboxClient,
)
from agents.sandbox.session import SandboxSession  # type: ignore[import-not-found]

from bench.subjects.harness import Output, main


class _Agents:
    def __init__(self, session: SandboxSession) -> None:
        self._session = session

    async def program(self, argv: Sequence[str]) -> int | None:
        done = await self._session.exec(*argv, shell=False)
        code: int | None = done.exit_code
        return code

    async def shell(self, text: str, cap: int) -> Output:
        done = await self._session.exec(text)
        return Output(exit_code=done.exit_code, kept=done.stdout, total=len(done.stdout))


@asynccontextmanager
async def _subject() -> AsyncIterator[_Agents]:
    client = UnixLocalSandboxClient()
    session = await client.create()
    try:
        await session.start()
        yield _Agents(session)
    finally:
        await client.delete(session)


if __name__ == "__main__":
    main(_subject)
