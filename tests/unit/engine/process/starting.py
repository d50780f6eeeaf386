"""Helpers for tests of the engine: params of a start, and waiting for what a process does."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.process_table import ProcessTable
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import ProcessEvent, StreamEnded, Verdict
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputStream, ReadResponse, StartParams

LIMIT = 5.0
"""Seconds any wait may take."""

PATH = "/usr/bin:/bin"


def program(
    *argv: str,
    process_id: str = "p",
    cwd: str = "/",
    env: Mapping[str, str] | None = None,
    tty: bool = False,
    **more: Any,
) -> StartParams:
    """A program to start."""
    return StartParams(
        process_id=process_id,
        argv=list(argv),
        cwd=PathUri.from_path(cwd),
        env={"PATH": PATH} if env is None else dict(env),
        tty=tty,
        **more,
    )


def shell(script: str, **more: Any) -> StartParams:
    """A script for `/bin/sh`."""
    return program("/bin/sh", "-c", script, **more)


def launch(processes: ProcessTable, params: StartParams) -> LocalProcess:
    """Start what needs no waiting."""
    for _ in range(10):
        process = processes.launch(params)
        if isinstance(process, LocalProcess):
            return process
        # The kernel gives a look-up in its caches up when it is disturbed. A start that is
        # dropped leaves no trace.
        del process
    raise AssertionError("its files are not at hand")


async def started(processes: ProcessRegistry, params: StartParams) -> LocalProcess:
    """Start anything."""
    process = processes.launch(params)
    async with asyncio.timeout(LIMIT):
        return await process if isinstance(process, Awaitable) else process


async def read(
    process: LocalProcess, after_seq: int = 0, max_bytes: int | None = None, wait: float = LIMIT
) -> ReadResponse:
    async with asyncio.timeout(LIMIT):
        return await process.read(after_seq, max_bytes, wait)


async def closed(process: LocalProcess) -> Verdict:
    """Wait until nothing more comes; how it ended."""
    async with asyncio.timeout(LIMIT):
        await process.wait()
    assert process.log.verdict is not None
    return process.log.verdict


async def exited(process: LocalProcess) -> Verdict:
    """Wait for the exit, not for the close."""
    async with asyncio.timeout(LIMIT):
        while process.log.verdict is None:
            changed = asyncio.Event()
            process.log.wake_once(changed.set)
            await changed.wait()
    return process.log.verdict


async def written(process: LocalProcess, text: bytes) -> bytes:
    """Wait until a text is in the output; all of it so far."""
    async with asyncio.timeout(LIMIT):
        while text not in output(process):
            assert not process.log.closed, output(process)
            changed = asyncio.Event()
            process.log.wake_once(changed.set)
            await changed.wait()
    return output(process)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what nothing tells of: a timer of the engine's own."""
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


def numbered(process: LocalProcess) -> list[ProcessEvent]:
    """Everything in the log that has a number of its own."""
    return [entry for entry in process.log.entries() if not isinstance(entry, StreamEnded)]


def output(process: LoggedProcess, stream: OutputStream | None = None) -> bytes:
    """Return the retained output, of one stream or of all."""
    chunks = process.log.read().chunks
    return b"".join(c.chunk for c in chunks if stream is None or c.stream == stream)
