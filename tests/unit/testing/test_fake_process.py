"""Fake processes: what a test says happens, and what is asked of them is recorded."""

import asyncio

import pytest

from holdfast.backends import ExecBackend, ExecProcess
from holdfast.base.errors import ConnectionLost, OutputLost, SpawnFailed, Unsupported
from holdfast.events import Closed, Exited, Gap, ProcessEvent, Reason, StreamEnded, Verdict
from holdfast.testing import CODEX, Asked, FakeBackend, FakeProcess, Termination
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputChunk, StartParams, WriteStatus


def params(process_id: str = "p", **options: object) -> StartParams:
    return StartParams(
        process_id=process_id,
        argv=["fake"],
        cwd=PathUri.parse("file:///"),
        env={},
        tty=bool(options.get("tty")),
        pipe_stdin=True,
    )


async def all_of(process: ExecProcess, *, gaps: bool = False) -> list[ProcessEvent]:
    async with asyncio.timeout(5):
        return [event async for event in process.events(gaps=gaps, stream_ends=True)]


async def test_the_fakes_are_what_the_seam_says() -> None:
    backend: ExecBackend = FakeBackend()  # both lines are for the type checker
    process: ExecProcess = await backend.start(params())
    assert process.process_id == "p"


async def test_events_come_in_the_order_in_which_they_are_said() -> None:
    process = FakeProcess()
    process.output(b"out")
    process.stream_ended("stdout")
    process.output(b"err", "stderr")
    process.exit(3)
    process.output(b"late", "stderr")
    process.close()
    assert await all_of(process) == [
        OutputChunk(seq=1, stream="stdout", chunk=b"out"),
        StreamEnded("stdout", 1),
        OutputChunk(seq=2, stream="stderr", chunk=b"err"),
        Exited(3, Verdict(reason=Reason.EXITED, exit_code=3)),
        OutputChunk(seq=4, stream="stderr", chunk=b"late"),
        StreamEnded("stderr", 4),
        Closed(5),
    ]


async def test_what_cannot_happen_is_refused() -> None:
    process = FakeProcess()
    with pytest.raises(RuntimeError, match="has not exited"):
        process.close()
    with pytest.raises(ValueError, match="at least one byte"):
        process.output(b"")
    with pytest.raises(ValueError, match="not 0"):
        process.gap(0)
    process.end()
    with pytest.raises(RuntimeError, match="has exited already"):
        process.exit()
    with pytest.raises(RuntimeError, match="has ended"):
        process.output(b"x")
    with pytest.raises(RuntimeError, match="closed already"):
        process.close()
    with pytest.raises(RuntimeError, match="remote=True"):
        process.lose_line()
    with pytest.raises(RuntimeError, match="remote=True"):
        process.delay()


async def test_lost_numbers_are_a_gap_or_an_error() -> None:
    process = FakeProcess()
    tolerant, strict = process.events(gaps=True), process.events()
    process.output(b"a")
    process.gap(2)
    process.end()
    assert [event.seq async for event in tolerant] == [1, 3, 4, 5]
    assert (await anext(strict)).seq == 1
    with pytest.raises(OutputLost):
        await anext(strict)
    assert Gap(2, 3) in await all_of(process, gaps=True)


async def test_events_under_way_are_read_but_not_here() -> None:
    process = FakeProcess(remote=True)
    stream = process.events()
    process.delay()
    process.output(b"x")
    process.end()
    answer = await process.read(wait=1.0)
    assert ([chunk.chunk for chunk in answer.chunks], answer.exited) == ([b"x"], True)
    assert process.verdict is None
    process.arrive(1)
    assert (await anext(stream)).seq == 1
    assert process.verdict is None
    process.arrive()
    assert (await process.exited()).exit_code == 0
    assert [event.seq async for event in stream] == [2, 3]


async def test_a_line_that_is_down_holds_events_and_keeps_what_is_asked() -> None:
    process = FakeProcess(remote=True)
    process.lose_line()
    process.output(b"x")
    assert await process.write(b"in") is WriteStatus.ACCEPTED
    reading = asyncio.ensure_future(process.read())
    resizing = asyncio.ensure_future(process.signal("interrupt"))
    assert await process.terminate() is True
    assert await process.write(b"more") is WriteStatus.STDIN_CLOSED
    await asyncio.sleep(0)
    assert (reading.done(), resizing.done(), process.written) == (False, False, b"")
    process.restore_line()
    await asyncio.gather(reading, resizing)
    assert process.written == b"in"
    assert process.terminations == [Termination()]
    assert (await process.wait()).reason is Reason.TERMINATED


async def test_a_line_that_is_lost_for_good_fails_what_is_not_over() -> None:
    backend = FakeBackend(remote=True)
    over, running = await backend.start(params("a")), await backend.start(params("b"))
    over.end()
    backend.lose_for_good(ConnectionLost("gone"))
    assert (await over.wait()).ok
    assert (await over.read()).closed
    for call in (running.wait(), running.exited(), running.read(), running.write(b"x")):
        with pytest.raises(ConnectionLost, match="gone"):
            await call
    with pytest.raises(ConnectionLost, match="gone"):
        await anext(running.events())
    with pytest.raises(ConnectionLost, match="gone"):
        await backend.start(params("c"))


async def test_what_is_asked_is_recorded_and_can_be_waited_for() -> None:
    process = FakeProcess(params(tty=True))
    waiting = asyncio.ensure_future(process.until(lambda: process.sizes == [(30, 100)]))
    await process.write(b"in", "id")
    await process.signal("SIGTERM")
    await process.resize(30, 100)
    await waiting
    process.refuse("signal", Unsupported(-32601, "no"))
    with pytest.raises(Unsupported):
        await process.signal("SIGHUP")
    assert (process.written, process.signals) == (b"in", ["SIGTERM"])
    assert process.asked == [
        Asked("write", (b"in", "id")),
        Asked("signal", ("SIGTERM",)),
        Asked("resize", (30, 100)),
        Asked("signal", ("SIGHUP",)),
    ]


@pytest.mark.virtual_time
async def test_a_wait_for_what_never_happens_ends() -> None:
    process = FakeProcess()
    with pytest.raises(TimeoutError):
        await process.until(lambda: process.stdin_closed)


async def test_a_slow_reader_holds_it() -> None:
    process = FakeProcess()
    stream = process.events()
    flowing = asyncio.ensure_future(process.flow(bytes(2 << 20)))
    await process.until(lambda: process.held)
    assert not flowing.done()
    stream.close()
    await flowing
    assert process.holds == [True, False]


@pytest.mark.virtual_time
async def test_on_codex_a_slow_reader_holds_the_line_or_drops() -> None:
    backend = FakeBackend.codex()
    slow, other = await backend.start(params("a")), await backend.start(params("b"))
    stream = slow.events()
    for _ in range(17):
        slow.output(bytes(64 << 10))
    assert (slow.held, backend.line.held) == (True, True)
    other.end()
    assert other.verdict is None
    stream.close()
    assert (await other.exited()).exit_code == 0
    dropping = slow.events(gaps=True)
    for _ in range(40):
        slow.output(bytes(64 << 10))
    await asyncio.sleep(1)
    assert not backend.line.held
    assert isinstance(await anext(dropping), Gap)


async def test_codex_lacks_the_extensions() -> None:
    process = FakeProcess(remote=True, capabilities=CODEX)
    assert process.pid is None
    for call in (process.close_stdin(), process.resize(1, 1), process.signal("SIGTERM")):
        with pytest.raises(Unsupported):
            await call
    process.child()
    process.exit()
    assert await process.terminate(left=True) is False


async def test_starts_can_wait_and_be_refused() -> None:
    backend = FakeBackend()
    backend.refuse_next_start(SpawnFailed("no", errno=2))
    with pytest.raises(SpawnFailed):
        await backend.start(params())
    backend.hold_starts()
    starting = asyncio.ensure_future(backend.start(params()))
    await backend.until(lambda: len(backend.starts) == 2)
    assert backend.processes == []
    backend.let_start(1)
    assert await starting is await backend.process(0)
    cancelled = asyncio.ensure_future(backend.start(params("q")))
    await backend.until(lambda: len(backend.starts) == 3)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    backend.let_start()
    await backend.start(params("q"))  # the id is free


async def test_a_program_plays_a_process() -> None:
    async def shout(process: FakeProcess) -> int:
        while data := await process.next_input():
            await process.flow(data.upper())
        return 4

    async with FakeBackend() as backend:
        backend.on(lambda asked: asked.argv == ["fake"], shout)
        process = await backend.start(params())
        await process.write(b"hello")
        await process.close_stdin()
        events = await all_of(process)
        assert events[0] == OutputChunk(seq=1, stream="stdout", chunk=b"HELLO")
        assert process.verdict == Verdict(reason=Reason.EXITED, exit_code=4)


async def test_a_program_that_fails_is_heard_of() -> None:
    async def broken(process: FakeProcess) -> int:
        raise KeyError("mistake")

    backend = FakeBackend()
    backend.on(lambda asked: True, broken)
    process = await backend.start(params())
    assert (await process.wait()).reason is Reason.LOST
    with pytest.raises(ExceptionGroup, match="programs of a fake backend failed"):
        await backend.aclose()


async def test_a_process_that_nothing_ends() -> None:
    process = FakeProcess()
    process.dies_when_killed = False
    assert await process.terminate() is True
    assert process.verdict is None
    process.end(1)
    assert (await process.wait()).reason is Reason.TERMINATED


async def test_a_test_that_waits_in_vain_is_told_for_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.testing.fake_line.LIMIT", 0.01)
    backend = FakeBackend()
    await backend.start(params())
    with pytest.raises(TimeoutError, match=r"process 1 was not started .* started so far: 1"):
        await backend.process(1)
    with pytest.raises(TimeoutError, match=r"did not hold within 0\.01 s"):
        await backend.until(lambda: False)


async def test_output_is_bytes() -> None:
    with pytest.raises(TypeError, match="output is bytes, not str"):
        FakeProcess().output("text")  # type: ignore[arg-type]
