"""Starts processes of the contract tests and follows them."""

import asyncio
from dataclasses import dataclass
from typing import Any

from holdfast.backends import ExecProcess
from holdfast.events import Closed, Exited, ProcessEvent
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputChunk, StartParams
from tests.contract.conftest import Subject
from tests.e2e.wire import LIMIT, PATH

__all__ = ["Output", "Run", "check", "finish", "program", "run", "shell"]


def program(
    *argv: str, process_id: str = "p", cwd: str = "file:///", **options: Any
) -> StartParams:
    return StartParams(
        process_id=process_id,
        argv=list(argv),
        cwd=PathUri.parse(cwd),
        env={"PATH": PATH, "HOME": "/"},
        tty=options.pop("tty", False),
        **options,
    )


def shell(script: str, **options: Any) -> StartParams:
    return program("/bin/sh", "-c", script, **options)


@dataclass(frozen=True)
class Run:
    """All that came of a process."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    pty: bytes


async def finish(process: ExecProcess) -> Run:
    """Follow a process to its close, and check what holds for every one of them."""
    async with asyncio.timeout(2 * LIMIT):
        events = [event async for event in process.events()]
    return check(events)


def check(events: list[ProcessEvent]) -> Run:
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    (exited,) = [event for event in events if isinstance(event, Exited)]
    assert [event for event in events if isinstance(event, Closed)] == [events[-1]]
    streams = {"stdout": b"", "stderr": b"", "pty": b""}
    for event in events:
        if isinstance(event, OutputChunk):
            assert event.chunk
            streams[event.stream] += event.chunk
    return Run(exited.verdict.exit_code, **streams)


async def run(subject: Subject, params: StartParams) -> Run:
    async with asyncio.timeout(LIMIT):
        process = await subject.backend.start(params)
    return await finish(process)


class Output:
    """The output of a process as it comes."""

    def __init__(self, process: ExecProcess) -> None:
        self._events = process.events()
        self.seen: list[ProcessEvent] = []

    @property
    def data(self) -> bytes:
        return b"".join(event.chunk for event in self.seen if isinstance(event, OutputChunk))

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(LIMIT):
            while text not in self.data:
                self.seen.append(await anext(self._events))

    async def exited(self) -> None:
        async with asyncio.timeout(LIMIT):
            while not any(isinstance(event, Exited) for event in self.seen):
                self.seen.append(await anext(self._events))

    async def finish(self) -> Run:
        async with asyncio.timeout(LIMIT):
            self.seen += [event async for event in self._events]
        return check(self.seen)
