"""The result of a thread is never lost, although its caller was cancelled."""

import asyncio
import threading

import pytest

from holdfast.base.tasks import made_in_thread

pytestmark = pytest.mark.both_loops


@pytest.mark.parametrize("thread", ["quick", "stuck"])
async def test_what_a_cancelled_caller_does_not_get_is_discarded(thread: str) -> None:
    begun, discarded = asyncio.Event(), asyncio.Event()
    may_end = threading.Event()
    loop = asyncio.get_running_loop()

    def make() -> asyncio.Event:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait(10)
        return discarded

    caller = asyncio.create_task(made_in_thread(make, asyncio.Event.set))
    async with asyncio.timeout(10):
        await begun.wait()
        caller.cancel()
        if thread == "quick":
            may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert discarded.is_set() == (thread == "quick")
        may_end.set()
        await discarded.wait()


async def test_a_caller_gets_what_was_made_or_its_error() -> None:
    discarded: list[int] = []
    assert await made_in_thread(lambda: 7, discarded.append) == 7
    with pytest.raises(ZeroDivisionError):
        await made_in_thread(lambda: 1 // 0, discarded.append)
    assert not discarded
