"""Answers that need no task: to a caller they are coroutines like any other."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.backends import Later, Ready, at_once
from holdfast.base.errors import InvalidParams

pytestmark = pytest.mark.both_loops


class Doubler:
    """A seam with one method, which waits only if it is given a future."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    @at_once
    def double(self, given: int | asyncio.Future[int]) -> int | Coroutine[Any, Any, int]:
        self.asked.append(given)
        if isinstance(given, int):
            if given < 0:
                raise InvalidParams("it is below zero")
            return 2 * given
        return self._double(given)

    async def _double(self, given: asyncio.Future[int]) -> int:
        return 2 * await given


async def test_an_answer_that_is_known_is_there_without_a_wait() -> None:
    answer = Doubler().double(1)
    assert isinstance(answer, Ready)
    assert answer.value == await answer == await answer == 2


async def test_a_call_acts_before_it_is_awaited() -> None:
    doubler = Doubler()
    answers = [doubler.double(1), doubler.double(2)]
    assert doubler.asked == [1, 2]
    assert await asyncio.gather(*answers) == [2, 4]


async def test_a_task_can_be_made_of_any_answer() -> None:
    doubler = Doubler()
    given: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(doubler.double(1))
        second = tasks.create_task(doubler.double(given))
        third = tasks.create_task(Later[int](given))
        await asyncio.sleep(0)
        given.set_result(3)
    assert [first.result(), second.result(), third.result()] == [2, 6, 3]


async def test_an_error_is_raised_where_the_answer_is_awaited() -> None:
    answer = Doubler().double(-1)
    for _ in range(2):
        with pytest.raises(InvalidParams, match="below zero"):
            await answer
    assert isinstance(answer, Ready)
    assert isinstance(answer.error, InvalidParams)
    (found,) = [*await asyncio.gather(Doubler().double(-1), return_exceptions=True)]
    assert isinstance(found, InvalidParams)


async def test_a_ready_answer_can_be_given_up() -> None:
    task = asyncio.create_task(Doubler().double(1))
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    Doubler().double(1).close()


@pytest.mark.parametrize("begun", [False, True])
async def test_a_later_answer_is_cancelled_with_its_task(begun: bool) -> None:
    given: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(Later[int](given))
    if begun:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert given.cancelled()


async def test_a_later_answer_that_is_closed_is_cancelled_at_once() -> None:
    given: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    Later[int](given).close()
    assert given.cancelled()
