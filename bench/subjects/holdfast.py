"""Holdfast: `run` of the local environment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import holdfast
from bench.subjects.harness import Output, main
from holdfast.environments.environment import Environment


class _Holdfast:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def program(self, argv: Sequence[str]) -> int | None:
        return (await self._environment.run(argv)).exit_code

    async def shell(self, text: str, cap: int) -> Output:
        done = await self._environment.run(text, cap=cap)
        kept = done.captured_stdout
        return Output(exit_code=done.exit_code, kept=bytes(kept), total=kept.size)


@asynccontextmanager
async def _subject() -> AsyncIterator[_Holdfast]:
    async with holdfast.connect() as environment:
        yield _Holdfast(environment)


if __name__ == "__main__":
    main(_subject)
