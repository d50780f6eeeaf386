"""Writes that are accepted once, in order, and wait when there is no room."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import InvalidRequest
from holdfast.engine.process.io import input_budget
from holdfast.engine.process.io import stdin as module
from holdfast.engine.process.io.input_budget import InputBudget, InputTotal
from holdfast.engine.process.io.stdin import MAX_QUEUED_WRITES, MAX_REMEMBERED_IDS, StdinQueue
from holdfast.wire.protocol.process import WriteStatus

ACCEPTED = WriteStatus.ACCEPTED
PAGE = 4096


class Pipe:
    """A queue in front of a pipe of one page, and the end a process would read from."""

    def __init__(self, budget: InputBudget | None = None) -> None:
        self.reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PAGE)
        os.set_blocking(writer, False)
        os.set_blocking(self.reader, False)
        self.writer = writer
        self.budget = InputBudget() if budget is None else budget
        self.queue = StdinQueue(asyncio.get_running_loop(), writer, budget=self.budget)
        self._reading = True
        self.writes = 0

    def read(self) -> bytes | None:
        """Return what can be read at once; `None` if there is nothing, empty at the end."""
        try:
            return os.read(self.reader, 1 << 20)
        except BlockingIOError:
            return None

    async def wait_readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.reader, readable.set)
        try:
            async with asyncio.timeout(5):
                await readable.wait()
        finally:
            loop.remove_reader(self.reader)

    async def read_all(self, size: int) -> bytes:
        """So many bytes, making room until they are there."""
        found = b""
        while len(found) < size:
            await self.wait_readable()
            data = self.read()
            assert data, "the end came first"
            found += data
        return found

    async def read_to_end(self) -> bytes:
        found = b""
        while True:
            await self.wait_readable()
            data = self.read()
            if not data:
                return found
            found += data

    def fill(self) -> int:
        """Queue writes until one has to wait; how many were accepted."""
        count = 0
        while self.queue.write(bytes(PAGE), f"fill-{count}") is ACCEPTED:
            count += 1
        return count

    def stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            os.close(self.reader)

    def finish(self) -> None:
        self.stop_reading()
        self.queue.discard()
        assert self.budget.waiting == 0  # whatever became of the writes


@pytest.fixture
async def pipe() -> AsyncIterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.finish()


def waiting(status: object) -> "asyncio.Future[WriteStatus]":
    assert isinstance(status, asyncio.Future)
    assert not status.done()
    return status


@pytest.mark.requirement("write.accepted")
async def test_a_write_reaches_the_pipe_at_once_if_there_is_room(pipe: Pipe) -> None:
    assert pipe.queue.write(b"one", "1") is ACCEPTED
    assert pipe.queue.write(b"two", "2") is ACCEPTED
    assert pipe.read() == b"onetwo"


@pytest.mark.requirement("write.once")
async def test_an_id_that_was_accepted_is_not_written_again_even_with_other_bytes(
    pipe: Pipe,
) -> None:
    assert pipe.queue.write(b"one", "1") is ACCEPTED
    assert pipe.queue.write(b"one", "1") is ACCEPTED
    assert pipe.queue.write(b"other", "1") is ACCEPTED
    assert pipe.queue.write(b"two", "2") is ACCEPTED
    assert pipe.read() == b"onetwo"


@pytest.mark.requirement("write.empty-chunk")
async def test_an_empty_write_is_accepted_and_remembered(pipe: Pipe) -> None:
    assert pipe.queue.write(b"", "1") is ACCEPTED
    assert pipe.queue.write(b"x", "1") is ACCEPTED
    assert pipe.read() is None


@pytest.mark.requirement("write.id-memory")
async def test_4096_ids_are_remembered_and_one_more_forgets_the_oldest(pipe: Pipe) -> None:
    assert MAX_REMEMBERED_IDS == 4096
    pipe.queue.write(b"first", "first")
    for number in range(MAX_REMEMBERED_IDS - 1):
        pipe.queue.write(b"", str(number))
    pipe.queue.write(b"first", "first")
    assert pipe.read() == b"first"
    pipe.queue.write(b"", "one more")
    pipe.queue.write(b"first", "first")
    assert pipe.read() == b"first"


# No room.


@pytest.mark.requirement("write.back-pressure")
async def test_128_writes_are_queued_beyond_the_pipe_and_the_next_one_waits(pipe: Pipe) -> None:
    assert pipe.fill() == MAX_QUEUED_WRITES + 1 == 129  # one is in the pipe
    held = waiting(pipe.queue.write(b"held", "held"))
    await pipe.read_all(2 * PAGE)
    async with asyncio.timeout(5):
        await held


@pytest.mark.requirement("write.back-pressure")
async def test_a_write_that_waits_is_written_once_there_is_room_and_in_its_turn(pipe: Pipe) -> None:
    accepted = pipe.fill()
    # The one that found no room has the next id, and a page of zeros.
    first = waiting(pipe.queue.write(b"other bytes", f"fill-{accepted}"))
    second = waiting(pipe.queue.write(b"second", "second"))
    third = waiting(pipe.queue.write(b"third", "third"))
    data = await pipe.read_all((accepted + 1) * PAGE + 11)
    async with asyncio.timeout(5):
        await asyncio.gather(first, second, third)
    assert data == bytes((accepted + 1) * PAGE) + b"secondthird"


@pytest.mark.requirement("write.once", "write.back-pressure")
async def test_a_write_that_is_repeated_while_it_waits_is_written_once(pipe: Pipe) -> None:
    accepted = pipe.fill()
    held = waiting(pipe.queue.write(b"again", "again"))
    assert pipe.queue.write(b"again", "again") is held
    data = await pipe.read_all((accepted + 1) * PAGE + 5)
    assert data.endswith(b"again")
    assert pipe.queue.write(b"again", "again") is ACCEPTED
    assert pipe.read() is None


async def test_a_write_whose_caller_went_away_is_not_written(pipe: Pipe) -> None:
    accepted = pipe.fill()
    gone = waiting(pipe.queue.write(b"gone", "gone"))
    stays = waiting(pipe.queue.write(b"stays", "stays"))
    gone.cancel()
    data = await pipe.read_all((accepted + 1) * PAGE + 5)
    assert data.endswith(b"\0stays")
    assert stays.done()


@pytest.mark.requirement("write.once")
async def test_a_caller_that_comes_back_takes_its_place_again(pipe: Pipe) -> None:
    accepted = pipe.fill()
    gone = waiting(pipe.queue.write(b"back", "back"))
    last = waiting(pipe.queue.write(b"last", "last"))
    gone.cancel()
    again = waiting(pipe.queue.write(b"back", "back"))
    data = await pipe.read_all((accepted + 1) * PAGE + 8)
    async with asyncio.timeout(5):
        await asyncio.gather(again, last)
    assert data.endswith(b"\0backlast")


# The end of the input.


async def test_the_end_comes_after_what_was_written_before(pipe: Pipe) -> None:
    accepted = pipe.fill()
    held = waiting(pipe.queue.write(b"held", "held"))
    pipe.queue.end()
    assert pipe.queue.write(b"late", "late") is WriteStatus.STDIN_CLOSED
    assert pipe.queue.write(b"held", "held") is held
    assert pipe.queue.write(b"x", "fill-0") is ACCEPTED  # accepted before
    data = await pipe.read_to_end()
    assert data == bytes((accepted + 1) * PAGE) + b"held"
    assert held.done()


async def test_what_waited_at_the_end_is_written_also_if_its_caller_is_cut_off(pipe: Pipe) -> None:
    accepted = pipe.fill()
    gone = waiting(pipe.queue.write(b"gone", "gone"))
    gone.cancel()
    held = waiting(pipe.queue.write(b"held", "held"))
    pipe.queue.end()
    held.cancel()
    data = await pipe.read_to_end()
    assert data == bytes((accepted + 1) * PAGE) + b"held"
    assert pipe.queue.write(b"held", "held") is ACCEPTED
    assert pipe.queue.write(b"gone", "gone") is WriteStatus.STDIN_CLOSED


async def test_the_end_of_an_idle_queue_comes_at_once(pipe: Pipe) -> None:
    pipe.queue.end()
    assert pipe.read() == b""
    pipe.queue.end()  # harmless
    assert pipe.queue.write(b"late", "late") is WriteStatus.STDIN_CLOSED


# A process that has gone.


@pytest.mark.requirement("write.vanishes")
async def test_writes_to_a_process_that_has_gone_are_accepted_and_vanish(pipe: Pipe) -> None:
    pipe.fill()
    held = waiting(pipe.queue.write(b"held", "held"))
    pipe.queue.discard()
    assert held.done()
    assert pipe.queue.write(b"more", "more") is ACCEPTED
    pipe.queue.discard()  # harmless


@pytest.mark.requirement("write.vanishes")
async def test_writes_to_a_process_that_closed_its_input_are_accepted_and_vanish(
    pipe: Pipe,
) -> None:
    pipe.stop_reading()
    assert pipe.queue.write(b"one", "1") is ACCEPTED
    assert pipe.queue.write(b"two", "2") is ACCEPTED


@pytest.mark.requirement("write.vanishes")
async def test_a_process_that_closes_its_input_lets_those_that_wait_go_on(pipe: Pipe) -> None:
    pipe.fill()
    held = waiting(pipe.queue.write(b"held", "held"))
    pipe.stop_reading()
    async with asyncio.timeout(5):
        await held


@pytest.mark.requirement("write.terminated")
async def test_a_process_that_was_terminated_refuses_writes(pipe: Pipe) -> None:
    pipe.fill()
    held = waiting(pipe.queue.write(b"held", "held"))
    gone = waiting(pipe.queue.write(b"gone", "gone"))
    gone.cancel()
    pipe.queue.refuse()
    assert await held is WriteStatus.STDIN_CLOSED
    assert pipe.queue.write(b"x", "x") is WriteStatus.STDIN_CLOSED
    # Also one that was accepted before.
    assert pipe.queue.write(b"x", "fill-0") is WriteStatus.STDIN_CLOSED


async def test_a_descriptor_that_is_shared_is_left_open() -> None:
    reader, writer = os.pipe()
    queue = StdinQueue(asyncio.get_running_loop(), writer, shared=True)
    queue.write(b"x", "1")
    queue.discard()
    os.write(writer, b"y")
    assert os.read(reader, 10) == b"xy"
    os.close(writer)
    os.close(reader)


# Any writes, repeats and pauses, against a model.

QUEUED = 3
REMEMBERED = 4

writes = st.tuples(st.integers(0, 7), st.sampled_from([0, 1, 3000, 6000]))
steps = st.lists(writes | st.none(), max_size=40)
"""Writes of an id and a size; and in between, reads of all there is."""


class Model:
    """Return what a queue should have accepted: each id once while it is remembered, in order."""

    def __init__(self) -> None:
        self.text = b""
        self.remembered: list[str] = []

    def accept(self, write_id: str, data: bytes) -> None:
        assert write_id not in self.remembered
        self.text += data
        self.remembered = [*self.remembered, write_id][-REMEMBERED:]


@pytest.mark.slow
@pytest.mark.requirement("write.once", "write.accepted", "write.id-memory")
@given(steps)
async def test_accepted_writes_arrive_once_and_in_order(
    steps: list[tuple[int, int] | None],
) -> None:
    pipe = Pipe()
    model = Model()
    held: dict[str, tuple[asyncio.Future[WriteStatus], bytes]] = {}
    arrived = b""

    def settle() -> None:
        """Tell the model of writes that waited and were accepted since."""
        for write_id in [write_id for write_id, (future, _) in held.items() if future.done()]:
            model.accept(write_id, held.pop(write_id)[1])

    with patch.multiple(module, MAX_QUEUED_WRITES=QUEUED, MAX_REMEMBERED_IDS=REMEMBERED):
        for number, step in enumerate(steps):
            if step is None:
                arrived += pipe.read() or b""
                await asyncio.sleep(0)  # the queue may see that there is room
                settle()
                continue
            write_id, data = str(step[0]), bytes([number]) * step[1]
            status = pipe.queue.write(data, write_id)
            if write_id in held:
                assert status is held[write_id][0]
            elif isinstance(status, asyncio.Future):
                held[write_id] = (status, data)
            elif write_id not in model.remembered:
                assert not held  # nothing overtakes a write that waits
                model.accept(write_id, data)
        pipe.queue.end()
        arrived += await pipe.read_to_end()
        settle()
    pipe.finish()
    assert not held
    assert arrived == model.text


# -- bytes that wait


@pytest.mark.requirement("write.bounded")
async def test_few_large_writes_fill_the_queue_too(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 4 * PAGE)
    assert pipe.queue.write(bytes(8 * PAGE), "1") is ACCEPTED
    second = waiting(pipe.queue.write(b"second", "2"))
    assert pipe.budget.waiting == 7 * PAGE + 6
    assert (await pipe.read_all(8 * PAGE + 6)).endswith(b"second")
    await second
    assert pipe.budget.waiting == 0


@pytest.mark.requirement("write.bounded", "security.others.input")
async def test_more_than_may_wait_is_refused_and_writes_nothing(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_budget, "MAX_OWNER_BYTES", 4 * PAGE)
    assert pipe.queue.write(bytes(4 * PAGE), "1") is ACCEPTED
    with pytest.raises(InvalidRequest, match=f"{2 * PAGE} more would exceed .* for one client"):
        pipe.queue.write(bytes(2 * PAGE), "2")
    # It was not accepted, so it may be tried again.
    assert len(await pipe.read_all(4 * PAGE)) == 4 * PAGE
    assert pipe.queue.write(b"again", "2") is ACCEPTED
    assert await pipe.read_all(5) == b"again"


@pytest.mark.requirement("write.bounded")
async def test_writes_that_wait_for_the_queue_count_too(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = pipe.fill()
    monkeypatch.setattr(input_budget, "MAX_OWNER_BYTES", pipe.budget.waiting + PAGE)
    waits = waiting(pipe.queue.write(bytes(PAGE), "waits"))
    with pytest.raises(InvalidRequest):
        pipe.queue.write(b"x", "refused")
    waits.cancel()
    waiting(pipe.queue.write(bytes(PAGE), "waits"))  # who comes back keeps its position
    pipe.queue.refuse()
    assert pipe.budget.waiting == 0
    assert count > MAX_QUEUED_WRITES


@pytest.mark.requirement("write.bounded", "security.others.input")
async def test_who_fills_the_total_leaves_the_others_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_budget, "MAX_TOTAL_BYTES", 16 * PAGE)
    monkeypatch.setattr(input_budget, "SHARE_BYTES", 2 * PAGE)
    total = InputTotal()
    greedy, modest = Pipe(InputBudget(total)), Pipe(InputBudget(total))
    try:
        assert greedy.queue.write(bytes(17 * PAGE), "1") is ACCEPTED
        with pytest.raises(InvalidRequest, match="for this server"):
            greedy.queue.write(b"more", "2")
        assert modest.queue.write(bytes(2 * PAGE), "1") is ACCEPTED
        with pytest.raises(InvalidRequest, match="for this server"):
            modest.queue.write(bytes(2 * PAGE), "2")
    finally:
        greedy.finish()
        modest.finish()
    assert total.waiting == 0


@pytest.mark.requirement("write.bounded")
async def test_who_waits_for_answers_is_held_up_and_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_budget, "MAX_OWNER_BYTES", 64 * PAGE)
    monkeypatch.setattr(module, "FEW_QUEUED_BYTES", PAGE)
    budget = InputBudget()
    pipes = [Pipe(budget) for _ in range(12)]
    try:
        held = [pipe for pipe in pipes for _ in range(8) if await_no_more(pipe)]
        assert len(held) > len(pipes) // 2
        (reading,) = pipes[-1:]
        # Whoever reads goes on, however much waits for the others.
        got = 0
        while budget.is_tight and got < 16 * PAGE:
            got += len(await reading.read_all(1))
            await_no_more(reading)
        assert got >= 16 * PAGE
    finally:
        for pipe in pipes:
            pipe.queue.refuse()
        for pipe in pipes:
            pipe.finish()


def await_no_more(pipe: Pipe) -> bool:
    """Write one page more, unless an answer is still due; whether it waits."""
    if any(not future.done() for future, _ in pipe.queue._waiting.values()):
        return False
    pipe.writes += 1
    return pipe.queue.write(bytes(PAGE), f"page {pipe.writes}") is not ACCEPTED
