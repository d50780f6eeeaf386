"""Moments at which a session is looked at, and at which it is not."""

import asyncio

import pytest

from holdfast.agent.unified_exec.waiting.input_watch import QUIET, InputWatch
from holdfast.base.errors import ConnectionLost
from holdfast.events import WaitingFor
from holdfast.testing import CODEX, FakeProcess
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams

pytestmark = pytest.mark.virtual_time


def on_terminal(**options: object) -> FakeProcess:
    params = StartParams(
        process_id="p", argv=["fake"], cwd=PathUri.parse("file:///"), env={}, tty=True
    )
    return FakeProcess(params, **options)  # type: ignore[arg-type]


def looks(process: FakeProcess) -> int:
    return sum(asked.call == "waiting_for" for asked in process.asked)


async def test_a_quiet_session_is_looked_at_once() -> None:
    process, found = on_terminal(), list[WaitingFor]()
    process.waits_for = WaitingFor.PASSWORD
    watch = InputWatch(process, found.append)
    await asyncio.sleep(QUIET - 0.001)
    assert (looks(process), watch.found) == (0, None)
    await asyncio.sleep(0.002)
    assert (found, watch.found, watch.waiting_for) == (
        [WaitingFor.PASSWORD],
        WaitingFor.PASSWORD,
        WaitingFor.PASSWORD,
    )
    await asyncio.sleep(3600)
    assert looks(process) == 1
    watch.close()


@pytest.mark.requirement("tools.waiting-for.once")
async def test_activity_begins_a_new_period() -> None:
    process, found = on_terminal(), list[WaitingFor]()
    watch = InputWatch(process, found.append)
    for _ in range(50):
        await asyncio.sleep(QUIET / 2)
        watch.activity()
    assert looks(process) == 0
    await asyncio.sleep(10 * QUIET)
    assert (looks(process), found, watch.found) == (1, [], WaitingFor.NONE)
    assert watch.waiting_for is None
    process.waits_for = WaitingFor.KEY
    watch.activity()
    assert watch.found is None
    await asyncio.sleep(10 * QUIET)
    assert (looks(process), found) == (2, [WaitingFor.KEY])
    watch.close()


async def test_an_answer_that_comes_after_activity_is_dropped() -> None:
    process, found = on_terminal(remote=True), list[WaitingFor]()
    process.waits_for = WaitingFor.LINE
    process.lose_line()
    watch = InputWatch(process, found.append)
    await asyncio.sleep(2 * QUIET)
    assert looks(process) == 1  # it waits for the line
    watch.activity()
    process.restore_line()
    await asyncio.sleep(QUIET / 2)
    assert (found, watch.found) == ([], None)
    await asyncio.sleep(QUIET)
    assert (looks(process), found) == (2, [WaitingFor.LINE])
    watch.close()


@pytest.mark.parametrize("when", ["timer", "look", "found"])
async def test_nothing_is_left_after_the_close(when: str) -> None:
    before = asyncio.all_tasks()
    process, found = on_terminal(remote=True), list[WaitingFor]()
    process.waits_for = WaitingFor.LINE
    if when == "look":
        process.lose_line()
    watch = InputWatch(process, found.append)
    if when != "timer":
        await asyncio.sleep(2 * QUIET)
    watch.close()
    watch.close()
    if when == "look":
        process.restore_line()
    watch.activity()
    await asyncio.sleep(10 * QUIET)
    assert asyncio.all_tasks() == before
    assert found == ([WaitingFor.LINE] if when == "found" else [])
    assert looks(process) == (0 if when == "timer" else 1)


async def test_a_lost_server_knows_nothing() -> None:
    process, found = on_terminal(remote=True), list[WaitingFor]()
    process.refuse("waiting_for", ConnectionLost("gone"))
    watch = InputWatch(process, found.append)
    await asyncio.sleep(2 * QUIET)
    assert (found, watch.found, watch.waiting_for) == ([], WaitingFor.UNKNOWN, None)
    watch.close()


async def test_a_codex_server_knows_nothing() -> None:
    process = on_terminal(remote=True, capabilities=CODEX)
    process.waits_for = WaitingFor.LINE
    watch = InputWatch(process)
    await asyncio.sleep(2 * QUIET)
    assert (watch.found, watch.waiting_for) == (WaitingFor.UNKNOWN, None)
    watch.close()
