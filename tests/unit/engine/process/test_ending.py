"""Termination: what is read before the end, what is kept open, and what was left behind."""

import asyncio
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import InvalidParams, OperationFailed
from holdfast.engine.process.io.log import LogListener
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import Exited, Reason, Verdict
from holdfast.wire.protocol.process import OutputChunk, ProcessLimits, StartParams
from tests.unit.engine.process.starting import (
    LIMIT,
    closed,
    eventually,
    exited,
    launch,
    output,
    program,
    shell,
    started,
    written,
)

FULL = 1 << 20
"""Bytes; as large as a pipe can be made by anybody."""

FILL_BOTH = f"""
import fcntl, os, time
for fd in (1, 2):
    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, {FULL})
    os.write(fd, bytes({FULL}))
{{then}}
"""


class Story(LogListener):
    """Bytes of each stream before the exit and after it, whatever the log retains."""

    def __init__(self, process: LocalProcess) -> None:
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}
        self._now = self.before
        process.log.subscribe(self)

    def output(self, chunk: OutputChunk) -> None:
        self._now[chunk.stream] = self._now.get(chunk.stream, 0) + len(chunk.chunk)

    def exited(self, seq: int, verdict: Verdict) -> None:
        self._now = self.after


class Watched:
    """A process that is nobody's child here: a descriptor tells of its end."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = os.pidfd_open(pid)

    async def ended(self) -> None:
        """Wait for its end, whether its parent reaps it or not."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(self.fd, over.set)
        try:
            async with asyncio.timeout(LIMIT):
                await over.wait()
        finally:
            loop.remove_reader(self.fd)

    @property
    def alive(self) -> bool:
        with open(f"/proc/{self.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)
        os.close(self.fd)


@pytest.fixture
def watch() -> Iterator["Watching"]:
    with ExitStack() as stack:
        yield Watching(stack)


class Watching:
    """Watches processes by their pids, and ends them after the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    async def __call__(self, process: LocalProcess) -> Watched:
        """Watch the one whose pid is a line of the output."""

        def told() -> list[int]:
            lines = output(process).splitlines(keepends=True)
            return [int(line) for line in lines if line.endswith(b"\n") and line.strip().isdigit()]

        await eventually(lambda: bool(told()))
        found = Watched(told()[0])
        self._stack.callback(found.kill)
        return found


def reap(pid: int) -> None:
    """Wait for a child as another part of this process might, behind the back of the engine."""
    os.waitid(os.P_PID, pid, os.WEXITED)


async def until_full(process: LocalProcess) -> None:
    """Wait until both pipes of a process hold all that they can, unread."""

    def full() -> bool:
        waiting = [
            struct.unpack("i", fcntl.ioctl(output._fd, termios.FIONREAD, bytes(4)))[0]
            for output in process._outputs
        ]
        return waiting == [FULL, FULL]

    await eventually(full)


def filling(then: str, **more: Any) -> StartParams:
    code = FILL_BOTH.format(then=then)
    return program("/usr/bin/python3", "-I", "-S", "-c", code, **more)


def held(processes: ProcessRegistry, then: str, **more: Any) -> tuple[LocalProcess, Story]:
    """A process that fills both of its pipes while its reader is behind."""
    process = launch(processes, filling(then, **more))
    story = Story(process)
    process.log.hold(story)
    return process, story


# What is in the pipes.


@pytest.mark.parametrize("streams", ["close", "keep"])
async def test_a_kill_throws_nothing_away_that_is_in_the_pipes(
    processes: ProcessRegistry, streams: Any
) -> None:
    process, story = held(processes, "time.sleep(60)")
    await until_full(process)
    assert await process.terminate(streams=streams)
    await closed(process)
    assert story.before == {"stdout": FULL, "stderr": FULL}
    assert story.after == {}


async def test_an_exit_is_told_after_what_was_written_whoever_is_behind(
    processes: ProcessRegistry,
) -> None:
    process, story = held(processes, "raise SystemExit(3)")
    assert (await closed(process)).exit_code == 3
    assert story.before == {"stdout": FULL, "stderr": FULL}
    assert story.after == {}


async def test_a_limit_throws_nothing_away_that_it_allows(processes: ProcessRegistry) -> None:
    limits = ProcessLimits(wall_time_ms=60_000, output_bytes=FULL)
    process = await started(processes, filling("time.sleep(60)", limits=limits))
    story = Story(process)
    process.log.hold(story)
    await until_full(process)
    process.log.release(story)
    assert (await closed(process)).reason is Reason.LIMIT
    assert sum(story.before.values()) == FULL


@pytest.mark.parametrize("tty", [False, True])
async def test_a_flood_from_the_background_does_not_hold_up_the_exit(
    processes: ProcessRegistry, tty: bool
) -> None:
    script = "trap '' HUP; yes & exit 4"
    process = launch(processes, shell(script, tty=tty))
    story = Story(process)
    assert (await exited(process)).exit_code == 4
    process.log.hold(story)
    assert not process.log.closed
    assert await process.terminate(left=True)
    await closed(process)
    assert sum(story.before.values()) <= (2 << 20) + (64 << 10) + (1 << 20)


# Streams.


async def test_kept_streams_are_read_until_their_end(
    processes: ProcessRegistry, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    script = "setsid sh -c 'echo ready; read x < go; echo late' & wait"
    process = launch(processes, shell(script, cwd=str(tmp_path)))
    await written(process, b"ready\n")
    assert await process.terminate(streams="keep")
    assert (await exited(process)).reason is Reason.TERMINATED
    assert not process.log.closed
    (tmp_path / "go").write_text("\n")
    await closed(process)
    assert output(process) == b"ready\nlate\n"


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("when", ["before the exit", "after the exit"])
async def test_kept_streams_can_be_closed_later(
    processes: ProcessRegistry, watch: Watching, tty: bool, when: str
) -> None:
    process = launch(processes, shell("setsid sh -c 'echo $$; exec sleep 60' & wait", tty=tty))
    other = await watch(process)
    assert await process.terminate(streams="keep")
    if when == "before the exit" and not tty:
        assert await process.terminate()  # its end was not noticed yet
    else:
        await exited(process)
        assert not process.log.closed
        assert not await process.terminate(streams="keep")
        assert not process.log.closed
        assert not await process.terminate()  # there is nothing left to kill
    assert (await closed(process)).reason is Reason.TERMINATED
    assert other.alive


async def test_what_waits_in_kept_streams_is_read_before_they_are_closed(
    processes: ProcessRegistry, watch: Watching, tmp_path: Path
) -> None:
    script = "setsid sh -c 'echo $$; read x < go; echo late; exec sleep 60' & wait"
    os.mkfifo(tmp_path / "go")
    process = launch(processes, shell(script, cwd=str(tmp_path)))
    await watch(process)
    await process.terminate(streams="keep")
    await exited(process)
    process.log.hold(processes)
    (tmp_path / "go").write_text("\n")
    fd = process._outputs[0]._fd
    await eventually(lambda: fcntl.ioctl(fd, termios.FIONREAD, bytes(4)) != bytes(4))
    assert not await process.terminate()
    assert process.log.closed
    assert output(process).endswith(b"late\n")


async def test_a_close_that_was_asked_for_is_not_taken_back(
    processes: ProcessRegistry, watch: Watching
) -> None:
    process = launch(processes, shell("setsid sh -c 'echo $$; exec sleep 60' & wait"))
    await watch(process)
    assert await process.terminate()
    assert await process.terminate(streams="keep")
    await closed(process)


@pytest.mark.parametrize("word", ["", "Keep", "both", "close "])
async def test_another_word_for_the_streams_is_refused_and_kills_nothing(
    processes: ProcessRegistry, word: Any
) -> None:
    process = launch(processes, program("/bin/cat", pipe_stdin=True))
    text = f"unknown variant `{word}`, expected `close` or `keep`"
    for process_id in ("p", "unknown"):
        with pytest.raises(InvalidParams) as caught:
            await processes.terminate(process_id, streams=word)
        assert str(caught.value) == text
    with pytest.raises(InvalidParams):
        await process.terminate(streams=word)
    await process.write(b"alive\n", "1")
    await written(process, b"alive\n")


# What was left in the group.


@pytest.mark.parametrize("tty", [False, True])
async def test_what_was_left_in_the_group_is_killed_between_exit_and_close(
    processes: ProcessRegistry, watch: Watching, tty: bool
) -> None:
    process = launch(processes, shell("trap '' HUP; sleep 60 & echo $!", tty=tty))
    other = await watch(process)
    assert (await exited(process)).exit_code == 0
    assert not await process.terminate()
    assert other.alive
    assert await process.terminate(left=True)
    await other.ended()
    assert (await closed(process)).reason is Reason.EXITED


async def test_what_was_left_may_be_killed_and_read_to_its_end(
    processes: ProcessRegistry, watch: Watching
) -> None:
    script = "(sleep 60 & echo $!; wait) & (setsid sh -c 'echo apart; exec sleep 60' &)"
    process = launch(processes, shell(script))
    await written(process, b"apart\n")
    other = await watch(process)
    await exited(process)
    assert await process.terminate(left=True, streams="keep")
    await other.ended()
    assert not process.log.closed  # the one that is apart still has it open
    assert not await process.terminate()
    await closed(process)


async def test_what_was_left_is_killed_after_the_close_too(
    processes: ProcessRegistry, watch: Watching
) -> None:
    process = launch(processes, shell("sleep 60 >/dev/null 2>&1 & echo $!"))
    other = await watch(process)
    await closed(process)
    assert not await processes.terminate("p")
    assert other.alive
    assert await processes.terminate("p", left=True)
    await other.ended()
    assert not await processes.terminate("p", left=True)


async def test_nothing_is_left_of_most(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("exit 0"))
    await closed(process)
    assert process._child._left_since is None
    assert not await process.terminate(left=True)
    assert not await processes.terminate("unknown", left=True)


async def test_a_zombie_alone_is_nothing_to_kill_and_the_streams_are_closed(
    processes: ProcessRegistry, watch: Watching
) -> None:
    script = "setsid sh -c 'echo $$; exec sleep 60' & read x"
    process = launch(processes, shell(script, pipe_stdin=True))
    other = await watch(process)
    await process.write(b"\n", "1")
    await exited(process)
    assert not process.log.closed
    assert not await process.terminate(left=True)
    await closed(process)
    assert other.alive


async def test_left_kills_what_runs_as_well(processes: ProcessRegistry, watch: Watching) -> None:
    process = launch(processes, shell("sleep 60 & echo $!; wait"))
    other = await watch(process)
    assert await process.terminate(left=True)
    await other.ended()
    assert (await closed(process)).reason is Reason.TERMINATED


async def test_a_group_whose_leader_somebody_else_has_reaped_is_left_alone(
    processes: ProcessRegistry, watch: Watching
) -> None:
    process = launch(processes, shell("sleep 60 & echo $!; read x", pipe_stdin=True))
    other = await watch(process)
    await process.write(b"\n", "1")
    reap(process.pid)
    assert (await exited(process)).reason is Reason.LOST
    assert not await process.terminate(left=True)
    assert other.alive
    assert not await process.terminate(left=True)  # now that it is closed


async def test_a_refusal_of_the_system_is_told(
    processes: ProcessRegistry, watch: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(group: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "no")

    process = launch(processes, shell("sleep 60 & echo $!"))
    other = await watch(process)
    await exited(process)
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", refuse)
        with pytest.raises(OperationFailed, match="failed to signal process"):
            await process.terminate(left=True)
    assert other.alive
    assert await process.terminate(left=True)
    await closed(process)
    assert isinstance(process.log.entries()[1], Exited)
