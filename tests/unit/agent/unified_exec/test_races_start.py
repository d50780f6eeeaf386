"""Races around the start of a command: its grace, its deadline, and calls that are cancelled."""

import asyncio
from functools import partial

import pytest

from holdfast.agent.unified_exec import ExecResult
from holdfast.agent.unified_exec.tool_errors import CallRefused, CreateProcess, ProcessFailed
from holdfast.base.errors import SpawnFailed
from holdfast.events import Denial, DenialKind, Reason, Verdict
from tests.unit.agent.unified_exec.racing import DEADLINE, GRACE, Race, end_slowly, repeat

pytestmark = [pytest.mark.virtual_time, pytest.mark.requirement("tools.races")]

DENIED = Verdict(reason=Reason.EXITED, exit_code=1, denial=Denial(kind=DenialKind.UNKNOWN))


async def test_an_exit_inside_at_and_after_the_grace() -> None:
    async def scenario(race: Race) -> None:
        call = race.exec_command(yield_time_ms=1_000)
        process = await race.backend.process()
        await race.turns()
        after = race.near(GRACE)
        race.later(race.chance.uniform(0, after), lambda: process.output(b"before"))
        race.later(after, lambda: process.end(7))
        result = await call
        assert (result.exit_code, result.session_id) == (7, None)
        assert result.raw_output == b"before"
        assert result.wall_time == pytest.approx(max(0.0, after - GRACE), abs=1e-6)

    await repeat(scenario)


async def test_an_exit_whose_output_a_child_holds() -> None:
    async def scenario(race: Race) -> None:
        call = race.exec_command(yield_time_ms=1_000)
        process = await race.backend.process()
        child = process.child(holds_output=True)
        await race.turns()
        after = race.near(GRACE)
        race.later(after, lambda: process.end(7))
        race.later(after + 0.049, lambda: process.output(b"late"))
        result = await call
        assert (result.exit_code, result.raw_output, result.left_behind) == (7, b"late", True)
        assert not child.alive

    await repeat(scenario)


async def test_output_and_exit_at_the_deadline() -> None:
    async def scenario(race: Race) -> None:
        call = race.exec_command()
        process = await race.backend.process()
        await race.turns()
        moments = (DEADLINE - 1e-9, DEADLINE, DEADLINE + 1e-9, DEADLINE + 1e-4)
        written, more, exits = sorted(race.chance.choices(moments, k=3))
        race.later(written, lambda: process.output(b"a"))
        race.later(more + 1e-11, lambda: process.output(b"b"))
        race.later(exits + 2e-11, lambda: process.end(7))
        first = await call
        output = first.raw_output
        if first.session_id is None and not output:
            raise AssertionError("an exit was reported before the output that came first")
        if first.session_id is None:
            assert first.exit_code == 7
        else:
            assert first.exit_code is None
            rest = await race.rest(first.session_id)
            output += rest.raw_output
            assert rest.exit_code == 7
        assert output == b"ab"

    await repeat(scenario)


@pytest.mark.parametrize("hook", ["before_start", "attempt_begins", "after_denial"])
async def test_a_call_that_is_cancelled_in_a_hook(hook: str) -> None:
    async def scenario(race: Race) -> None:
        race.hooks.stop_at = hook
        call = race.exec_command()
        if hook == "after_denial":
            process = await race.backend.process()
            race.later(race.within(GRACE / 2), lambda: process.end(DENIED))
        await race.hooks.stopped.wait()
        await race.turns()
        if race.chance.random() < 0.5:
            race.hooks.go.set()  # the hook returns in the turn in which the call is cancelled
        call.cancel()
        assert isinstance(await race.outcome(call), asyncio.CancelledError)

    await repeat(scenario)


async def test_a_call_that_is_cancelled_in_the_start() -> None:
    async def scenario(race: Race) -> None:
        race.backend.hold_starts()
        call = race.exec_command()
        await race.backend.until(lambda: len(race.backend.starts) == 1)
        await race.turns()
        if race.chance.random() < 0.5:
            race.backend.let_start()  # the process is there when the call is cancelled
            await race.turns(2)
        call.cancel()
        assert isinstance(await race.outcome(call), asyncio.CancelledError)

    await repeat(scenario)


async def test_a_call_that_is_cancelled_in_the_grace() -> None:
    async def scenario(race: Race) -> None:
        call = race.exec_command()
        process = await race.backend.process()
        child = process.child(own_session=race.chance.random() < 0.5)
        await race.turns()
        exits = race.within(GRACE)
        if race.chance.random() < 0.5:
            # Its output is still held when the call is cancelled.
            race.exits(exits, process, 0)
        race.later(race.within(GRACE - 0.001), call.cancel)
        outcome = await race.outcome(call)
        # Its exit may come first, and with it the report.
        assert isinstance(outcome, ExecResult | asyncio.CancelledError)
        await race.tools.aclose()
        assert not process.running
        assert not child.alive or child.own_session

    await repeat(scenario)


async def test_a_call_that_is_cancelled_after_an_early_exit() -> None:
    """The command has exited and is in no store, and a child of it holds the output."""

    async def scenario(race: Race) -> None:
        call = race.exec_command(yield_time_ms=1_000)
        process = await race.backend.process()
        child = process.child()
        await race.turns()
        exits = race.within(GRACE - 0.01)
        race.later(exits, lambda: process.end(0))
        race.later(exits + race.within(0.049), call.cancel)
        assert isinstance(await race.outcome(call), asyncio.CancelledError)
        await race.tools.aclose()
        assert not child.alive

    await repeat(scenario)


async def test_a_call_that_is_cancelled_at_any_moment() -> None:
    async def scenario(race: Race) -> None:
        call = race.exec_command()
        race.later(race.near(GRACE), call.cancel)
        await race.turns()
        process = await race.backend.process()
        exits = race.within(DEADLINE + 0.1)
        race.exits(exits, process)
        await race.outcome(call)
        session = next(iter(race.tools._owner.store), None)
        if session is not None:
            assert (await race.rest(session.session_id)).exit_code == 7

    await repeat(scenario)


async def test_what_a_cancelled_call_had_goes_to_the_next_one() -> None:
    async def scenario(race: Race) -> None:
        call = race.exec_command(yield_time_ms=1_000)
        process = await race.backend.process()
        for number in range(20):
            race.later(0.06 * number, partial(process.output, b"%d," % number))
        race.later(1.2, lambda: process.end(7))
        race.later(race.chance.uniform(GRACE + 0.001, 1.1), call.cancel)
        await race.outcome(call)
        (info,) = race.tools.sessions()
        rest = await race.rest(info.session_id)
        assert rest.raw_output == b"".join(b"%d," % number for number in range(20))

    await repeat(scenario)


async def test_a_start_that_hangs_holds_nobody_else() -> None:
    async def scenario(race: Race) -> None:
        session_id, process = await race.session()
        race.backend.hold_starts()
        hanging = race.exec_command()
        await race.backend.until(lambda: len(race.backend.starts) == 2)
        race.later(race.within(1.0), lambda: process.end(7))
        assert (await race.rest(session_id)).exit_code == 7
        assert not hanging.done()
        hanging.cancel()
        await race.outcome(hanging)

    await repeat(scenario)


@pytest.mark.parametrize("step", ["before_start", "attempt_begins", "start", "after_denial"])
async def test_a_close_in_a_start_ends_it(step: str) -> None:
    """What is started must not outlive the tools, and a start that hangs must not hold them."""

    async def scenario(race: Race) -> None:
        if step == "start":
            race.backend.hold_starts()
        else:
            race.hooks.stop_at = step
            race.hooks.again = 1
        call = race.exec_command()
        if step == "after_denial":
            (await race.backend.process()).end(DENIED)
        if step == "start":
            await race.backend.until(lambda: len(race.backend.starts) == 1)
        else:
            await race.hooks.stopped.wait()
        await race.turns()
        goes_on = race.chance.random() < 0.5
        if goes_on:  # in the turn in which the tools are closed
            race.backend.let_start()
            race.hooks.go.set()
            await race.turns(2)
        await race.tools.aclose()
        outcome = await race.outcome(call)
        if isinstance(outcome, ExecResult):
            assert goes_on
            assert outcome.exit_code in (-1, 1)
        else:
            assert isinstance(outcome, CallRefused)
            assert str(outcome) == "the tools are closed"

    await repeat(scenario, ends_by_close=True)


async def test_a_start_that_fails() -> None:
    async def scenario(race: Race) -> None:
        race.backend.refuse_next_start(SpawnFailed("No such file or directory (os error 2)"))
        call = race.exec_command()
        if race.chance.random() < 0.3:
            await race.turns()
            call.cancel()
        outcome = await race.outcome(call)
        assert isinstance(outcome, CreateProcess | asyncio.CancelledError)

    await repeat(scenario)


async def test_a_denied_command_is_started_again_under_the_same_id() -> None:
    async def scenario(race: Race) -> None:
        race.hooks.again = 1
        call = race.exec_command()
        first = await race.backend.process(0)
        child = first.child()
        race.later(race.within(GRACE - 0.001), lambda: first.end(DENIED))
        second = await race.backend.process(1)
        assert not first.running
        after = race.near(GRACE)
        race.later(after, lambda: second.end(7))
        outcome = await call
        if outcome.session_id is not None:
            outcome = await race.rest(outcome.session_id)
        assert outcome.exit_code == 7
        assert not child.alive

    await repeat(scenario)


async def test_an_owner_that_fails_a_command_at_any_moment() -> None:
    async def scenario(race: Race) -> None:
        call = race.exec_command()
        process = await race.backend.process()
        (attempt,) = race.hooks.begun
        race.later(race.near(GRACE), lambda: attempt.fail("no network"))
        race.exits(race.near(DEADLINE), process)
        outcome = await race.outcome(call)
        if isinstance(outcome, ExecResult) and outcome.session_id is not None:
            outcome = await race.outcome(race.write_stdin(outcome.session_id, yield_time_ms=5_000))
        if isinstance(outcome, ExecResult):
            assert outcome.exit_code == 7
        else:
            assert isinstance(outcome, ProcessFailed)
            assert "no network" in str(outcome)

    await repeat(scenario)


async def test_a_command_that_is_failed_and_then_denied_is_not_started_again() -> None:
    """The owner has said why it ends, so nobody is asked for another attempt."""

    async def scenario(race: Race) -> None:
        race.hooks.again = 1
        call = race.exec_command()
        process = await race.backend.process()
        end_slowly(process, 1.0)
        (attempt,) = race.hooks.begun
        fails = race.within(GRACE - 0.01)
        race.later(fails, lambda: attempt.fail("no network"))
        race.later(fails + race.within(0.2) + 1e-9, lambda: process.end(DENIED))
        outcome = await race.outcome(call)
        assert isinstance(outcome, ProcessFailed)
        assert len(race.backend.processes) == 1

    await repeat(scenario)


async def test_a_pause_while_a_child_holds_the_output() -> None:
    async def scenario(race: Race) -> None:
        call = race.exec_command(yield_time_ms=1_000)
        process = await race.backend.process()
        child = process.child(holds_output=True)
        exits = race.near(GRACE)
        race.exits(exits, process)

        def write_late() -> None:
            if child.alive:
                process.output(b"late")

        race.later(exits + 0.02, write_late)
        begins, lasts = race.near(exits), race.within(2.0)
        cancels = race.chance.random() < 0.3
        if cancels:
            race.later(race.within(begins + lasts), call.cancel)
        await asyncio.sleep(begins)
        async with race.tools.paused():
            await asyncio.sleep(lasts)
            if begins < exits - 1e-3 and not cancels:
                assert not call.done()
        outcome = await race.outcome(call)
        if isinstance(outcome, ExecResult):
            assert (outcome.exit_code, outcome.raw_output) == (7, b"late")
            assert outcome.left_behind
        else:
            assert cancels
        for session in list(race.tools._owner.store):
            assert (await race.rest(session.session_id)).exit_code == 7
        await race.tools.aclose()
        assert not child.alive

    await repeat(scenario)


async def test_many_starts_at_once_take_ids_of_their_own() -> None:
    async def scenario(race: Race) -> None:
        calls = [race.exec_command() for _ in range(3)]
        processes = [await race.backend.process(number) for number in range(3)]
        for process in processes:
            race.exits(race.near(GRACE), process)
        for call in calls[::2]:
            race.later(race.near(GRACE), call.cancel)
        await asyncio.gather(*calls, return_exceptions=True)
        for session in list(race.tools._owner.store):
            assert (await race.rest(session.session_id)).exit_code == 7

    await repeat(scenario)
