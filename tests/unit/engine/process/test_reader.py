"""From a descriptor into the log, with real pipes and terminals."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import pytest

from holdfast.engine.process.io.log import LogListener, OutputLog
from holdfast.engine.process.io.output_reader import CHUNK, OutputReader
from holdfast.engine.process.pty import open_terminal
from holdfast.events import StreamEnded
from holdfast.wire.protocol.process import OutputStream


class Line:
    """A pump, the end a process would write to, and the log between."""

    def __init__(self, reader: int, writer: int, stream: OutputStream = "stdout") -> None:
        os.set_blocking(reader, False)
        self.reader = reader
        self.writer = writer
        self.log = OutputLog()
        self.ended = asyncio.Event()
        self.ends = 0
        self.pump = OutputReader(asyncio.get_running_loop(), reader, stream, self.log, self._end)
        self._stack = ExitStack()
        self._stack.callback(os.close, writer)

    def _end(self) -> None:
        self.ends += 1
        self.ended.set()

    def hang_up(self) -> None:
        """Close the writer's end."""
        self._stack.close()

    def finish(self) -> None:
        self._stack.close()
        self.pump.close()

    @property
    def text(self) -> bytes:
        return b"".join(chunk.chunk for chunk in self.log.read().chunks)

    async def arrived(self, size: int) -> None:
        """Wait until so many bytes are in the log."""
        await self.until(lambda: len(self.text) >= size)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                changed = asyncio.Event()
                self.log.wake_once(changed.set)
                await changed.wait()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line(*os.pipe())
    yield line
    line.finish()


@pytest.fixture
async def terminal() -> AsyncIterator[Line]:
    line = Line(*open_terminal(24, 80), stream="pty")
    yield line
    line.finish()


@pytest.mark.requirement("output.raw")
async def test_what_is_written_becomes_an_entry_as_it_is(line: Line) -> None:
    os.write(line.writer, b"half a \xc3")
    await line.until(lambda: line.log.next_seq == 2)
    os.write(line.writer, b"\xa4 letter")
    await line.until(lambda: line.log.next_seq == 3)
    chunks = line.log.read().chunks
    assert [(c.stream, c.chunk) for c in chunks] == [
        ("stdout", b"half a \xc3"),
        ("stdout", b"\xa4 letter"),
    ]


async def test_the_end_of_a_pipe_ends_the_pump_once(line: Line) -> None:
    os.write(line.writer, b"last")
    line.hang_up()
    async with asyncio.timeout(5):
        await line.ended.wait()
    assert line.text == b"last"
    assert not line.pump.open
    line.pump.close()
    line.pump.drain()
    assert line.ends == 1


async def test_a_terminal_ends_when_its_process_has_gone_and_nobody_has_it_open(
    terminal: Line,
) -> None:
    terminal.pump.process_gone = True
    os.write(terminal.writer, b"last\n")
    terminal.hang_up()
    async with asyncio.timeout(5):
        await terminal.ended.wait()
    assert terminal.text == b"last\r\n"
    assert [c.stream for c in terminal.log.read().chunks] == ["pty"]


async def test_a_terminal_that_nobody_has_open_can_be_opened_again(terminal: Line) -> None:
    name = os.ttyname(terminal.writer)
    terminal.hang_up()
    terminal.pump.drain()
    terminal.pump.drain()
    assert terminal.pump.open
    again = os.open(name, os.O_RDWR | os.O_NOCTTY)
    os.write(again, b"back")
    await terminal.until(lambda: terminal.text == b"back")
    terminal.pump.process_gone = True
    os.close(again)
    async with asyncio.timeout(5):
        await terminal.ended.wait()


async def test_a_large_write_comes_in_chunks_of_64_kib(line: Line) -> None:
    data = os.urandom(3 * CHUNK + 5)
    for start in range(0, len(data), CHUNK):  # as much as a pipe holds
        os.write(line.writer, data[start : start + CHUNK])
        await line.arrived(min(start + CHUNK, len(data)))
    assert line.text == data
    assert [len(c.chunk) for c in line.log.read().chunks] == [CHUNK, CHUNK, CHUNK, 5]


async def test_a_pipe_that_carries_a_lot_gets_a_larger_buffer(line: Line) -> None:
    before = fcntl.fcntl(line.reader, fcntl.F_GETPIPE_SZ)
    os.write(line.writer, bytes(before))
    await line.until(lambda: len(line.text) == before)
    assert before == CHUNK
    assert fcntl.fcntl(line.reader, fcntl.F_GETPIPE_SZ) >= before


async def test_a_held_pump_leaves_everything_where_it_is(line: Line) -> None:
    line.pump.hold()
    line.pump.hold()  # harmless
    os.write(line.writer, b"later")
    await asyncio.sleep(0)
    assert line.log.next_seq == 1
    line.pump.release()
    line.pump.release()  # harmless
    await line.until(lambda: line.text == b"later")


async def test_whoever_is_told_of_output_may_hold_the_pump_at_once(line: Line) -> None:
    line.log.wake_once(line.pump.hold)
    os.write(line.writer, bytes(CHUNK))
    await line.until(lambda: line.log.next_seq == 2)
    os.write(line.writer, b"more")
    await asyncio.sleep(0)
    assert line.log.next_seq == 2
    line.pump.release()
    await line.until(lambda: line.log.next_seq == 3)


async def test_draining_takes_what_is_there_without_waiting(line: Line) -> None:
    os.write(line.writer, b"now")
    line.pump.drain()
    assert line.text == b"now"
    line.pump.drain()
    assert line.log.next_seq == 2


async def test_draining_takes_what_is_there_also_while_it_is_held(line: Line) -> None:
    line.pump.hold()
    os.write(line.writer, b"now")
    line.pump.drain()
    assert line.text == b"now"
    os.write(line.writer, b"later")
    await asyncio.sleep(0)
    assert line.text == b"now"  # the hold goes on


@pytest.mark.parametrize("hang_up", [True, False], ids=["ended", "closed by us"])
async def test_the_end_of_a_stream_is_noted_once_whoever_ends_it(line: Line, hang_up: bool) -> None:
    noted: list[StreamEnded] = []

    class Listener(LogListener):
        def stream_ended(self, event: StreamEnded) -> None:
            assert line.ends == 0  # before anybody else hears of it
            noted.append(event)

    line.log.subscribe(Listener())
    os.write(line.writer, b"last")
    line.pump.drain()
    if hang_up:
        line.hang_up()
        async with asyncio.timeout(5):
            await line.ended.wait()
    line.pump.close()
    line.pump.close()
    assert noted == [StreamEnded("stdout", 1)]


async def test_draining_meets_the_end(line: Line) -> None:
    os.write(line.writer, b"now")
    line.hang_up()
    line.pump.drain()
    assert line.text == b"now"
    assert line.ends == 1


async def test_draining_does_not_follow_a_writer_without_end(line: Line) -> None:
    class Refill:
        """Writes as much as was read, so that the pipe is never empty."""

        def __init__(self) -> None:
            self.rounds = 0

        def __call__(self) -> None:
            self.rounds += 1
            line.log.wake_once(self)
            os.write(line.writer, bytes(CHUNK))

    refill = Refill()
    line.log.wake_once(refill)
    os.write(line.writer, bytes(CHUNK))
    line.pump.drain()
    assert line.pump.open
    assert refill.rounds <= 64


async def test_a_closed_pump_loses_what_was_not_read(line: Line) -> None:
    os.write(line.writer, b"lost")
    line.pump.close()
    assert line.ends == 1
    assert line.text == b""
    with pytest.raises(BrokenPipeError):
        os.write(line.writer, b"x")
    line.pump.hold()
    line.pump.release()  # harmless


async def test_a_held_pump_can_be_closed(line: Line) -> None:
    line.pump.hold()
    line.pump.close()
    assert line.ends == 1


async def test_a_terminal_is_read_in_one_go(terminal: Line) -> None:
    os.set_blocking(terminal.writer, False)
    sent = 0
    try:
        while True:
            sent += os.write(terminal.writer, b"x" * 1000)
    except BlockingIOError:
        pass  # it is full
    assert sent > 1000
    await terminal.until(lambda: len(terminal.text) == sent)
    assert max(len(c.chunk) for c in terminal.log.read().chunks) <= CHUNK


async def test_draining_a_terminal_takes_what_is_there(terminal: Line) -> None:
    os.write(terminal.writer, b"now")
    terminal.pump.drain()
    assert terminal.text == b"now"
    terminal.pump.process_gone = True
    terminal.hang_up()
    terminal.pump.drain()
    assert terminal.ends == 1
