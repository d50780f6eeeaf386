"""A listener that does not keep up loses live output, and nothing else."""

import asyncio

import msgspec

from holdfast.agent.unified_exec.sessions.session_events import (
    QUEUED_BYTES,
    QUEUED_DELTAS,
    QUEUED_EVENTS,
    CommandBegan,
    CommandEnded,
    InputSent,
    Listeners,
    OutputDelta,
    ToolEvent,
)
from holdfast.environments.collect.head_tail import Captured


def began(call_id: str = "c") -> CommandBegan:
    return CommandBegan(
        call_id=call_id,
        session_id=1000,
        command=("sh",),
        script="",
        cwd="/",
        environment_id="local",
        tty=False,
    )


def ended(call_id: str = "c") -> CommandEnded:
    return CommandEnded(
        call_id=call_id,
        session_id=1000,
        exit_code=0,
        output=Captured(b"out"),
        duration=0.0,
        verdict=None,
    )


def delta(number: int) -> OutputDelta:
    return OutputDelta(call_id="c", data=b"%d" % number)


async def test_events_come_in_their_order_to_every_listener() -> None:
    listeners = Listeners()
    first, quiet = listeners.add(deltas=True), listeners.add(deltas=False)
    events: list[ToolEvent] = [began(), delta(1), ended()]
    for event in events:
        listeners.send(event)
    listeners.close()
    assert [event async for event in first] == events
    assert [event async for event in quiet] == [events[0], events[2]]
    assert not listeners.any


async def test_a_listener_that_does_not_read_loses_its_oldest_live_output_only() -> None:
    listeners = Listeners()
    listener = listeners.add(deltas=True)
    listeners.send(began())
    for number in range(QUEUED_DELTAS + 10):
        listeners.send(delta(number))
    listeners.send(ended())
    listener.close()
    events = [event async for event in listener]
    assert events[0] == began()
    assert events[-1] == ended()
    assert events[1:-1] == [delta(number) for number in range(10, QUEUED_DELTAS + 10)]
    assert listener.dropped == 10


async def test_a_listener_that_is_hopelessly_behind_is_closed() -> None:
    listeners = Listeners()
    listener = listeners.add(deltas=True)
    for number in range(QUEUED_EVENTS + 1):
        listeners.send(began(str(number)))
    assert listener.overflowed
    assert not listeners.any
    assert len([event async for event in listener]) == QUEUED_EVENTS


async def test_a_cancelled_wait_loses_no_event() -> None:
    listeners = Listeners()
    listener = listeners.add(deltas=True)
    waiting = asyncio.ensure_future(anext(listener))
    await asyncio.sleep(0)
    listeners.send(began())
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with listener:
        assert await anext(listener) == began()
    assert [event async for event in listener] == []


async def test_deltas_are_wanted_only_by_those_who_say_so() -> None:
    listeners = Listeners()
    listeners.add(deltas=False)
    assert (listeners.any, listeners.want_deltas) == (True, False)
    with_deltas = listeners.add(deltas=True)
    assert (listeners.any, listeners.want_deltas) == (True, True)
    with_deltas.close()
    assert (listeners.any, listeners.want_deltas) == (True, False)


async def test_the_ends_that_nobody_reads_lose_their_output_and_stay() -> None:
    listeners = Listeners()
    listener = listeners.add(deltas=False)
    large = Captured(bytes(QUEUED_BYTES // 4), bytes(QUEUED_BYTES // 4), omitted=5)
    for number in range(5):
        listeners.send(msgspec.structs.replace(ended(f"c{number}"), output=large))
    listeners.close()
    events = [event async for event in listener]
    ends = [event for event in events if isinstance(event, CommandEnded)]
    assert [end.call_id for end in ends] == [f"c{number}" for number in range(5)]
    assert [end.output == large for end in ends] == [False, False, False, True, True]
    assert {end.output.size for end in ends} == {large.size}


async def test_a_listener_that_reads_gets_all_output() -> None:
    listeners = Listeners()
    listener = listeners.add(deltas=False)
    large = Captured(bytes(QUEUED_BYTES))
    for _ in range(3):
        listeners.send(msgspec.structs.replace(ended(), output=large))
        event = await anext(listener)
        assert isinstance(event, CommandEnded)
        assert event.output == large
    listener.close()


async def test_early_output_that_nobody_reads_is_bounded_too() -> None:
    listeners = Listeners()
    listener = listeners.add(deltas=False)
    large = Captured(bytes(QUEUED_BYTES // 2))
    for number in range(4):
        listeners.send(msgspec.structs.replace(began(f"c{number}"), early=large))
    listeners.close()
    begins = [event async for event in listener if isinstance(event, CommandBegan)]
    assert [len(begin.early.head) for begin in begins] == [0, 0, large.size, large.size]
    assert {begin.early.size for begin in begins} == {large.size}
    assert not listener.overflowed


async def test_a_listener_is_closed_that_does_not_read_large_input() -> None:
    listeners = Listeners()
    listener = listeners.add(deltas=False)
    sent = InputSent(call_id="c", session_id=1000, stdin="x" * (QUEUED_BYTES // 2))
    for _ in range(9):
        listeners.send(sent)
    assert listener.overflowed
    assert not listeners.any
    assert len([event async for event in listener]) == 3


async def test_a_listener_that_comes_after_the_close_ends_at_once() -> None:
    listeners = Listeners()
    listeners.close()
    assert [event async for event in listeners.add(deltas=True)] == []
    assert not listeners.any


async def test_live_output_between_other_events_keeps_its_place() -> None:
    listeners = Listeners()
    listener = listeners.add(deltas=True)
    told: list[ToolEvent] = [delta(0), began("a"), delta(1), delta(2), ended("a"), delta(3)]
    for event in told:
        listeners.send(event)
    assert [await anext(listener) for _ in range(4)] == told[:4]
    listeners.send(began("b"))
    listener.close()
    assert [event async for event in listener] == [*told[4:], began("b")]
