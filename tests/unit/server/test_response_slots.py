"""ResponseSlots at making large answers."""

import asyncio

from holdfast.server.response_slots import AT_ONCE, ResponseSlots


async def hold(slots: ResponseSlots, begun: list[int], number: int, end: asyncio.Event) -> None:
    async with slots.slot():
        begun.append(number)
        await end.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_few_answers_are_made_at_a_time_and_the_others_in_order() -> None:
    slots, begun, end = ResponseSlots(), list[int](), asyncio.Event()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        for number in range(AT_ONCE + 2):
            tasks.create_task(hold(slots, begun, number, end))
        await settle()
        assert begun == list(range(AT_ONCE))
        end.set()
    assert begun == list(range(AT_ONCE + 2))


async def test_none_is_made_while_the_client_does_not_read() -> None:
    slots, begun, end = ResponseSlots(), list[int](), asyncio.Event()
    end.set()
    slots.pause()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        tasks.create_task(hold(slots, begun, 0, end))
        await settle()
        assert begun == []
        slots.resume()
    assert begun == [0]


async def test_one_that_hangs_gives_its_turn_to_another() -> None:
    slots, begun, never, end = (
        ResponseSlots(longest=0.01),
        list[int](),
        asyncio.Event(),
        asyncio.Event(),
    )
    end.set()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        stuck = [tasks.create_task(hold(slots, begun, n, never)) for n in range(AT_ONCE)]
        await tasks.create_task(hold(slots, begun, AT_ONCE, end))
        for task in stuck:
            task.cancel()
    assert begun == list(range(AT_ONCE + 1))


async def test_a_turn_that_was_waited_for_in_vain_is_not_lost() -> None:
    slots, begun, end = ResponseSlots(), list[int](), asyncio.Event()
    slots.pause()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(hold(slots, begun, n, end)) for n in range(AT_ONCE)]
        await settle()
        for task in waiting:
            task.cancel()
        await settle()
        slots.resume()
        end.set()
        await tasks.create_task(hold(slots, begun, 9, end))
    assert begun == [9]
