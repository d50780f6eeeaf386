"""Readers that lose nothing, and the writer that waits for them."""

import asyncio
import gc
import threading

import pytest

from holdfast.base.errors import ConnectionLost, OutputLost
from holdfast.engine.process.event_stream import (
    HIGH_WATER,
    LOW_WATER,
    MOST_BYTES,
    MOST_EVENTS,
    READER_TIME,
    EventReaders,
    LogEventStream,
)
from holdfast.engine.process.io.log import OutputLog, Retention
from holdfast.events import Closed, Exited, Gap, ProcessEvent, Reason, Verdict
from holdfast.wire.protocol.process import OutputChunk

EXIT = Verdict(reason=Reason.EXITED, exit_code=0)
PIECE = 64 << 10


class Writer:
    """A log, its readers, and who holds it up at the moment."""

    def __init__(self, log: OutputLog | None = None, *, can_hold: bool = True) -> None:
        self.log = log or OutputLog()
        self.holders: set[object] = set()
        self.released = asyncio.Event()
        self.readers = EventReaders(
            self.log, self.holders.add, self._release, can_hold=lambda: can_hold
        )

    def _release(self, holder: object) -> None:
        self.holders.discard(holder)
        self.released.set()

    def write(self, *texts: bytes) -> None:
        for text in texts:
            self.log.append("stdout", text)

    def write_until_held(self) -> int:
        """Write without a pause; how many pieces it took to be held."""
        count = 0
        while not self.holders:
            self.write(bytes(PIECE))
            count += 1
        return count

    def end(self) -> None:
        self.log.exit(EXIT)
        self.log.close()


async def take(stream: LogEventStream, count: int) -> list[ProcessEvent]:
    async with asyncio.timeout(5):
        return [await anext(stream) for _ in range(count)]


async def all_of(stream: LogEventStream) -> list[ProcessEvent]:
    async with asyncio.timeout(5):
        return [event async for event in stream]


async def test_a_reader_gets_everything_in_order_and_then_its_end() -> None:
    writer = Writer()
    stream = writer.readers.stream()
    writer.write(b"a", b"b")
    writer.end()
    assert await all_of(stream) == [
        OutputChunk(seq=1, stream="stdout", chunk=b"a"),
        OutputChunk(seq=2, stream="stdout", chunk=b"b"),
        Exited(3, EXIT),
        Closed(4),
    ]
    assert await all_of(stream) == []


async def test_a_reader_waits_for_what_is_not_written_yet() -> None:
    writer = Writer()
    stream = writer.readers.stream()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(take(stream, 1))
        await asyncio.sleep(0)
        assert not reading.done()
        writer.write(b"now")
    assert reading.result()[0].seq == 1


async def test_the_first_reader_misses_nothing_that_was_written_before_it_came() -> None:
    writer = Writer(OutputLog(Retention(max_bytes=10)))
    writer.write(b"gone from the log", b"kept")
    writer.end()
    assert [event.seq for event in await all_of(writer.readers.stream())] == [1, 2, 3, 4]


async def test_a_later_reader_is_told_what_is_no_longer_retained() -> None:
    writer = Writer(OutputLog(Retention(max_bytes=10)))
    first = writer.readers.stream()
    writer.write(b"gone from the log", b"kept")
    second = writer.readers.stream(gaps=True)
    writer.end()
    assert [event.seq for event in await all_of(first)] == [1, 2, 3, 4]
    for stream in (second, writer.readers.stream(gaps=True)):
        assert [type(event) for event in await all_of(stream)] == [Gap, OutputChunk, Exited, Closed]
    with pytest.raises(OutputLost, match="sequence 1 through 1 is no longer retained"):
        await take(writer.readers.stream(), 1)


async def test_a_reader_that_falls_behind_makes_the_writer_wait_until_it_has_caught_up() -> None:
    writer = Writer()
    stream = writer.readers.stream()
    written = writer.write_until_held()
    assert written == HIGH_WATER // PIECE + 1
    left = written
    while writer.holders:
        await take(stream, 1)
        left -= 1
    assert left * PIECE <= LOW_WATER < (left + 1) * PIECE
    assert writer.write_until_held() == written - left


async def test_what_was_retained_before_counts_as_being_behind() -> None:
    writer = Writer()
    writer.readers.stream().close()
    for _ in range(HIGH_WATER // PIECE):
        writer.write(bytes(PIECE))
    stream = writer.readers.stream()
    assert not writer.holders
    assert writer.write_until_held() == 1
    stream.close()


async def test_a_reader_that_leaves_holds_nobody_up() -> None:
    writer = Writer()
    stream = writer.readers.stream()
    writer.write_until_held()
    stream.close()
    assert not writer.holders
    assert await all_of(stream) == []
    stream.close()  # harmless


async def test_closing_a_stream_ends_the_wait_of_its_reader() -> None:
    writer = Writer()
    stream = writer.readers.stream()
    reading = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)  # it waits
    stream.close()
    async with asyncio.timeout(5):
        assert await reading is None


async def test_a_reader_that_is_dropped_holds_nobody_up() -> None:
    writer = Writer()
    stream = writer.readers.stream()
    writer.write_until_held()
    del stream
    gc.collect()
    async with asyncio.timeout(5):
        await writer.released.wait()
    assert not writer.holders


async def test_a_first_reader_that_nobody_asks_for_holds_the_writer_only_for_a_moment() -> None:
    writer = Writer()
    writer.write_until_held()
    async with asyncio.timeout(5):
        await writer.released.wait()
    assert not writer.holders
    # It is too late for the beginning, but not for what is retained.
    assert type((await take(writer.readers.stream(gaps=True), 1))[0]) is Gap


async def test_each_reader_holds_the_writer_on_its_own() -> None:
    writer = Writer()
    slow, quick = writer.readers.stream(), writer.readers.stream()
    written = writer.write_until_held()
    await take(quick, written)
    assert len(writer.holders) == 1
    await take(slow, written)
    assert not writer.holders


async def test_a_failure_comes_after_everything_that_was_read_before_it() -> None:
    writer = Writer()
    stream = writer.readers.stream()
    writer.write(b"a")
    writer.readers.fail(ConnectionLost("gone"))
    assert len(await take(stream, 1)) == 1
    with pytest.raises(ConnectionLost, match="gone"):
        await take(stream, 1)
    assert await all_of(stream) == []


async def test_a_failure_wakes_a_reader_that_waits_and_is_told_to_those_that_come() -> None:
    writer = Writer()
    stream = writer.readers.stream()
    reading = asyncio.ensure_future(take(stream, 1))
    await asyncio.sleep(0)
    writer.readers.fail(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        await reading
    with pytest.raises(ConnectionLost):
        await take(writer.readers.stream(), 1)


async def test_a_reader_that_has_what_held_the_writer_lets_it_go_on() -> None:
    writer = Writer()
    writer.write_until_held()
    stream = writer.readers.stream(after_seq=writer.log.next_seq - 1)
    assert not writer.holders  # else nothing would come, and the reader would wait for ever
    writer.write(b"new")
    assert (await take(stream, 1))[0].seq == writer.log.next_seq - 1


@pytest.mark.virtual_time
async def test_a_reader_that_takes_gaps_loses_nothing_while_it_reads() -> None:
    """A connection brings events faster than a reader takes them, and waits for it."""
    writer = Writer(can_hold=False)
    stream = writer.readers.stream(gaps=True)
    seqs: list[int] = []
    for _ in range(5):
        written = writer.write_until_held()
        for _ in range(written):
            await asyncio.sleep(0.9 * READER_TIME)
            seqs += [event.seq for event in await take(stream, 1)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert not writer.holders


@pytest.mark.virtual_time
async def test_a_reader_that_takes_gaps_holds_others_for_a_moment_only() -> None:
    writer = Writer(can_hold=False)
    stream = writer.readers.stream(gaps=True)
    writer.write_until_held()
    await asyncio.sleep(3 * READER_TIME)
    assert not writer.holders
    for _ in range(2 * HIGH_WATER // PIECE):  # it was waited for once, and is not again
        writer.write(bytes(PIECE))
        assert not writer.holders
    assert isinstance((await take(stream, 1))[0], Gap)
    while stream._queue.entries:
        await take(stream, 1)
    writer.write_until_held()  # it has caught up
    assert writer.holders
    stream.close()


@pytest.mark.virtual_time
async def test_a_first_reader_that_takes_gaps_holds_nobody_where_others_would_wait_too() -> None:
    writer = Writer(can_hold=False)
    writer.write_until_held()
    stream = writer.readers.stream(gaps=True)
    await asyncio.sleep(3 * READER_TIME)
    assert not writer.holders
    first = (await take(stream, 1))[0]
    assert isinstance(first, Gap)
    assert first.first_seq == 1
    second = (await take(stream, 1))[0]
    assert (type(second), second.seq) == (OutputChunk, first.last_seq + 1)


async def test_a_reader_that_takes_gaps_is_bounded_while_the_writer_cannot_wait() -> None:
    """A connection is read in spite of a reader while a call waits for its answer."""
    writer = Writer(can_hold=False)
    stream = writer.readers.stream(gaps=True)
    for _ in range(3 * MOST_BYTES // PIECE):
        writer.write(bytes(PIECE))
        assert sum(len(text.chunk) for text in chunks(stream)) <= MOST_BYTES
    for _ in range(3 * MOST_EVENTS):
        writer.write(b"x")
        assert len(stream._queue.entries) <= MOST_EVENTS
    writer.end()
    events = await all_of(stream)
    assert isinstance(events[0], Gap)
    assert events[0].last_seq + 1 == events[1].seq
    assert [type(event) for event in events[-2:]] == [Exited, Closed]


async def test_a_lossless_reader_keeps_all_that_comes_while_the_writer_cannot_wait() -> None:
    writer = Writer(can_hold=False)
    stream = writer.readers.stream()
    for _ in range(2 * MOST_BYTES // PIECE):
        writer.write(bytes(PIECE))
    assert len(chunks(stream)) == 2 * MOST_BYTES // PIECE


def chunks(stream: LogEventStream) -> list[OutputChunk]:
    return [entry for entry in stream._queue.entries if isinstance(entry, OutputChunk)]


@pytest.mark.parametrize("end", ["closed", "failed"])
async def test_nobody_is_held_for_a_reader_after_the_end(end: str) -> None:
    writer = Writer()
    stream = writer.readers.stream()
    count = writer.write_until_held()
    if end == "closed":
        writer.end()
    else:
        writer.readers.fail(ConnectionLost("gone"))
    assert not writer.holders
    assert len(await take(stream, count)) == count


async def test_a_reader_that_is_collected_by_another_thread_leaves_in_that_of_its_loop() -> None:
    threads: list[int] = []
    released = asyncio.Event()

    def release(holder: object) -> None:
        threads.append(threading.get_ident())
        released.set()

    readers = EventReaders(OutputLog(), lambda holder: None, release)
    cycle: list[object] = [readers.stream()]
    cycle.append(cycle)
    del cycle
    async with asyncio.timeout(5):
        await asyncio.to_thread(gc.collect)
        await released.wait()
    assert threads == [threading.get_ident()]
