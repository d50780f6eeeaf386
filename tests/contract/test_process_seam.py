"""
Contract of `ExecProcess`: the exit, event streams, ending, refusals.

As in `test_exec_backend.py`, nothing here says where a process runs. What a Codex server
cannot do is asserted as such.
"""

import asyncio
import errno
import math
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends import ExecProcess
from holdfast.base.errors import (
    ConnectionLost,
    DuplicateProcess,
    InvalidParams,
    InvalidRequest,
    OutputLost,
    Refused,
    RemoteError,
    SpawnFailed,
    Unsupported,
)
from holdfast.events import Closed, Gap, LimitKind, ProcessEvent, Reason, StreamEnded
from holdfast.wire.protocol.process import OutputChunk, ProcessLimits, StartParams, WriteStatus
from tests.contract.conftest import Subject
from tests.contract.running import Output, Run, check, finish, program, run, shell
from tests.contract.writers import counting, single_bytes
from tests.e2e.wire import LIMIT, PATH, Fifo

HIGH_WATER = 1 << 20
"""Bytes a reader may be behind."""

HIGH_EVENTS = 4096
"""Events a reader may be behind."""


def output_of(events: list[ProcessEvent]) -> bytes:
    return b"".join(event.chunk for event in events if isinstance(event, OutputChunk))


async def start(subject: Subject, params: StartParams) -> ExecProcess:
    async with asyncio.timeout(LIMIT):
        return await subject.backend.start(params)


# -- the exit


async def test_the_exit_is_known_however_far_a_reader_is(subject: Subject) -> None:
    process = await start(subject, shell("head -c 900000 /dev/zero"))
    stream = process.events()
    async with asyncio.timeout(LIMIT):
        verdict = await process.exited()
    assert (verdict.reason, verdict.exit_code) == (Reason.EXITED, 0)
    assert process.verdict == verdict
    async with asyncio.timeout(LIMIT):
        events = [event async for event in stream]
    assert len(check(events).stdout) == 900_000


async def test_the_exit_is_known_though_nobody_reads(subject: Subject) -> None:
    process = await start(subject, shell("head -c 3000000 /dev/zero"))
    async with asyncio.timeout(2 * LIMIT):
        assert (await process.exited()).exit_code == 0
        assert (await process.wait()) == process.verdict


async def test_without_an_exit_there_is_no_verdict(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    assert process.verdict is None
    waiting = asyncio.ensure_future(process.exited())
    await process.write(b"x")
    assert not waiting.done()
    await process.terminate()
    async with asyncio.timeout(LIMIT):
        assert (await waiting).reason is Reason.TERMINATED
    await finish(process)


async def test_a_child_that_holds_the_output_is_waited_for_at_the_close_only(
    subject: Subject, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        process = await start(subject, shell(f"(read x; echo late) < {go.path} & echo early"))
        closing = asyncio.ensure_future(process.wait())
        async with asyncio.timeout(LIMIT):
            verdict = await process.exited()
        assert verdict.exit_code == 0
        assert not closing.done()
        go.write()
        async with asyncio.timeout(LIMIT):
            assert await closing == verdict
    assert (await finish(process)).stdout == b"early\nlate\n"


# -- event streams


async def test_a_stream_begins_after_a_number(subject: Subject) -> None:
    process = await start(subject, shell("seq 1 20000"))
    async with asyncio.timeout(LIMIT):
        everything = [event async for event in process.events()]
        last = everything[-1].seq
        for after in (1, last - 1, last, last + 1, 10**9):
            expected = [event for event in everything if event.seq > after]
            assert [event async for event in process.events(after)] == expected


async def test_a_stream_may_begin_beyond_what_there_is(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    beyond = process.events(after_seq=2)  # claims the first stream, which has all
    output = Output(process)
    for text in (b"one", b"two", b"three"):
        await process.write(text)
        await output.until(text)
    await process.terminate()
    async with asyncio.timeout(LIMIT):
        events = [event async for event in beyond]
    assert [event.seq for event in events] == [3, 4, 5]
    assert output_of(events) == b"three"
    await output.finish()


async def test_a_cancelled_wait_loses_nothing(subject: Subject) -> None:
    process = await start(subject, shell("seq 1 200000"))
    stream = process.events()
    dice = random.Random(1)
    events: list[ProcessEvent] = []
    cancelled = 0
    async with asyncio.timeout(4 * LIMIT):
        while not events or not isinstance(events[-1], Closed):
            task = asyncio.ensure_future(anext(stream))
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
            try:
                events.append(await task)
            except asyncio.CancelledError:
                cancelled += 1
    assert cancelled
    expected = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    assert check(events).stdout == expected


@pytest.mark.parametrize("how", ["close", "block", "dropped"])
async def test_a_stream_that_is_closed_holds_nobody_up(subject: Subject, how: str) -> None:
    process = await start(subject, shell("seq 1 2000000 | head -c 8000000"))
    stream = process.events()
    async with asyncio.timeout(4 * LIMIT):
        if how == "block":
            async with stream:
                await anext(stream)
        else:
            await anext(stream)
        if how == "close":
            stream.close()
            stream.close()
        if how == "dropped":
            del stream
        else:
            assert [event async for event in stream] == []
        assert (await process.wait()).exit_code == 0


async def test_a_stream_that_is_closed_ends_the_wait_for_its_next_event(subject: Subject) -> None:
    process = await start(subject, shell("sleep 60"))
    stream = process.events()
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)  # it waits now
    stream.close()
    async with asyncio.timeout(LIMIT):
        with pytest.raises(StopAsyncIteration):
            await waiting
    await process.terminate()


async def test_streams_do_not_know_each_other(subject: Subject) -> None:
    process = await start(subject, shell("seq 1 100000"))
    first, second, third = process.events(), process.events(), process.events()
    async with asyncio.timeout(2 * LIMIT):
        third.close()
        events = [event async for event in first]
        assert [event async for event in second] == events
    assert check(events).exit_code == 0


async def test_output_that_is_gone_is_a_gap_for_who_takes_one(subject: Subject) -> None:
    process = await start(
        subject, shell("head -c 12000000 /dev/zero")
    )  # more than is ever under way
    async with asyncio.timeout(2 * LIMIT):
        await process.wait()
        events = [event async for event in process.events(gaps=True)]
        with pytest.raises(OutputLost) as caught:
            await anext(process.events())
    gap, *rest = events
    assert isinstance(gap, Gap)
    assert gap.first_seq == 1
    last = gap.last_seq
    for event in rest:
        # A Codex server may tell the exit before output that is gone: a second gap follows it.
        assert (event.first_seq if isinstance(event, Gap) else event.seq) == last + 1
        last = event.seq
    assert sum(isinstance(event, Gap) for event in rest) <= 1
    assert 0 < len(output_of(rest)) <= HIGH_WATER
    assert isinstance(rest[-1], Closed)
    assert (caught.value.first_seq, caught.value.last_seq) == (gap.first_seq, gap.last_seq)


@pytest.mark.every_transport
async def test_a_reader_that_stops_holds_up_no_other_process(subject: Subject) -> None:
    flood = await start(subject, shell("head -c 32000000 /dev/zero", process_id="flood"))
    stopped = flood.events(gaps=subject.real)  # else Codex would have to hold the connection
    other = await start(subject, program("cat", pipe_stdin=True))
    output = Output(other)
    async with asyncio.timeout(4 * LIMIT):
        if subject.real:
            await flood.exited()
        else:
            last = 0
            while (news := await flood.read(last, wait=0.1)).chunks:
                last = news.next_seq - 1
            assert flood.verdict is None, "nobody reads, and it goes on"
        for text in (b"one", b"two", b"three"):
            await other.write(text)
            await output.until(text)
        assert await other.terminate()
        await output.finish()
        events = [event async for event in stopped]
    if subject.real:
        assert any(isinstance(event, Gap) for event in events)
        assert isinstance(events[-1], Closed)
    else:
        assert len(check(events).stdout) == 32_000_000


async def test_single_bytes_count_too(subject: Subject) -> None:
    process = await start(subject, program(*single_bytes(_SINGLE_BYTES)))
    stream = process.events(gaps=subject.real)
    async with asyncio.timeout(4 * LIMIT):
        if subject.real:
            # Codex cannot hold one process: what nobody reads is dropped here.
            await process.wait()
            events = [event async for event in stream]
            assert any(isinstance(event, Gap) for event in events)
            assert len(events) <= HIGH_EVENTS + 64
            return
        last = 0
        # Held, it stops somewhere above the limit; not held, it writes all.
        while last <= HIGH_EVENTS or (await process.read(last, wait=0.3)).chunks:
            last = (await process.read(last, wait=1.0)).next_seq - 1
            assert last < _SINGLE_BYTES - 2000, "nobody reads, and it goes on"
        assert process.verdict is None
        assert len(check([event async for event in stream]).stdout) == _SINGLE_BYTES


_SINGLE_BYTES = 40_000
"""More than the limit of a stream and what a server lets be under way, together."""


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(shell("head -c 900000 /dev/zero"), id="bytes"),
        pytest.param(program(*single_bytes(1000)), id="events"),
    ],
)
async def test_a_reader_lets_others_run(subject: Subject, params: StartParams) -> None:
    process = await start(subject, params)
    stream = process.events()
    async with asyncio.timeout(2 * LIMIT):
        await process.wait()  # all of it is here, so that nothing makes the reader wait
    loop = asyncio.get_running_loop()
    turn = 0
    reading = True

    def tick() -> None:
        nonlocal turn
        turn += 1
        if reading:
            loop.call_soon(tick)

    tick()
    by_turn: dict[int, list[ProcessEvent]] = {}
    async with asyncio.timeout(2 * LIMIT):
        async for event in stream:
            by_turn.setdefault(turn, []).append(event)
    reading = False
    await asyncio.sleep(0)
    for events in by_turn.values():
        assert len(events) <= 64
        assert len(output_of(events[:-1])) < 64 << 10  # the last one may go beyond
    assert check([event for events in by_turn.values() for event in events]).exit_code == 0


async def test_a_stream_of_output_can_end_before_the_others(
    subject: Subject, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        script = f"echo out; exec >&-; read x < {go.path}; echo err >&2"
        process = await start(subject, shell(script))
        plain = process.events()
        stream = process.events(stream_ends=True)
        events: list[ProcessEvent] = []
        async with asyncio.timeout(LIMIT):
            while not (subject.real and events) and StreamEnded("stdout", 1) not in events:
                events.append(await anext(stream))
            assert output_of(events) == b"out\n"
            go.write()
            events += [event async for event in stream]
            numbered: list[ProcessEvent] = [
                event for event in events if not isinstance(event, StreamEnded)
            ]
            assert [event async for event in plain] == numbered
    assert check(numbered) == Run(0, b"out\n", b"err\n", b"")
    ended = [event.stream for event in events if isinstance(event, StreamEnded)]
    assert sorted(ended) == ([] if subject.real else ["stderr", "stdout"])


# -- ending


async def test_terminate_may_keep_the_streams(subject: Subject, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        script = f"setsid sh -c 'echo $$; read x < {go.path}; echo late' & wait"
        process = await start(subject, shell(script))
        output = Output(process)
        await output.until(b"\n")
        below = int(output.data)
        assert await process.terminate(streams="keep") is True
        async with asyncio.timeout(LIMIT):
            assert (await process.exited()).reason is Reason.TERMINATED
        if subject.real:  # it closes all the same
            await output.finish()
            subject.kill(below)
        else:
            go.write()
            assert (await output.finish()).stdout.endswith(b"\nlate\n")
        await subject.gone(below)


async def test_terminate_closes_the_streams_whoever_has_them_open(
    subject: Subject, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        script = f"setsid sh -c 'echo $$; read x < {go.path}; echo late' & wait"
        process = await start(subject, shell(script))
        output = Output(process)
        await output.until(b"\n")
        below = int(output.data)
        assert await process.terminate() is True
        done = await output.finish()
        assert (done.exit_code, done.stdout) == (137, b"%d\n" % below)
        assert subject.is_alive(below)
        subject.kill(below)
        await subject.gone(below)


@pytest.mark.parametrize("redirected", [True, False])
async def test_terminate_takes_what_an_exited_process_left(
    subject: Subject, redirected: bool
) -> None:
    elsewhere = " >/dev/null 2>&1" if redirected else ""
    process = await start(subject, shell(f"sleep 60{elsewhere} & echo $!"))
    output = Output(process)
    await output.until(b"\n")
    below = int(output.data)
    async with asyncio.timeout(LIMIT):
        await process.exited()
        if redirected:
            await process.wait()
    assert await process.terminate() is False
    assert subject.is_alive(below)
    if subject.real:
        assert await process.terminate(left=True) is False
        assert subject.is_alive(below)
        subject.kill(below)
        await subject.gone(below)
    else:
        assert await process.terminate(left=True) is True
        await subject.gone(below)
        assert await process.terminate(left=True) is False
    assert (await output.finish()).exit_code == 0


async def test_nothing_left_is_nothing_to_terminate(subject: Subject) -> None:
    process = await start(subject, program("true"))
    async with asyncio.timeout(LIMIT):
        await process.wait()
    assert await process.terminate(left=True) is False


async def test_streams_are_closed_or_kept_and_nothing_else(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    output = Output(process)
    with pytest.raises(InvalidParams, match="drop"):
        await process.terminate(streams="drop")  # type: ignore[arg-type]  # what is refused
    await process.write(b"still here")
    await output.until(b"still here")
    await process.terminate()
    await output.finish()


async def stalled(count: Path, enough: int) -> None:
    """Wait until a process has noted that it wrote so much, and notes no more."""
    before, noted = -1, 0
    while noted < enough or noted != before:
        await asyncio.sleep(0.05)
        before, noted = noted, noted_in(count)


def noted_in(count: Path) -> int:
    return int(count.read_bytes() or b"0") if count.exists() else 0


async def test_a_kill_loses_nothing_that_was_written(subject: Subject, tmp_path: Path) -> None:
    count = tmp_path / "count"
    process = await start(subject, program(*counting(count)))
    stream = process.events()
    async with asyncio.timeout(4 * LIMIT):
        if not subject.real:
            # More than a reader may be behind, and no more comes: the rest is in the pipe.
            # On Codex such a reader would hold the connection, and with it the kill.
            await stalled(count, HIGH_WATER + (32 << 10))
        assert await process.terminate() is True
        done = check([event async for event in stream])
    written = noted_in(count)
    if subject.real:
        assert len(done.stdout) <= written + 4096  # it does not promise more
    else:
        # It may have died after a write, and before it could note that.
        assert len(done.stdout) in (written, written + 4096)


@pytest.mark.every_transport
async def test_a_process_that_does_not_read_can_be_ended(subject: Subject) -> None:
    process = await start(subject, program("sleep", "60", pipe_stdin=True))
    writes = [asyncio.ensure_future(process.write(bytes(65536))) for _ in range(200)]
    async with asyncio.timeout(2 * LIMIT):
        await writes[0]
        assert not writes[-1].done()
        if subject.real and not subject.can_reconnect:
            # Nothing gets past a write that waits, and there is no other connection.
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(process.terminate(), 0.2)
            for write in writes:
                write.cancel()
            return
        # On Codex the client connects anew.
        assert await process.terminate() is True
        assert (await process.exited()).reason is Reason.TERMINATED
        statuses = set(await asyncio.gather(*writes))
    assert statuses == {WriteStatus.ACCEPTED, WriteStatus.STDIN_CLOSED}
    await finish(process)
    assert (await run(subject, program("true", process_id="other"))).exit_code == 0


async def test_a_terminated_process_takes_no_input(subject: Subject) -> None:
    process = await start(subject, program("sleep", "60", pipe_stdin=True))
    await process.terminate()
    assert await process.write(b"x") is WriteStatus.STDIN_CLOSED
    await finish(process)
    assert await process.write(b"x") is WriteStatus.STDIN_CLOSED


@pytest.mark.parametrize(
    ("script", "limits", "kind"),
    [
        ("sleep 60", ProcessLimits(wall_time_ms=50), LimitKind.WALL_TIME),
        ("seq 1 2000000", ProcessLimits(output_bytes=1000), LimitKind.OUTPUT),
    ],
)
async def test_the_verdict_names_the_limit(
    subject: Subject, script: str, limits: ProcessLimits, kind: LimitKind
) -> None:
    params = shell(script, limits=limits)
    if subject.real:
        with pytest.raises(Unsupported):
            await subject.backend.start(params)
        return
    process = await start(subject, params)
    assert (await finish(process)).exit_code == 137
    assert process.verdict is not None
    assert (process.verdict.reason, process.verdict.limit) == (Reason.LIMIT, kind)


# -- refusals


NO_SUCH_FILE = "No such file or directory (os error 2)"


def check_cause(subject: Subject, error: BaseException, code: int) -> None:
    """Behind a server its own words are the cause."""
    if subject.remote:
        cause = error.__cause__
        assert isinstance(cause, RemoteError)
        assert (cause.code, cause.message) == (code, str(error))


@pytest.mark.parametrize(
    ("params", "kind", "number", "text"),
    [
        pytest.param(program(), InvalidParams, None, "argv must not be empty", id="no argv"),
        pytest.param(
            program(""), SpawnFailed, None, "missing program for pipe spawn", id="empty program"
        ),
        pytest.param(
            program("", tty=True),
            SpawnFailed,
            None,
            "missing program for PTY spawn",
            id="empty program, tty",
        ),
        pytest.param(program("/no/such"), SpawnFailed, errno.ENOENT, NO_SUCH_FILE, id="no program"),
        pytest.param(program("no-such"), SpawnFailed, errno.ENOENT, NO_SUCH_FILE, id="not in PATH"),
        pytest.param(
            program("no-such", tty=True),
            SpawnFailed,
            errno.ENOENT,
            f'Unable to spawn no-such because:\nNo viable candidates found in PATH "{PATH}"',
            id="not in PATH, tty",
        ),
        pytest.param(
            program("/"),
            SpawnFailed,
            errno.EACCES,
            "Permission denied (os error 13)",
            id="a folder",
        ),
        pytest.param(
            program("true", "a\0b"),
            SpawnFailed,
            None,
            "nul byte found in provided data",
            id="a NUL",
        ),
        pytest.param(
            program("true", cwd="file:///no/such"),
            SpawnFailed,
            errno.ENOENT,
            NO_SUCH_FILE,
            id="no cwd",
        ),
        pytest.param(
            program("true", cwd="file:///etc/passwd"),
            SpawnFailed,
            errno.ENOTDIR,
            "Not a directory (os error 20)",
            id="cwd is a file",
        ),
        pytest.param(
            program("true", cwd="file:///C:/x"),
            InvalidParams,
            None,
            "cwd URI `file:///C:/x` is not valid on this exec-server host:"
            " 'file:///C:/x' is invalid on 'linux'",
            id="cwd of another system",
        ),
    ],
)
async def test_a_bad_start_is_refused_and_leaves_no_trace(
    subject: Subject, params: StartParams, kind: type[Refused], number: int | None, text: str
) -> None:
    with pytest.raises(kind) as caught:
        await subject.backend.start(params)
    assert isinstance(caught.value, kind)
    assert str(caught.value) == text
    assert getattr(caught.value, "errno", None) == number
    check_cause(subject, caught.value, -32602 if kind is InvalidParams else -32603)
    assert (await run(subject, program("true"))).exit_code == 0  # the id is free


async def test_an_id_is_taken_while_its_process_is_known(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    # A client knows by itself; nothing goes out.
    with pytest.raises(DuplicateProcess, match=r"process p\b"):
        await subject.backend.start(program("true"))
    await process.terminate()
    await finish(process)
    with pytest.raises(DuplicateProcess, match="process p already exists") as caught:
        await subject.backend.start(program("true"))
    check_cause(subject, caught.value, -32600)


async def test_what_has_no_terminal_has_no_size(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    if subject.real:
        with pytest.raises(Unsupported):
            await process.resize(30, 100)
    else:
        with pytest.raises(InvalidRequest, match="process p has no terminal to resize") as caught:
            await process.resize(30, 100)
        check_cause(subject, caught.value, -32600)
    await process.terminate()
    await finish(process)


@pytest.mark.parametrize("size", [(0, 80), (24, 0), (65536, 80), (-1, 80)])
async def test_there_are_sizes_that_no_terminal_has(
    subject: Subject, size: tuple[int, int]
) -> None:
    process = await start(subject, program("cat", tty=True))
    with pytest.raises((InvalidParams, Unsupported) if subject.real else InvalidParams):
        await process.resize(*size)
    await process.terminate()
    await finish(process)


async def test_an_unknown_signal_is_refused(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    with pytest.raises(Unsupported if subject.real else InvalidParams) as caught:
        await process.signal("SIGNOPE")
    if not subject.real:
        check_cause(subject, caught.value, -32602)
    await process.terminate()
    assert (await finish(process)).exit_code == 137


async def test_the_input_of_a_terminal_has_no_end(subject: Subject) -> None:
    process = await start(subject, program("cat", tty=True))
    with pytest.raises(Unsupported if subject.real else InvalidRequest) as caught:
        await process.close_stdin()
    if not subject.real:
        check_cause(subject, caught.value, -32600)
    await process.terminate()
    await finish(process)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("after_seq", {"after_seq": -1}),
        ("max_bytes", {"max_bytes": -1}),
        ("wait", {"wait": -0.5}),
        ("wait", {"wait": math.nan}),
    ],
)
async def test_what_no_read_can_mean_is_refused(
    subject: Subject, name: str, arguments: dict[str, Any]
) -> None:
    process = await start(subject, program("true"))
    with pytest.raises(InvalidParams, match=name):
        await process.read(**arguments)
    if name == "after_seq":
        for gaps in (False, True):
            with pytest.raises(InvalidParams, match=name):
                process.events(-1, gaps=gaps)
    assert (await finish(process)).exit_code == 0


async def test_a_read_may_wait_for_ever_and_begin_anywhere(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    waiting = asyncio.ensure_future(process.read(wait=math.inf))
    beyond = asyncio.ensure_future(process.read(2**70, max_bytes=2**70))
    await process.write(b"x")
    async with asyncio.timeout(LIMIT):
        assert [chunk.chunk for chunk in (await waiting).chunks] == [b"x"]
        assert (await beyond).chunks == []
    await process.terminate()
    await finish(process)


async def test_a_read_that_waits_holds_up_nobody(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    reading = asyncio.ensure_future(process.read(wait=60.0))
    await asyncio.sleep(0)
    assert (await run(subject, program("true", process_id="other"))).exit_code == 0
    assert not reading.done()
    async with asyncio.timeout(LIMIT):
        await process.terminate()
        assert (await reading).exited
    await finish(process)


async def test_input_is_bytes_and_an_id_is_not_empty(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    for wrong in ("text", None, [1]):
        with pytest.raises(TypeError, match="expected bytes"):
            await process.write(wrong)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidParams, match="writeId must not be empty"):
        await process.write(b"x", "")
    buffer = bytearray(b"one ")
    writing = asyncio.ensure_future(process.write(buffer))  # type: ignore[arg-type]  # taken too
    await asyncio.sleep(0)
    buffer[:] = b"two "
    await writing
    await process.write(memoryview(b"three"))  # type: ignore[arg-type]  # likewise
    output = Output(process)
    await output.until(b"one three")
    await process.terminate()
    assert (await output.finish()).stdout == b"one three"


async def test_a_fresh_id_is_none_that_was_given(subject: Subject) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    output = Output(process)
    for text, write_id in ((b"a", "1"), (b"b", None), (b"-", "1"), (b"c", "x"), (b"d", None)):
        assert await process.write(text, write_id) is WriteStatus.ACCEPTED
    await output.until(b"d")
    await process.terminate()
    assert (await output.finish()).stdout == b"abcd"


# -- reading later


@pytest.mark.every_transport
async def test_a_closed_process_can_be_read_after_its_server_is_lost(subject: Subject) -> None:
    process = await start(subject, shell("seq 1 20000"))
    await finish(process)
    before = await process.read()
    await subject.lose()
    async with asyncio.timeout(LIMIT):
        assert await process.read(wait=60.0) == before
        assert (await process.read(before.next_seq - 1)).chunks == []
        assert process.verdict == await process.wait()


@pytest.mark.every_transport
async def test_a_process_of_a_lost_server_says_so(subject: Subject) -> None:
    if not subject.remote:
        return  # there is no server to lose
    process = await start(subject, program("cat", pipe_stdin=True))
    stream = process.events()
    await subject.lose()
    async with asyncio.timeout(LIMIT):
        for call in (
            process.read(),
            process.exited(),
            process.wait(),
            anext(stream),
            process.write(b"x"),
        ):
            with pytest.raises(ConnectionLost):
                await call


# -- facts


async def test_a_process_has_the_number_of_the_kernel(subject: Subject) -> None:
    process = await start(subject, shell("echo $$"))
    done = await finish(process)
    if subject.real:
        assert process.pid is None
    else:
        assert process.pid == int(done.stdout)
    assert process.remote is subject.remote
    assert process.sandbox_type == "none"
    assert process.enforcement is None


async def test_variables_are_unset_by_their_exact_names(subject: Subject) -> None:
    params = program("env", unset=["HOME", "path"])
    if subject.real:
        with pytest.raises(Unsupported):
            await subject.backend.start(params)
    else:
        assert (await run(subject, params)).stdout.decode().split() == [f"PATH={PATH}"]


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
def test_what_is_no_name_cannot_be_unset(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a variable"):
        program("env", unset=[name])
