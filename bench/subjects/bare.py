"""Python's own subject: `asyncio.create_subprocess_exec`, which keeps all output."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.subjects.harness import Output, main


class _Bare:
    async def program(self, argv: Sequence[str]) -> int | None:
        child = await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        await child.communicate()
        return child.returncode

    async def shell(self, text: str, cap: int) -> Output:
        child = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", text, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
        stdout, _ = await child.communicate()
        return Output(exit_code=child.returncode, kept=stdout, total=len(stdout))


@asynccontextmanager
async def _subject() -> AsyncIterator[_Bare]:
    yield _Bare()


if __name__ == "__main__":
    main(_subject)
