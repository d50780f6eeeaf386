"""Real processes, one at a time: output, input, signals and ends."""

import asyncio
import errno
import os
import select
from pathlib import Path

import pytest
from msgspec import UNSET

from holdfast.backends import Ready
from holdfast.base.errors import (
    InvalidRequest,
    OperationFailed,
)
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import Reason, Verdict
from holdfast.wire.protocol.process import (
    OutputChunk,
    ProcessSummary,
    TerminalSize,
    WriteStatus,
)
from holdfast.wire.protocol.sandbox import DisabledProfile, SandboxContext
from tests.unit.engine.process.starting import (
    LIMIT,
    closed,
    eventually,
    exited,
    launch,
    numbered,
    output,
    program,
    read,
    shell,
    written,
)

ACCEPTED = WriteStatus.ACCEPTED


def let_go(fifo: Path) -> None:
    """Write the line that a script waits for."""
    fifo.write_text("\n")


def wait_for_exit(process: LocalProcess, flags: int = 0) -> None:
    """Wait as another part of this process might, behind the back of the engine."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | flags)


# Output and ends.


@pytest.mark.requirement("output.exit-code", "output.seq", "output.one-end")
async def test_a_process_writes_exits_and_is_closed(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("echo out; echo err >&2; exit 7"))
    assert process.running
    assert await closed(process) == Verdict(reason=Reason.EXITED, exit_code=7)
    assert output(process, "stdout") == b"out\n"
    assert output(process, "stderr") == b"err\n"
    assert [entry.seq for entry in numbered(process)] == [1, 2, 3, 4]
    assert not process.running


@pytest.mark.requirement("output.exit-code")
@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize(("status", "code"), [(0, 0), (255, 255), (256, 0), (259, 3)])
async def test_an_exit_code_is_taken_modulo_256(
    processes: ProcessRegistry, tty: bool, status: int, code: int
) -> None:
    process = launch(processes, shell(f"exit {status}", tty=tty))
    assert (await closed(process)).exit_code == code


@pytest.mark.requirement("output.exit-code.signal")
@pytest.mark.parametrize(("tty", "code"), [(False, 128 + 9), (True, 1)])
async def test_a_signal_has_its_code(processes: ProcessRegistry, tty: bool, code: int) -> None:
    process = launch(processes, shell("kill -9 $$", tty=tty))
    assert await closed(process) == Verdict(reason=Reason.SIGNALED, exit_code=code, signal=9)


async def test_output_written_before_the_exit_is_told_before_it(processes: ProcessRegistry) -> None:
    for number in range(20):
        process = launch(processes, shell("echo done", process_id=str(number)))
        await closed(process)
        first, second, _ = numbered(process)
        assert isinstance(first, OutputChunk)
        assert (first.seq, second.seq) == (1, 2)


async def test_an_exit_status_that_was_taken_by_another_part_is_told(
    processes: ProcessRegistry,
) -> None:
    process = launch(processes, shell("exit 3"))
    wait_for_exit(process)
    verdict = await closed(process)
    assert (verdict.reason, verdict.exit_code) == (Reason.LOST, -1)
    assert "taken by another part" in str(verdict)


# The terminal.


async def test_a_terminal_may_be_given_a_size_and_be_resized(processes: ProcessRegistry) -> None:
    script = "trap 'stty size; exit' WINCH; stty size; while :; do read x; done"
    size = TerminalSize(rows=10, cols=20)
    process = launch(processes, shell(script, tty=True, terminal_size=size))
    await written(process, b"10 20\r\n")
    await process.resize(30, 40)
    await closed(process)
    assert b"30 40\r\n" in output(process)
    await process.resize(1, 1)  # harmless


async def test_only_a_terminal_can_be_resized(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("read x", pipe_stdin=True))
    with pytest.raises(InvalidRequest, match="process p has no terminal to resize"):
        await process.resize(24, 80)


async def test_a_process_that_lets_go_of_its_terminal_is_not_hung_up_on(
    processes: ProcessRegistry, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    script = "exec <&- >&- 2>&-; read x < go; echo back > /dev/tty; exit 5"
    process = launch(processes, shell(script, tty=True, cwd=str(tmp_path)))
    # Nobody has the terminal open now, and the engine has seen it.
    (reader,) = process._outputs
    await eventually(lambda: reader._deserted)
    let_go(tmp_path / "go")
    assert await closed(process) == Verdict(reason=Reason.EXITED, exit_code=5)
    assert output(process) == b"back\r\n"


# Reads.


async def test_a_read_without_time_answers_at_once(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("read x", pipe_stdin=True))
    assert isinstance(process.read(0, None, 0), Ready)


async def test_many_readers_wait_at_once(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("read x; echo $x", pipe_stdin=True))
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read(process)) for _ in range(5)]
        await asyncio.sleep(0)
        await process.write(b"all\n", "1")
    assert {reader.result().chunks[0].chunk for reader in readers} == {b"all\n"}


async def test_output_is_held_until_nobody_holds_it(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("echo one; read x; echo two; read x", pipe_stdin=True))
    await written(process, b"one")
    first, second = object(), object()
    process.log.hold(first)
    process.log.hold(second)
    await process.write(b"\n", "1")
    process.log.release(first)
    assert (await read(process, after_seq=1, wait=0.001)).chunks == []
    process.log.release(second)
    await written(process, b"two")


async def test_a_process_whose_output_is_held_tells_it_before_its_exit(
    processes: ProcessRegistry,
) -> None:
    process = launch(processes, shell("echo out"))
    process.log.hold(processes)
    await closed(process)  # nobody else had its pipes open, so their end was met too
    assert [type(entry).__name__ for entry in process.log.entries()] == [
        "OutputChunk",
        "StreamEnded",
        "StreamEnded",
        "Exited",
        "Closed",
    ]
    process.log.release(processes)  # harmless


async def test_a_hold_goes_on_after_the_exit_for_what_others_write(
    processes: ProcessRegistry, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    script = "(read x < go; echo late) & echo early"
    process = launch(processes, shell(script, cwd=str(tmp_path)))
    process.log.hold(processes)
    await exited(process)
    assert output(process) == b"early\n"
    child = process._outputs[0]._fd
    let_go(tmp_path / "go")
    ready = select.poll()
    ready.register(child, select.POLLIN)
    assert ready.poll(LIMIT * 1000)  # it has written
    await asyncio.sleep(0)
    assert output(process) == b"early\n"
    process.log.release(processes)
    await closed(process)
    assert output(process) == b"early\nlate\n"


async def test_a_release_by_one_who_never_held_changes_nothing(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("read x; echo two; read x", pipe_stdin=True))
    holder = object()
    process.log.hold(holder)
    process.log.hold(holder)  # the same one again
    process.log.release(object())
    await process.write(b"\n", "1")
    assert (await read(process, wait=0.001)).chunks == []
    process.log.release(holder)
    await written(process, b"two")
    process.log.release(holder)  # harmless


async def test_a_hold_after_the_close_is_harmless(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("exit 0"))
    await closed(process)
    process.log.hold(processes)
    process.log.release(processes)
    assert process.log.closed


# Input.


@pytest.mark.requirement("write.stdin-closed", "start.state.stdin")
async def test_a_process_without_an_input_reads_nothing(processes: ProcessRegistry) -> None:
    process = launch(processes, program("/bin/cat"))
    assert await process.write(b"x", "1") is WriteStatus.STDIN_CLOSED
    assert (await closed(process)).exit_code == 0
    await process.close_stdin()  # harmless


@pytest.mark.requirement("write.accepted", "start.state.stdin")
async def test_an_input_stays_open_until_it_is_closed(processes: ProcessRegistry) -> None:
    process = launch(processes, program("/bin/cat", pipe_stdin=True))
    await process.write(b"one", "1")
    await written(process, b"one")
    await process.write(b"two", "2")
    await process.close_stdin()
    assert await process.write(b"three", "3") is WriteStatus.STDIN_CLOSED
    await closed(process)
    assert output(process) == b"onetwo"


async def test_the_input_of_a_terminal_cannot_be_closed(processes: ProcessRegistry) -> None:
    process = launch(processes, program("/bin/cat", tty=True))
    with pytest.raises(InvalidRequest, match="write the byte 0x04"):
        await process.close_stdin()


@pytest.mark.requirement("write.vanishes")
@pytest.mark.parametrize("tty", [False, True])
async def test_writes_after_the_end_are_accepted_and_vanish(
    processes: ProcessRegistry, tty: bool
) -> None:
    process = launch(processes, shell("exit 0", tty=tty, pipe_stdin=True))
    await closed(process)
    assert await process.write(b"x", "1") is ACCEPTED


# Signals and termination.


async def test_a_signal_to_what_has_exited_unnoticed_does_nothing(
    processes: ProcessRegistry,
) -> None:
    process = launch(processes, shell("exit 0"))
    wait_for_exit(process, os.WNOWAIT)
    await process.signal("SIGTERM")
    assert (await closed(process)).reason is Reason.EXITED


async def test_a_signal_the_system_refuses_is_told(
    processes: ProcessRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(group: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "no")

    process = launch(processes, shell("read x", pipe_stdin=True))
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", refuse)
        with pytest.raises(OperationFailed) as caught:
            await process.signal("SIGTERM")
    assert str(caught.value) == "failed to signal process: Operation not permitted (os error 1)"


async def test_the_first_reason_for_a_kill_is_the_one_that_counts(
    processes: ProcessRegistry,
) -> None:
    process = launch(processes, shell("read x", pipe_stdin=True))
    process.kill(Reason.SESSION_EXPIRED)
    process.kill(Reason.SERVER_STOPPING)
    assert (await closed(process)).reason is Reason.SESSION_EXPIRED


@pytest.mark.parametrize("tty", [False, True])
async def test_an_owner_that_goes_away_kills_what_is_left_of_a_group(
    processes: ProcessRegistry, tty: bool
) -> None:
    process = launch(processes, shell("trap '' HUP; sleep 60 & echo $!", tty=tty))
    await exited(process)
    process.kill_group(Reason.SERVER_STOPPING)
    assert process.log.closed
    process.kill_group(Reason.SERVER_STOPPING)  # harmless


# For a list.


async def test_a_summary_names_the_sandbox(processes: ProcessRegistry) -> None:
    context = SandboxContext(permissions=DisabledProfile(), windows_sandbox_level="disabled")
    waiting = processes.launch(program("/bin/true", sandbox=context))
    process = waiting if isinstance(waiting, LocalProcess) else await waiting
    # As on the wire: it was asked for, although this profile isolates nothing.
    assert process.summary().sandbox_type == "linuxSeccomp"
    assert process.summary().enforcement is UNSET
    await closed(process)


async def test_a_summary_tells_how_a_process_stands(processes: ProcessRegistry) -> None:
    process = launch(processes, program("/bin/cat", pipe_stdin=True))
    expected = ProcessSummary(
        process_id="p",
        pid=process.pid,
        argv=["/bin/cat"],
        tty=False,
        running=True,
        closed=False,
        exit_code=None,
        reason=None,
        next_seq=1,
        sandbox_type="none",
        enforcement=UNSET,
    )
    assert process.summary() == expected
    await process.terminate()
    await closed(process)
    ended = process.summary()
    assert (ended.running, ended.closed, ended.exit_code, ended.reason, ended.next_seq) == (
        False,
        True,
        137,
        "terminated",
        3,
    )
