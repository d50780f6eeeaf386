"""Requests with one key have their turns in the order they came."""

import asyncio

import pytest

from holdfast.front.app_server.order import QueuePosition, RequestQueues

pytestmark = pytest.mark.requirement("app-server.order")


async def test_places_are_entered_in_the_order_they_were_taken() -> None:
    line = RequestQueues()
    seen: list[int] = []
    begun = [asyncio.Event() for _ in range(3)]
    go = [asyncio.Event() for _ in range(3)]

    async def visit(number: int, position: QueuePosition) -> None:
        async with position:
            seen.append(number)
            begun[number].set()
            await go[number].wait()

    positions = [line.take("a") for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        # Even if the last one is the first to come.
        for number in (2, 1, 0):
            tasks.create_task(visit(number, positions[number]))
        for number in range(3):
            await begun[number].wait()
            assert seen == list(range(number + 1))
            go[number].set()
    assert len(line) == 0


async def test_keys_do_not_wait_for_each_other() -> None:
    line = RequestQueues()
    async with line.take("a"), line.take("b"):
        assert len(line) == 2
    assert len(line) == 0


async def test_one_that_fails_lets_the_next_one_in() -> None:
    line = RequestQueues()
    first, second = line.take("a"), line.take("a")
    with pytest.raises(LookupError):
        async with first:
            raise LookupError
    async with second:
        assert len(line) == 1


async def test_one_that_is_cancelled_while_it_waits_breaks_nothing() -> None:
    line = RequestQueues()
    first, second = line.take("a"), line.take("a")
    async with first:

        async def wait() -> None:
            async with second:
                raise AssertionError("its turn never comes")

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
    async with line.take("a"):
        assert len(line) == 1
    assert len(line) == 0
