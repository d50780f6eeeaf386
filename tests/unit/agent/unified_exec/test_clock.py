"""Time limits stand still while the clock is paused."""

import asyncio

import pytest

from holdfast.agent.unified_exec.waiting.clock import PausableClock

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.requirement("unified-exec.waiting.pause"),
]


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_limit_without_a_pause() -> None:
    clock, event, start = PausableClock(), asyncio.Event(), now()
    assert await clock.wait(event, 2.0) is False
    assert now() - start == pytest.approx(2.0)
    event.set()
    assert await clock.wait(event, 2.0) is True
    assert await clock.wait(asyncio.Event(), 0) is False


async def test_a_pause_moves_the_deadline_by_its_length() -> None:
    clock, event, start = PausableClock(), asyncio.Event(), now()
    waiting = asyncio.ensure_future(clock.wait(event, 2.0))
    await asyncio.sleep(1.5)
    with clock.paused():
        await asyncio.sleep(10)
        with clock.paused():  # a second question at the same time
            await asyncio.sleep(10)
        await asyncio.sleep(1)
        assert not waiting.done()
    assert await waiting is False
    assert now() - start == pytest.approx(23.0)


async def test_what_happens_in_a_pause_is_reported_after_it() -> None:
    clock, event = PausableClock(), asyncio.Event()
    waiting = asyncio.ensure_future(clock.wait(event, 2.0))
    await asyncio.sleep(1)
    with clock.paused():
        event.set()
        await asyncio.sleep(10)
        assert not waiting.done()
    assert await waiting is True


async def test_a_wait_that_begins_in_a_pause_has_its_whole_time() -> None:
    clock = PausableClock()
    with clock.paused():
        waiting = asyncio.ensure_future(clock.wait(asyncio.Event(), 2.0))
        await asyncio.sleep(5)
    start = now()
    assert await waiting is False
    assert now() - start == pytest.approx(2.0)


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    clock = PausableClock()
    waiting = asyncio.ensure_future(clock.wait(asyncio.Event(), 2.0))
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert clock._limits == {}
    with clock.paused():
        pass


async def test_a_pause_in_the_moment_of_the_deadline() -> None:
    clock = PausableClock()
    start = now()
    loop = asyncio.get_running_loop()
    waiting = asyncio.ensure_future(clock.wait(asyncio.Event(), 2.0))
    await asyncio.sleep(0)
    paused = asyncio.Event()

    def pause() -> None:
        with clock.paused():  # the limit is over, and the wait has not learned it yet
            paused.set()

    loop.call_at(start + 2.0 + 1e-12, pause)
    assert await waiting is False
    await paused.wait()


async def test_a_pause_behind_another_one() -> None:
    """A wait that the end of the first pause wakes finds the clock paused again."""
    clock, start = PausableClock(), now()
    with clock.paused():
        beginning = asyncio.ensure_future(clock.wait(asyncio.Event(), 2.0))
        happened = asyncio.Event()
        event = asyncio.ensure_future(clock.wait(happened, 2.0))
        await asyncio.sleep(1)
    with clock.paused():
        await asyncio.sleep(10)
        happened.set()
        await asyncio.sleep(1)
        assert not beginning.done()
        assert not event.done()
    assert await event is True
    assert await beginning is False
    assert now() - start == pytest.approx(14.0)


async def test_no_wait_is_longer_than_the_longest_whatever_is_paused() -> None:
    clock, event, start = PausableClock(longest=5.0), asyncio.Event(), now()
    assert await clock.wait(event, 60.0) is False
    assert now() - start == pytest.approx(5.0)
    with clock.paused():
        start = now()
        assert await clock.wait(event, 1.0) is False
        # Once for the clock to run again, and once for the event.
        assert now() - start <= 10.0
        event.set()
        assert await clock.wait(event, 1.0) is True
