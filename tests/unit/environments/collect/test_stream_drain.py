"""End of each stream of a process that has exited, here and on a server."""

import asyncio

import pytest

from holdfast.backends import ExecProcess
from holdfast.base.errors import ConnectionLost, HoldfastError
from holdfast.environments.collect.drain import StreamDrain
from holdfast.testing import FakeProcess
from holdfast.wire.protocol.process import OutputStream, ReadResponse

pytestmark = pytest.mark.virtual_time

QUIET = 0.05


class SlowAnswers(FakeProcess):
    """A process behind a line, whose questions wait until the test lets them be answered."""

    def __init__(self) -> None:
        super().__init__(remote=True)
        self.questions: list[int] = []
        """The number of each."""
        self._may_answer = asyncio.Semaphore(0)
        self.forgotten = False
        """True once the server keeps none of its output."""

    def answer(self) -> None:
        self._may_answer.release()

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        self.questions.append(after_seq)
        # What it answers is from the end of its wait, as the answer of a server is.
        await self._may_answer.acquire()
        answer = await super().read(after_seq, max_bytes, wait)
        if self.forgotten:
            answer.chunks.clear()
        return answer


def draining(process: ExecProcess, *, limit: float = 2.0) -> StreamDrain:
    streams: list[OutputStream] = ["stdout", "stderr"]
    return StreamDrain(process, streams, quiet=QUIET, limit=limit, last_pass=256)


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


async def read_all(drain: StreamDrain) -> list[bytes]:
    return [chunk.chunk async for chunk in drain]


async def test_a_question_about_one_stream_survives_the_bytes_of_another() -> None:
    process = SlowAnswers()
    drain = draining(process)
    process.exit()
    reading = asyncio.create_task(read_all(drain))
    await asyncio.sleep(QUIET + 0.01)
    assert process.questions == [1]
    for _ in range(5):
        process.output(b"e", "stderr")
        await asyncio.sleep(0.04)
    assert process.questions == [1]
    process.answer()
    await asyncio.sleep(0.001)
    assert drain.given_up == {"stdout"}
    process.output(b"too late", "stdout")
    process.answer()
    assert await reading == [b"e"] * 5
    assert drain.given_up == {"stdout", "stderr"}
    assert len(process.questions) == 2


async def test_a_byte_that_the_answer_knows_of_is_waited_for() -> None:
    process = SlowAnswers()
    drain = draining(process, limit=100)
    process.exit()
    reading = asyncio.create_task(read_all(drain))
    await asyncio.sleep(QUIET + 0.01)
    process.delay()
    process.output(b"late", "stdout")
    process.answer()
    await asyncio.sleep(10)
    assert drain.given_up == {"stderr"}
    assert not reading.done()
    process.arrive()
    await asyncio.sleep(QUIET + 0.01)
    process.answer()
    assert await reading == [b"late"]
    assert drain.given_up == {"stdout", "stderr"}


async def test_an_answer_that_forgot_output_decides_nothing() -> None:
    process = SlowAnswers()
    drain = draining(process, limit=100)
    process.exit()
    reading = asyncio.create_task(read_all(drain))
    await asyncio.sleep(QUIET + 0.01)
    process.delay()
    process.output(b"late", "stdout")
    process.forgotten = True
    process.answer()
    await asyncio.sleep(1)
    assert drain.given_up == set()
    process.arrive()
    process.forgotten = False
    await asyncio.sleep(0.001)  # stderr is asked for at once, it was quiet long enough
    process.answer()
    await asyncio.sleep(QUIET + 0.01)
    process.answer()
    assert await reading == [b"late"]


async def test_the_close_ends_it_whoever_was_asked() -> None:
    process = SlowAnswers()
    drain = draining(process)
    process.exit()
    reading = asyncio.create_task(read_all(drain))
    await asyncio.sleep(QUIET + 0.01)
    assert process.questions == [1]
    process.output(b"end")
    process.close()
    assert await reading == [b"end"]
    assert not drain.given_up
    assert not drain.still_open


async def test_after_the_limit_what_exists_is_handed_out_however_slow_the_line_is() -> None:
    process = SlowAnswers()
    drain = draining(process, limit=0.2)
    process.exit()
    reading = asyncio.create_task(read_all(drain))
    await asyncio.sleep(0.19)
    process.delay()
    process.output(b"in time")
    await asyncio.sleep(0.02)
    process.answer()  # to the question about the quiet window
    process.answer()
    await asyncio.sleep(5)
    assert not reading.done()
    process.arrive()
    assert await reading == [b"in time"]
    assert drain.still_open


async def test_the_limit_counts_from_an_exit_that_was_noted() -> None:
    process = FakeProcess()
    drain = draining(process)
    process.output(b"own")
    process.exit()
    drain.note_exit()
    await asyncio.sleep(3)
    process.output(b"ready")
    assert await read_all(drain) == [b"own", b"ready"]
    assert now() == 3.0


async def test_a_wait_that_is_cancelled_loses_nothing() -> None:
    process = FakeProcess()
    drain = draining(process)
    process.exit()
    reading = asyncio.ensure_future(anext(drain))
    await asyncio.sleep(0)
    process.output(b"1")
    reading.cancel()  # in the moment in which it comes
    await asyncio.gather(reading, return_exceptions=True)
    assert reading.cancelled()
    process.output(b"2")
    assert await read_all(drain) == [b"1", b"2"]


async def test_a_finished_stream_is_dropped_and_not_waited_for() -> None:
    process = FakeProcess()
    drain = draining(process)
    process.output(b"a")
    process.output(b"b", "stderr")
    assert (await anext(drain)).chunk == b"a"
    drain.finish("stdout")
    process.output(b"c")
    process.exit()
    process.stream_ended("stderr")
    assert await read_all(drain) == [b"b"]
    assert (now(), drain.given_up, drain.still_open) == (0.0, set(), True)


async def test_a_line_that_is_lost_for_good_ends_it() -> None:
    process = SlowAnswers()
    drain = draining(process)
    process.exit()
    reading = asyncio.create_task(read_all(drain))
    await asyncio.sleep(QUIET + 0.01)
    lost: HoldfastError = ConnectionLost("gone")
    process.lose_for_good(lost)
    with pytest.raises(ConnectionLost):
        await reading
    drain.close()
    drain.close()


async def test_what_is_ready_is_taken_without_a_wait() -> None:
    process = FakeProcess()
    drain = draining(process)
    assert drain.take_ready(10) is None
    process.output(b"one")
    process.output(b"more than ten", "stderr")
    process.output(b"two")
    taken = drain.take_ready(10)
    assert taken is not None
    assert taken.chunk == b"one"
    assert drain.take_ready(10) is None  # the next one is too large, and none overtakes it
    drain.finish("stderr")
    taken = drain.take_ready(13)
    assert taken is not None
    assert taken.chunk == b"two"
    process.exit()
    assert drain.take_ready(10) is None  # that is no output
    process.close()
    assert await read_all(drain) == []


async def test_after_the_limit_nothing_is_taken_that_was_not_asked_for() -> None:
    process = FakeProcess()
    drain = StreamDrain(process, ["stdout", "stderr"], quiet=None, limit=0.1, last_pass=2)
    process.output(b"first")
    process.exit()
    assert (await anext(drain)).chunk == b"first"
    reading = asyncio.create_task(anext(drain))
    await asyncio.sleep(0.05)
    process.output(b"late")
    assert (await reading).chunk == b"late"
    await asyncio.sleep(0.1)
    for _ in range(4):
        process.output(b"x")
    assert drain.take_ready(10) is None
    assert await read_all(drain) == [b"x", b"x"]
