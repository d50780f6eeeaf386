"""The figures of a walk: what counts as a call, and what as a crossing."""

import asyncio

from holdfast.base.units import parse_size
from scripts.walking import WALKS, Step, Steps, Tally, count, crossings

STEPS = [
    Step("holdfast.server.app", "Server.accept", None),
    Step("holdfast.engine.process.registry", "launch", "holdfast.server.app"),
    Step("holdfast.engine.process.registry", "launch", "holdfast.server.app"),
    Step("holdfast.engine.process.spawn", "spawn", "holdfast.engine.process.registry"),
    Step("holdfast.base.errors", "HoldfastError.__init__", "holdfast.engine.process.spawn"),
]


def test_a_crossing_leads_from_one_room_into_another() -> None:
    assert crossings(STEPS) == {("server", "engine.process"): 2, ("engine.process", "base"): 1}
    assert Tally.of(STEPS) == (5, 4, 4, 3)


async def test_a_coroutine_that_goes_on_is_no_further_call() -> None:
    steps = Steps()
    with steps.listening(), steps.recording():
        parse_size("1K")
        await asyncio.sleep(0)
        parse_size("1K")
    assert [step.function for step in steps.taken].count("parse_size") == 2
    assert {step.module for step in steps.taken} == {"holdfast.base.units"}


def test_an_output_byte_can_be_followed() -> None:
    steps = asyncio.run(count("output"))
    modules = [step.module for step in steps]
    assert "output" in WALKS
    assert modules.index("holdfast.engine.process.io.output_reader") < modules.index(
        "holdfast.client.remote_process"
    )
