"""Real processes, one at a time: output, input, signals and ends."""

import asyncio
import errno
import os
import select
import signal
from collections.abc import Coroutine
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


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def kill(pid: int) -> None:
    """End what a test left in the background on purpose."""
    os.kill(pid, signal.SIGKILL)


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
async def test_an_exit_code_is_taken_modulo_256(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("exit 259"))
    assert (await closed(process)).exit_code == 3


@pytest.mark.requirement("output.exit-code.signal")
@pytest.mark.parametrize(("tty", "code"), [(False, 128 + 9), (True, 1)])
async def test_a_signal_has_its_code(processes: ProcessRegistry, tty: bool, code: int) -> None:
    process = launch(processes, shell("kill -9 $$", tty=tty))
    assert await closed(process) == Verdict(reason=Reason.SIGNALED, exit_code=code, signal=9)


@pytest.mark.requirement("output.late")
async def test_what_is_left_in_the_background_writes_after_the_exit(
    processes: ProcessRegistry, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    script = "(read x < go; echo late) & echo early"
    process = launch(processes, shell(script, cwd=str(tmp_path)))
    await exited(process)
    state = await read(process, wait=0)
    assert (state.exited, state.closed) == (True, False)
    let_go(tmp_path / "go")
    await closed(process)
    assert output(process) == b"early\nlate\n"
    kinds = [type(entry).__name__ for entry in numbered(process)]
    assert kinds == ["OutputChunk", "Exited", "OutputChunk", "Closed"]


@pytest.mark.requirement("output.streams-end-first")
async def test_a_process_that_closes_its_streams_is_closed_by_its_exit(
    processes: ProcessRegistry,
) -> None:
    script = "echo last; exec >&- 2>&-; read x; exit 5"
    process = launch(processes, shell(script, pipe_stdin=True))
    await written(process, b"last\n")
    assert process.running
    await process.write(b"\n", "1")
    assert (await closed(process)).exit_code == 5
    kinds = [type(entry).__name__ for entry in numbered(process)]
    assert kinds == ["OutputChunk", "Exited", "Closed"]


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


@pytest.mark.requirement("pty.one-stream", "pty.size", "pty.pipe-stdin")
async def test_a_terminal_has_one_stream_a_size_and_an_input(processes: ProcessRegistry) -> None:
    script = "stty size; read line; echo got $line >&2"
    process = launch(processes, shell(script, tty=True, pipe_stdin=True))
    assert await process.write(b"this\r", "1") is ACCEPTED
    assert (await closed(process)).exit_code == 0
    assert output(process, "pty") == output(process)
    text = output(process)
    assert b"24 80\r\n" in text
    assert b"got this\r\n" in text


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


@pytest.mark.requirement("pty.interrupt", "pty.controlling")
async def test_typing_control_c_interrupts_the_foreground_job(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("trap 'echo caught' INT; cat; echo after", tty=True))
    await process.write(b"x\r", "1")
    await written(process, b"x\r\nx\r\n")  # the terminal's echo, then cat's: it runs
    await process.write(b"\x03", "2")
    await closed(process)
    assert b"caught\r\nafter" in output(process)


@pytest.mark.requirement("pty.eof")
async def test_typing_control_d_ends_the_input_of_a_terminal(processes: ProcessRegistry) -> None:
    process = launch(processes, program("/bin/cat", tty=True))
    await process.write(b"\x04", "1")
    assert (await closed(process)).exit_code == 0


@pytest.mark.requirement("pty.end")
async def test_a_terminal_is_closed_when_its_last_holder_is_gone(
    processes: ProcessRegistry, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    script = "trap '' HUP; (read x < go; echo late) & echo early"
    process = launch(processes, shell(script, tty=True, cwd=str(tmp_path)))
    await exited(process)
    assert not process.log.closed
    let_go(tmp_path / "go")
    await closed(process)
    assert output(process) == b"early\r\nlate\r\n"


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


@pytest.mark.requirement("pty.end")
async def test_the_end_of_the_leader_hangs_up_on_its_group(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("sleep 60 & echo $!", tty=True))
    await closed(process)  # and not in a minute


# Reads.


@pytest.mark.requirement("read.wait")
async def test_a_read_waits_for_output(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("read x; echo $x", pipe_stdin=True))
    later = process.read(0, None, LIMIT)
    assert isinstance(later, Coroutine)
    reading = asyncio.ensure_future(later)
    await asyncio.sleep(0)
    assert not reading.done()
    await process.write(b"hi\n", "1")
    async with asyncio.timeout(LIMIT):
        found = await reading
    assert [chunk.chunk for chunk in found.chunks] == [b"hi\n"]


@pytest.mark.requirement("read.wait")
async def test_a_read_gives_up_after_its_time(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("read x", pipe_stdin=True))
    found = await read(process, wait=0.001)
    assert (found.chunks, found.next_seq, found.exited, found.closed) == ([], 1, False, False)


async def test_a_read_without_time_answers_at_once(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("read x", pipe_stdin=True))
    assert isinstance(process.read(0, None, 0), Ready)


@pytest.mark.requirement("read.wait.exit", "read.wait.closed")
async def test_a_read_after_the_exit_waits_for_the_close_and_then_no_more(
    processes: ProcessRegistry,
) -> None:
    process = launch(processes, shell("exec sleep 60 & exec true"))
    await exited(process)
    assert isinstance(process.read(0, None, LIMIT), Ready)  # the exit is news
    later = process.read(1, None, LIMIT)
    assert isinstance(later, Coroutine)
    os.killpg(process.pid, signal.SIGKILL)
    async with asyncio.timeout(LIMIT):
        assert (await later).closed
    assert isinstance(process.read(1000, None, LIMIT), Ready)


@pytest.mark.requirement("read.wait.huge")
async def test_a_read_may_wait_for_half_a_billion_years(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("read x", pipe_stdin=True))
    later = process.read(0, None, (2**64 - 1) / 1000)
    assert isinstance(later, Coroutine)
    reading = asyncio.ensure_future(later)
    await asyncio.sleep(0)
    await process.terminate()
    async with asyncio.timeout(LIMIT):
        assert (await reading).exited


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


@pytest.mark.requirement("write.terminated")
@pytest.mark.parametrize("tty", [False, True])
async def test_writes_after_a_termination_are_refused(
    processes: ProcessRegistry, tty: bool
) -> None:
    process = launch(processes, program("/bin/cat", tty=tty, pipe_stdin=True))
    await process.terminate()
    assert await process.write(b"x", "1") is WriteStatus.STDIN_CLOSED
    await closed(process)
    assert await process.write(b"x", "2") is WriteStatus.STDIN_CLOSED
    assert process.input_refused  # on the wire that is an error


# Signals and termination.


@pytest.mark.requirement("signal.interrupt")
@pytest.mark.parametrize(("tty", "code"), [(False, 130), (True, 1)])
async def test_a_signal_ends_what_does_not_catch_it(
    processes: ProcessRegistry, tty: bool, code: int
) -> None:
    process = launch(processes, shell("echo ready; exec sleep 60", tty=tty))
    await written(process, b"ready")
    await process.signal("SIGINT")
    assert await closed(process) == Verdict(reason=Reason.SIGNALED, exit_code=code, signal=2)


@pytest.mark.requirement("signal.interrupt")
async def test_a_signal_reaches_the_children_in_the_group_too(processes: ProcessRegistry) -> None:
    # Between its fork and its exec a child of a shell may still catch what the shell catches.
    script = "trap : TERM; sh -c 'echo ready; exec sleep 60' & wait; wait; exit 4"
    process = launch(processes, shell(script))
    await written(process, b"ready")
    await process.signal("SIGTERM")
    assert (await closed(process)).exit_code == 4  # and not in a minute


@pytest.mark.requirement("signal.gone")
async def test_a_signal_to_what_has_exited_does_nothing(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("sleep 60 & echo $!"))
    await exited(process)
    await process.signal("SIGKILL")
    assert not gone(int(output(process)))
    process.kill_group(Reason.TERMINATED)


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


@pytest.mark.requirement("terminate.kills")
@pytest.mark.parametrize(("tty", "code"), [(False, 137), (True, 1)])
async def test_termination_kills_the_group_without_grace(
    processes: ProcessRegistry, tty: bool, code: int
) -> None:
    script = "trap 'echo no' TERM INT; sleep 60 & echo ready; wait"
    process = launch(processes, shell(script, tty=tty))
    await written(process, b"ready")
    assert await process.terminate()
    assert await closed(process) == Verdict(reason=Reason.TERMINATED, exit_code=code, signal=9)
    assert b"no" not in output(process)


@pytest.mark.requirement("terminate.twice", "terminate.exited")
async def test_termination_says_whether_it_was_running(processes: ProcessRegistry) -> None:
    process = launch(processes, shell("read x", pipe_stdin=True))
    assert await process.terminate()
    assert await process.terminate()  # its end was not noticed yet
    await exited(process)
    assert not await process.terminate()
    await closed(process)
    assert not await process.terminate()


@pytest.mark.requirement("terminate.exited")
async def test_termination_of_what_has_exited_spares_what_it_left(
    processes: ProcessRegistry,
) -> None:
    process = launch(processes, shell("sleep 60 & echo $!"))
    await exited(process)
    assert not await process.terminate()
    assert not gone(int(output(process)))
    assert not process.log.closed
    process.kill_group(Reason.TERMINATED)


@pytest.mark.requirement("terminate.closes-pipes")
async def test_termination_closes_the_pipes_that_a_child_elsewhere_holds(
    processes: ProcessRegistry,
) -> None:
    process = launch(processes, shell("setsid sleep 60 & echo $!; wait"))
    pid = int(await written(process, b"\n"))
    await process.terminate()
    await closed(process)
    assert not gone(pid)
    kill(pid)


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
