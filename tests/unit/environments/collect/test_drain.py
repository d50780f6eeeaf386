"""End of the output of a process that has exited, here and on a server."""

import asyncio
from collections.abc import Iterable

import pytest

from holdfast.backends import ExecProcess
from holdfast.base.errors import ConnectionLost, HoldfastError
from holdfast.engine.process.event_stream import EventReaders, LogEventStream
from holdfast.engine.process.io.log import LogListener, OutputLog, Retention
from holdfast.environments.collect.drain import Drain
from holdfast.events import Closed, Exited, Gap, LogEntry, ProcessEvent, Reason, Verdict
from holdfast.wire.protocol.process import OutputChunk, ReadResponse

LIMIT = 5.0
QUIET = 0.01
OK = Verdict(reason=Reason.EXITED, exit_code=0)


class Line(LogListener):
    """Events that are on their way from the process."""

    def __init__(self) -> None:
        self.events: list[LogEntry] = []

    def output(self, chunk: OutputChunk) -> None:
        self.events.append(chunk)

    def exited(self, seq: int, verdict: Verdict) -> None:
        self.events.append(Exited(seq, verdict))

    def closed(self, seq: int) -> None:
        self.events.append(Closed(seq))


class ScriptedProcess:
    """
    A process with two logs: where it runs, and here, where a test delivers the events.

    A question waits until the test lets it be answered.
    """

    process_id = "p"
    pid = None
    enforcement = None
    sandbox_type = "none"

    def __init__(self, *, remote: bool = True, retention: Retention | None = None) -> None:
        self.remote = remote
        self.there = OutputLog()
        self.here = OutputLog() if retention is None else OutputLog(retention)
        self.line = Line()
        self.there.subscribe(self.line)
        self.held: set[object] = set()
        self.asked: list[tuple[int, float]] = []
        """The number and the wait of every question."""
        self.dropped = 0
        """Questions whose answer nobody waited for any more."""
        self._readers = EventReaders(self.here, self.held.add, self.held.discard)
        self._answering = asyncio.Event()
        self._was_asked = asyncio.Event()
        self.failure: HoldfastError | None = None

    # -- what a test says

    def write(self, data: bytes) -> None:
        self.there.append("stdout", data)

    def deliver(self, count: int | None = None) -> None:
        """Let events arrive."""
        count = len(self.line.events) if count is None else count
        for event in self.line.events[:count]:
            if type(event) is OutputChunk:
                self.here.append(event.stream, event.chunk)
            elif type(event) is Exited:
                self.here.exit(event.verdict)
            else:
                self.here.close()
        del self.line.events[:count]

    def answer(self) -> None:
        """Let questions be answered from now on."""
        self._answering.set()

    def fail(self, error: HoldfastError) -> None:
        """Lose the line for good."""
        self.failure = error
        self._readers.fail(error)
        self._answering.set()

    async def was_asked(self, times: int = 1) -> None:
        async with asyncio.timeout(LIMIT):
            while len(self.asked) < times:
                self._was_asked.clear()
                await self._was_asked.wait()

    # -- the seam, as far as it is needed

    @property
    def verdict(self) -> Verdict | None:
        return self.here.verdict

    def events(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> LogEventStream:
        return self._readers.stream(after_seq, gaps=gaps, stream_ends=stream_ends)

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        self.asked.append((after_seq, wait))
        self._was_asked.set()
        if self.remote:
            try:
                await self._answering.wait()
            except asyncio.CancelledError:
                self.dropped += 1
                raise
        if self.failure is not None:
            raise self.failure
        return self.there.read(after_seq, max_bytes)


def drain(
    process: ScriptedProcess, *, quiet: float | None = QUIET, limit: float | None = LIMIT
) -> Drain:
    seam: ExecProcess = process  # type: ignore[assignment]  # only what a drain uses
    return Drain(seam, quiet=quiet, limit=limit)


def exited(process: ScriptedProcess, *chunks: bytes) -> None:
    """It writes, exits, and all of that arrives."""
    for chunk in chunks:
        process.write(chunk)
    process.there.exit(OK)
    process.deliver()


async def read_all(drain: Drain) -> list[ProcessEvent]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in drain]


async def read_some(drain: Drain, count: int) -> list[ProcessEvent]:
    async with asyncio.timeout(LIMIT):
        return [await anext(drain) for _ in range(count)]


def written(events: Iterable[ProcessEvent]) -> bytes:
    return b"".join(event.chunk for event in events if type(event) is OutputChunk)


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("remote", [False, True])
async def test_the_close_ends_it_without_a_question(remote: bool) -> None:
    process = ScriptedProcess(remote=remote)
    exited(process, b"all")
    process.there.close()
    process.deliver()
    reading = drain(process)
    events = await read_all(reading)
    assert [type(event) for event in events] == [OutputChunk, Exited, Closed]
    assert (reading.closed, reading.verdict, reading.last_seq) == (True, OK, 3)
    assert process.asked == []


async def test_quiet_here_and_there_ends_it() -> None:
    process = ScriptedProcess()
    process.answer()
    exited(process, b"all")
    reading = drain(process)
    assert written(await read_all(reading)) == b"all"
    assert process.asked == [(2, QUIET)]
    assert not reading.closed  # somebody holds the output


async def test_a_local_process_is_quiet_when_nothing_comes() -> None:
    process = ScriptedProcess(remote=False)
    exited(process, b"all")
    reading = drain(process)
    assert written(await read_all(reading)) == b"all"
    assert not reading.closed
    assert [wait for _, wait in process.asked] == [0.0]  # nobody waits there


async def test_what_a_busy_event_loop_has_not_read_yet_is_not_given_up() -> None:
    process = ScriptedProcess(remote=False)
    exited(process, b"early")
    process.write(b" late")  # written, and not yet seen when the window ends
    reading = drain(process)
    events = await read_some(reading, 2)
    task = asyncio.ensure_future(read_all(reading))
    await process.was_asked()
    await some_turns()
    process.deliver()
    assert written(events + await task) == b"early late"


async def test_output_in_the_answer_is_waited_for_however_slow_the_line_is() -> None:
    process = ScriptedProcess()
    process.answer()
    exited(process, b"early")
    process.write(b" late")
    reading = drain(process, limit=0.02)
    task = asyncio.ensure_future(read_all(reading))
    await process.was_asked()
    with pytest.raises(TimeoutError):  # longer than both windows
        await asyncio.wait_for(asyncio.shield(task), 0.1)
    process.there.close()
    process.deliver()
    assert written(await task) == b"early late"


async def test_a_close_in_the_answer_is_waited_for() -> None:
    process = ScriptedProcess()
    process.answer()
    exited(process, b"all")
    process.there.close()
    reading = drain(process)
    task = asyncio.ensure_future(read_all(reading))
    await process.was_asked()
    await some_turns()
    assert not task.done()
    process.deliver()
    assert type((await task)[-1]) is Closed
    assert reading.closed


async def test_a_line_that_is_down_is_waited_for() -> None:
    process = ScriptedProcess()
    exited(process, b"early")
    reading = drain(process, limit=0.02)
    task = asyncio.ensure_future(read_all(reading))
    await process.was_asked()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 0.1)
    process.write(b" late")
    process.there.close()
    process.answer()
    process.deliver()
    assert written(await task) == b"early late"


async def test_an_event_that_comes_before_the_answer_is_handed_out_at_once() -> None:
    process = ScriptedProcess()
    exited(process)
    reading = drain(process)
    await read_some(reading, 1)
    task = asyncio.ensure_future(anext(reading))
    await process.was_asked()
    process.write(b"late")
    process.deliver()
    async with asyncio.timeout(LIMIT):
        assert written([await task]) == b"late"
    await some_turns()
    assert process.dropped == 1
    task = asyncio.ensure_future(anext(reading))
    await process.was_asked(2)  # the window began anew
    assert process.asked[1] == (2, QUIET)
    process.answer()
    with pytest.raises(StopAsyncIteration):
        await task


async def test_at_the_limit_what_was_written_until_then_is_still_handed_out() -> None:
    process = ScriptedProcess()
    exited(process, b"early")
    process.write(b" late")  # on its way
    reading = drain(process, quiet=None, limit=0.0)
    task = asyncio.ensure_future(read_all(reading))
    await process.was_asked()
    process.answer()
    await some_turns()
    assert not task.done()
    process.write(b" too late")
    process.deliver()
    assert written(await task) == b"early late"
    assert process.asked == [(2, 0.0)]
    assert not reading.closed


async def test_a_flood_is_read_on_while_the_last_question_is_under_way() -> None:
    process = ScriptedProcess()
    exited(process)
    reading = drain(process, quiet=None, limit=0.0)
    await read_some(reading, 1)
    for number in range(3):
        process.write(b"%d" % number)
        process.deliver()
        async with asyncio.timeout(LIMIT):
            assert written([await anext(reading)]) == b"%d" % number
        await process.was_asked()
    assert (len(process.asked), process.dropped) == (1, 0)
    process.answer()
    await some_turns()
    assert await read_all(reading) == []


async def test_a_wait_that_is_cancelled_loses_nothing_and_asks_no_second_time() -> None:
    process = ScriptedProcess()
    exited(process, b"early")
    reading = drain(process)
    events = await read_some(reading, 2)
    for _ in range(5):
        task = asyncio.ensure_future(anext(reading))
        await process.was_asked()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert process.asked == [(2, QUIET)]
    process.write(b" late")
    process.answer()
    rest = asyncio.ensure_future(read_all(reading))
    process.there.close()
    process.deliver()
    assert written(events + await rest) == b"early late"


async def test_a_waiter_that_gives_up_before_the_window_does_not_lengthen_it() -> None:
    process = ScriptedProcess()
    process.answer()
    exited(process)
    reading = drain(process)
    await read_some(reading, 1)
    async with asyncio.timeout(LIMIT):
        while not process.asked:
            with pytest.raises((TimeoutError, StopAsyncIteration)):
                await asyncio.wait_for(anext(reading), QUIET / 4)


async def test_a_lost_server_is_told() -> None:
    for asked in (False, True):
        process = ScriptedProcess()
        exited(process, b"early")
        reading = drain(process)
        await read_some(reading, 2)
        task = asyncio.ensure_future(anext(reading))
        if asked:
            await process.was_asked()
        process.fail(ConnectionLost("gone"))
        with pytest.raises(ConnectionLost, match="gone"):
            await task
        with pytest.raises(ConnectionLost, match="gone"):  # and again
            await anext(reading)
        reading.close()


async def test_without_windows_it_waits_for_the_close() -> None:
    process = ScriptedProcess()
    exited(process)
    reading = drain(process, quiet=None, limit=None)
    await read_some(reading, 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(reading), 3 * QUIET)
    process.there.close()
    process.deliver()
    assert len(await read_all(reading)) == 1
    assert (reading.closed, process.asked) == (True, [])


async def test_after_the_end_what_came_since_can_be_read() -> None:
    process = ScriptedProcess()
    process.answer()
    exited(process)
    reading = drain(process, limit=0.02)
    await read_all(reading)
    process.write(b"since")
    process.deliver()
    assert written(await read_all(reading)) == b"since"
    async with asyncio.timeout(LIMIT):
        waiting = asyncio.ensure_future(reading.next(quiet=None, limit=None))
        await some_turns()
        process.write(b"more")
        process.deliver()
        event = await waiting
    assert event is not None
    assert written([event]) == b"more"


async def test_a_pause_lets_the_process_go_on_and_tells_what_was_lost() -> None:
    process = ScriptedProcess(retention=Retention(max_bytes=4))
    reading = drain(process)
    process.write(b"one")
    process.deliver()
    assert written(await read_some(reading, 1)) == b"one"
    reading.pause()
    for data in (b"two", b"three", b"four"):
        process.write(data)
    process.deliver()
    assert not process.held
    events = await read_some(reading, 2)
    assert events[0] == Gap(2, 3)
    assert written(events) == b"four"


async def test_a_closed_drain_reads_no_more() -> None:
    process = ScriptedProcess()
    reading = drain(process)
    process.write(b"one")
    process.deliver()
    reading.close()
    reading.close()
    assert await read_all(reading) == []


async def test_a_drain_that_is_closed_in_its_window_asks_nothing_more() -> None:
    process = ScriptedProcess()
    exited(process)
    reading = drain(process, quiet=60.0, limit=None)
    await read_some(reading, 1)
    task = asyncio.ensure_future(read_all(reading))
    await some_turns()
    reading.close()
    async with asyncio.timeout(LIMIT):
        assert await task == []
    assert process.asked == []


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_an_event_and_an_answer_that_come_at_once_do_not_get_in_each_others_way(
    turns: int,
) -> None:
    faults: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, fault: faults.append(fault))
    process = ScriptedProcess()
    exited(process)
    reading = drain(process)
    await read_some(reading, 1)
    task = asyncio.ensure_future(read_some(reading, 1))
    await process.was_asked()
    process.write(b"late")
    if turns == 0:
        loop.call_soon(process.deliver)
        process.answer()
    else:
        process.answer()
        for _ in range(turns - 1):
            await asyncio.sleep(0)
        loop.call_soon(process.deliver)
    assert written(await task) == b"late"
    await some_turns()
    reading.close()
    assert faults == []


async def test_a_window_below_zero_is_one_of_zero() -> None:
    process = ScriptedProcess()
    process.answer()
    exited(process, b"all")
    assert written(await read_all(drain(process, quiet=-1.0))) == b"all"
    assert [wait for _, wait in process.asked] == [0.0]
