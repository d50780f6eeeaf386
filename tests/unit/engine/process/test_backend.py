"""The seam on this machine; what every implementation promises is in the contract tests."""

import asyncio
import gc
import os
import signal
import weakref
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidParams
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import LocalBackend, ProcessRegistry
from holdfast.events import Closed, Exited, Reason
from holdfast.wire.protocol.process import (
    OutputChunk,
    ShellSnapshotParams,
    ShellSnapshotShell,
    WriteStatus,
    signal_number,
)
from tests.unit.engine.process.starting import LIMIT, PATH, eventually, program, shell


@pytest.mark.requirement("signal.interrupt", "signal.unknown-name")
def test_a_signal_has_the_name_of_the_protocol_or_of_the_system() -> None:
    assert signal_number("interrupt") == signal.SIGINT
    assert signal_number("SIGTERM") == signal.SIGTERM
    assert signal_number("SIGRTMIN") == signal.SIGRTMIN


@pytest.mark.requirement("signal.unknown-name")
@pytest.mark.parametrize(
    "name", ["kill", "Interrupt", "", "SIG", "SIGNOPE", "SIG_IGN", "9", "INT", "sigint"]
)
def test_any_other_name_is_an_unknown_variant(name: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        signal_number(name)
    assert str(caught.value) == f"unknown variant `{name}`, expected `interrupt`"


@pytest.fixture
def backend(processes: ProcessRegistry) -> LocalBackend:
    return LocalBackend(processes)


async def events(process: LocalProcess) -> list[object]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in process.events()]


async def test_a_process_has_events_a_verdict_and_a_pid(backend: LocalBackend) -> None:
    process = await backend.start(shell("echo hi; exit 3"))
    output, exited, closed = await events(process)
    assert isinstance(output, OutputChunk)
    assert output.chunk == b"hi\n"
    assert isinstance(exited, Exited)
    assert closed == Closed(3)
    assert await process.wait() == exited.verdict
    assert process.process_id == "p"
    assert process.pid > 0


async def test_a_start_may_have_to_wait(backend: LocalBackend, tmp_path: Path) -> None:
    bash = ShellSnapshotShell(name="bash", path="/bin/bash")
    params = program(
        "/bin/bash",
        "-lc",
        "exit 3",
        env={"HOME": str(tmp_path), "PATH": PATH},
        shell_snapshot=ShellSnapshotParams(scope_id="s", shell=bash),
    )
    async with asyncio.timeout(LIMIT):
        process = await backend.start(params)
        assert (await process.wait()).exit_code == 3


async def test_the_events_of_a_process_that_is_over_are_still_there(backend: LocalBackend) -> None:
    process = await backend.start(shell("echo hi"))
    await process.wait()
    assert await events(process) == await events(process)


async def test_a_reader_that_is_slow_makes_the_process_wait_and_loses_nothing(
    backend: LocalBackend,
) -> None:
    size = 6 << 20
    process = await backend.start(program("/usr/bin/head", "-c", str(size), "/dev/zero"))
    stream = process.events()
    first = await anext(stream)
    assert isinstance(first, OutputChunk)
    # Far more than what is kept: the process can only end while it is read.
    state = await process.read(wait=0.0)
    assert not state.exited
    total = len(first.chunk)
    async with asyncio.timeout(LIMIT):
        async for event in stream:
            if isinstance(event, OutputChunk):
                total += len(event.chunk)
    assert total == size


async def test_a_write_without_an_id_is_never_taken_for_a_repeat(backend: LocalBackend) -> None:
    process = await backend.start(program("/bin/cat", pipe_stdin=True))
    for _ in range(3):
        assert await process.write(b"x") is WriteStatus.ACCEPTED
    assert await process.write(b"y", "mine") is WriteStatus.ACCEPTED
    assert await process.write(b"y", "mine") is WriteStatus.ACCEPTED
    await process.close_stdin()
    await process.wait()
    read = await process.read()
    assert b"".join(chunk.chunk for chunk in read.chunks) == b"xxxy"


async def test_a_write_waits_for_room(backend: LocalBackend, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    script = "read x < go; exec wc -c"
    process = await backend.start(shell(script, cwd=str(tmp_path), pipe_stdin=True))

    async def write_much() -> None:
        for _ in range(200):
            await process.write(bytes(65536))
        await process.close_stdin()

    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write_much())
        await asyncio.sleep(0)
        assert not writing.done()
        (tmp_path / "go").write_text("\n")
    await process.wait()
    (count,) = (await process.read()).chunks
    assert int(count.chunk) == 200 * 65536


async def test_signals_sizes_and_terminations_reach_the_process(backend: LocalBackend) -> None:
    process = await backend.start(program("/bin/cat", tty=True))
    await process.resize(10, 20)
    assert await process.terminate()
    verdict = await process.wait()
    assert (verdict.reason, verdict.signal) == (Reason.TERMINATED, signal.SIGKILL)
    assert not await process.terminate()
    await process.signal("interrupt")  # harmless
    assert await process.write(b"x") is WriteStatus.STDIN_CLOSED


async def test_a_write_that_waits_for_room_learns_of_the_termination(
    backend: LocalBackend,
) -> None:
    process = await backend.start(program("/bin/sleep", "60", pipe_stdin=True))

    async def write_much() -> WriteStatus:
        while True:
            status = await process.write(bytes(65536))
            if status is not WriteStatus.ACCEPTED:
                return status

    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write_much())
        await asyncio.sleep(0)
        assert not writing.done()
        await process.terminate()
    assert writing.result() is WriteStatus.STDIN_CLOSED


async def test_a_process_that_is_over_is_freed_at_once() -> None:
    async with LocalBackend.for_callers() as backend:
        process = await backend.start(shell("echo hi"))
        await events(process)
        await process.wait()
        freed = weakref.ref(process)
        del process
        gc.disable()
        try:
            await eventually(lambda: freed() is None)
        finally:
            gc.enable()


async def test_everything_ends_with_the_backend() -> None:
    async with LocalBackend() as backend:
        process = await backend.start(shell("trap '' TERM HUP; sleep 60", tty=True))
        other = await backend.start(shell("sleep 60 & echo", process_id="q"))
    assert (await process.wait()).reason is Reason.SERVER_STOPPING
    await other.wait()
