"""
SWE-ReX: `LocalRuntime.execute`.

It runs a program outside a shell session, as the others do. It has no cap, and waits for the
command in the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from swerex.runtime.abstract import Command  # type: ignore[import-not-found]
from swerex.runtime.local import LocalRuntime  # type: ignore[import-not-found]

from bench.subjects.harness import Output, main


class _SweRex:
    def __init__(self, runtime: LocalRuntime) -> None:
        self._runtime = runtime

    async def program(self, argv: Sequence[str]) -> int | None:
        done = await self._runtime.execute(Command(command=list(argv)))
        code: int | None = done.exit_code
        return code

    async def shell(self, text: str, cap: int) -> Output:
        done = await self._runtime.execute(Command(command=text, shell=True))
        return Output(exit_code=done.exit_code, kept=done.stdout, total=len(done.stdout))


@asynccontextmanager
async def _subject() -> AsyncIterator[_SweRex]:
    runtime = LocalRuntime()
    try:
        yield _SweRex(runtime)
    finally:
        await runtime.close()


if __name__ == "__main__":
    main(_subject)
