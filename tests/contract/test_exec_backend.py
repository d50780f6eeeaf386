"""
Contract of every `ExecBackend`.

Nothing here says where a process runs: on this machine, behind any of our transports,
or on the real Codex server behind our client.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Unsupported
from holdfast.events import ProcessEvent, Reason
from holdfast.wire.protocol.process import TerminalSize, WriteStatus
from tests.contract.conftest import Subject
from tests.contract.running import Output, Run, check, finish, program, run, shell
from tests.e2e.wire import LIMIT, PATH, Fifo, file_uri


@pytest.mark.every_transport
async def test_a_process_tells_its_output_then_its_exit_then_its_close(subject: Subject) -> None:
    process = await subject.backend.start(shell("echo out; echo err >&2; exit 3"))
    assert process.process_id == "p"
    assert await finish(process) == Run(3, b"out\n", b"err\n", b"")
    verdict = await process.wait()
    assert (verdict.reason, verdict.exit_code) == (Reason.EXITED, 3)


@pytest.mark.every_transport
async def test_bytes_stay_what_they_are(subject: Subject) -> None:
    done = await run(subject, shell(r"printf '\000\377\303\050\r\n'"))
    assert done == Run(0, b"\x00\xff\xc3\x28\r\n", b"", b"")


async def test_a_process_without_a_word_has_an_end_too(subject: Subject) -> None:
    assert await run(subject, program("true")) == Run(0, b"", b"", b"")


@pytest.mark.parametrize("code", [0, 1, 255])
async def test_the_exit_code_is_told(subject: Subject, code: int) -> None:
    assert (await run(subject, shell(f"exit {code}"))).exit_code == code


@pytest.mark.parametrize(("tty", "code"), [(False, 128 + 9), (True, 1)])
async def test_a_signal_shows_in_the_exit_code(subject: Subject, tty: bool, code: int) -> None:
    assert (await run(subject, shell("kill -9 $$", tty=tty))).exit_code == code


async def test_the_environment_and_the_folder_are_those_asked_for(
    subject: Subject, tmp_path: Path
) -> None:
    params = program("env", cwd=file_uri(tmp_path))
    done = await run(subject, params)
    assert set(done.stdout.decode().split()) == {f"PATH={PATH}", "HOME=/"}
    assert (await run(subject, program("pwd", process_id="q", cwd=file_uri(tmp_path)))).stdout == (
        f"{tmp_path}\n".encode()
    )


async def test_a_terminal_is_a_terminal_and_has_one_stream(subject: Subject) -> None:
    script = "test -t 0 -a -t 1 -a -t 2 && stty size; echo err >&2; echo tty > /dev/tty; exit 4"
    done = await run(subject, shell(script, tty=True))
    assert done == Run(4, b"", b"", b"24 80\r\nerr\r\ntty\r\n")


# -- input


async def test_input_reaches_a_pipe_once_for_each_id(subject: Subject) -> None:
    process = await subject.backend.start(program("head", "-c", "4", pipe_stdin=True))
    for data, write_id in [(b"a", "x"), (b"a", "x"), (b"other", "x"), (b"", "y"), (b"bcd", "z")]:
        assert await process.write(data, write_id) is WriteStatus.ACCEPTED
    assert (await finish(process)).stdout == b"abcd"


async def test_input_keeps_its_order(subject: Subject) -> None:
    process = await subject.backend.start(program("head", "-n", "500", pipe_stdin=True))
    lines = [b"%d\n" % number for number in range(500)]
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*(process.write(line) for line in lines))
    assert (await finish(process)).stdout == b"".join(lines)


async def test_input_reaches_a_terminal(subject: Subject) -> None:
    process = await subject.backend.start(
        shell("stty -echo; echo ready; read x; echo =$x", tty=True)
    )
    output = Output(process)
    await output.until(b"ready")
    assert await process.write(b"hi\r") is WriteStatus.ACCEPTED
    assert await output.finish() == Run(0, b"", b"", b"ready\r\n=hi\r\n")


async def test_control_c_interrupts_what_runs_in_a_terminal(subject: Subject) -> None:
    script = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    process = await subject.backend.start(shell(script, tty=True))
    output = Output(process)
    await output.until(b"ready")
    await process.write(b"\x03")
    done = await output.finish()
    assert done.exit_code == 5
    assert done.pty.endswith(b"caught\r\n")


async def test_without_input_there_is_nothing_to_write_to(subject: Subject) -> None:
    process = await subject.backend.start(program("cat"))
    assert await process.write(b"x") is WriteStatus.STDIN_CLOSED
    assert await finish(process) == Run(0, b"", b"", b"")


@pytest.mark.every_transport
async def test_more_input_than_anybody_holds_arrives(subject: Subject) -> None:
    size = 3 << 20
    process = await subject.backend.start(shell(f"head -c {size} | wc -c", pipe_stdin=True))

    async def write_all() -> None:
        for _ in range(size >> 16):
            await process.write(bytes(1 << 16))

    async with asyncio.timeout(2 * LIMIT):
        await write_all()
    assert (await finish(process)).stdout.strip() == str(size).encode()


# -- ending


async def test_an_interrupt_reaches_the_group(subject: Subject) -> None:
    script = "trap 'exit 7' INT; echo ready; while :; do sleep 0.05; done"
    process = await subject.backend.start(shell(script))
    output = Output(process)
    await output.until(b"ready")
    await process.signal("interrupt")
    assert (await output.finish()).exit_code == 7


async def test_terminate_kills_at_once(subject: Subject) -> None:
    process = await subject.backend.start(shell("trap '' TERM INT HUP; echo ready; sleep 60"))
    output = Output(process)
    await output.until(b"ready")
    assert await process.terminate() is True
    assert (await output.finish()).exit_code == 137
    assert (await process.wait()).reason is Reason.TERMINATED
    assert await process.terminate() is False
    await process.signal("interrupt")  # of no use, and no error


async def test_terminate_can_take_the_whole_tree(subject: Subject) -> None:
    process = await subject.backend.start(shell("setsid sh -c 'echo $$; exec sleep 60' & wait"))
    output = Output(process)
    await output.until(b"\n")
    below = int(output.data)
    assert await process.terminate(tree=True) is True
    await output.finish()
    if subject.real:
        # Codex ignores the wish and kills the group alone.
        assert subject.is_alive(below)
        subject.kill(below)
    await subject.gone(below)


async def test_output_may_come_after_the_exit(subject: Subject, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        script = f"(read x; echo late) < {go.path} & echo early"
        process = await subject.backend.start(shell(script))
        output = Output(process)
        await output.exited()
        assert b"late" not in output.data
        go.write()
        done = await output.finish()
    assert done == Run(0, b"early\nlate\n", b"", b"")


# -- reading


async def test_reads_go_through_the_output_page_by_page(subject: Subject) -> None:
    process = await subject.backend.start(shell("seq 1 20000"))
    await finish(process)
    whole = await process.read()
    assert (whole.exited, whole.exit_code, whole.closed) == (True, 0, True)
    data, after = b"", 0
    for _ in range(len(whole.chunks)):
        page = await process.read(after, 0)
        (chunk,) = page.chunks
        assert page.next_seq == chunk.seq + 1
        data += chunk.chunk
        after = page.next_seq - 1
    assert (await process.read(after, 0)).chunks == []
    assert data == b"".join(chunk.chunk for chunk in whole.chunks)
    assert data == "".join(f"{number}\n" for number in range(1, 20001)).encode()


async def test_a_read_waits_for_news(subject: Subject, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        process = await subject.backend.start(shell(f"read x < {go.path}; echo news; sleep 60"))
        nothing = await process.read()
        assert (nothing.chunks, nothing.next_seq, nothing.exited) == ([], 1, False)
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(process.read(wait=60.0))
            await process_is_read(reading)
            go.write()
        news = await reading
        assert b"".join(chunk.chunk for chunk in news.chunks) == b"news\n"
        assert not news.exited
        await process.terminate()
        await finish(process)
    over = await process.read(after_seq=1, wait=60.0)  # and for one that is over, not at all
    assert (over.chunks, over.exited, over.closed) == ([], True, True)


async def process_is_read(reading: "asyncio.Task[Any]") -> None:
    """Let the question go out before there is an answer."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert not reading.done()


# -- much at once


@pytest.mark.every_transport
@pytest.mark.slow
async def test_a_slow_reader_loses_nothing(subject: Subject) -> None:
    size = 3 << 20
    process = await subject.backend.start(shell(f"seq 1 2000000 | head -c {size}"))
    events: list[ProcessEvent] = []
    async with asyncio.timeout(4 * LIMIT):
        async for event in process.events():
            events.append(event)
            if len(events) % 50 == 0:
                # Slower than any child writes, and with a question in between.
                for _ in range(20):
                    await asyncio.sleep(0)
                await process.read(max_bytes=0)
    done = check(events)
    expected = "".join(f"{number}\n" for number in range(1, 500000)).encode()[:size]
    assert done.exit_code == 0
    assert done.stdout == expected


@pytest.mark.every_transport
@pytest.mark.slow
async def test_many_run_at_once(subject: Subject) -> None:
    async def one(number: int) -> None:
        name = f"p{number}"
        script = f"echo {number}; echo {number} >&2; exit {number}"
        done = await run(subject, shell(script, process_id=name))
        assert done == Run(number, b"%d\n" % number, b"%d\n" % number, b"")

    async with asyncio.timeout(4 * LIMIT), asyncio.TaskGroup() as tasks:
        for number in range(50):
            tasks.create_task(one(number))


# -- extensions of Holdfast


async def test_the_end_of_input_can_be_told(subject: Subject) -> None:
    process = await subject.backend.start(program("cat", pipe_stdin=True))
    await process.write(b"all")
    if subject.real:
        with pytest.raises(Unsupported):
            await process.close_stdin()
        await process.terminate()
        await finish(process)
    else:
        await process.close_stdin()
        assert await finish(process) == Run(0, b"all", b"", b"")


async def test_a_terminal_can_be_resized(subject: Subject) -> None:
    script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done"
    process = await subject.backend.start(shell(script, tty=True))
    output = Output(process)
    await output.until(b"ready")
    if subject.real:
        with pytest.raises(Unsupported):
            await process.resize(30, 100)
        await process.terminate()
        await output.finish()
    else:
        await process.resize(30, 100)
        assert (await output.finish()).pty == b"ready\r\n30 100\r\n"


async def test_a_terminal_can_begin_with_a_size(subject: Subject) -> None:
    size = TerminalSize(rows=50, cols=132)
    sized = shell("stty size", tty=True, terminal_size=size)
    if subject.real:
        with pytest.raises(Unsupported):
            await subject.backend.start(sized)
    else:
        assert (await run(subject, sized)).pty == b"50 132\r\n"


async def test_signals_have_names(subject: Subject) -> None:
    process = await subject.backend.start(
        shell("trap 'exit 6' HUP; echo ready; while :; do sleep 0.05; done")
    )
    output = Output(process)
    await output.until(b"ready")
    if subject.real:
        with pytest.raises(Unsupported):
            await process.signal("SIGHUP")
        await process.terminate()
        await output.finish()
    else:
        await process.signal("SIGHUP")
        assert (await output.finish()).exit_code == 6
