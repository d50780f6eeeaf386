"""Races on sessions that run: the queue of their lock, input, kills, pruning and pauses."""

import asyncio
from functools import partial

import pytest

from holdfast.agent.unified_exec import ExecResult, Options
from holdfast.agent.unified_exec.tool_errors import CallRefused, UnknownProcessId, WriteToStdin
from holdfast.base.errors import OperationFailed
from holdfast.wire.protocol.process import WriteStatus
from tests.unit.agent.unified_exec.racing import DEADLINE, GRACE, SHORTEST, Race, end_slowly, repeat

pytestmark = [pytest.mark.virtual_time, pytest.mark.requirement("tools.races")]


@pytest.fixture
def small_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let four sessions fill the store, of which the last one is protected."""
    monkeypatch.setattr("holdfast.agent.unified_exec.sessions.owner.CAPACITY", 4)
    monkeypatch.setattr("holdfast.agent.unified_exec.sessions.owner.PROTECTED", 1)


async def test_calls_in_the_lock_queue_are_cancelled() -> None:
    """Whoever is cancelled, every byte is in exactly one answer, in order."""

    async def scenario(race: Race) -> None:
        session_id, process = await race.session(tty=True)
        for number in range(12):
            race.later(0.15 * number, partial(process.output, b"%d," % number))
        process_ends = 0.15 * 12
        race.exits(process_ends, process)
        calls = []
        for _ in range(4):
            calls.append(race.write_stdin(session_id, "x"))
            await race.turns()
        for call in race.chance.sample(calls, 2):
            race.later(race.within(1.0), call.cancel)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        if race.tools._owner.store.get(session_id) is not None:
            outcomes.append(await race.rest(session_id))
        results = [outcome for outcome in outcomes if isinstance(outcome, ExecResult)]
        assert b"".join(result.raw_output for result in results) == b"".join(
            b"%d," % number for number in range(12)
        )
        assert [result.exit_code for result in results if result.session_id is None] == [7]

    await repeat(scenario)


async def test_calls_in_the_lock_queue_when_the_command_ends() -> None:
    async def scenario(race: Race) -> None:
        session_id, process = await race.session()
        polls = [race.write_stdin(session_id) for _ in range(3)]
        await race.turns()
        race.exits(race.within(6.0), process)
        outcomes = await asyncio.gather(*polls, return_exceptions=True)
        ends = [one for one in outcomes if isinstance(one, ExecResult) and one.session_id is None]
        assert len(ends) == 1
        at = outcomes.index(ends[0])
        assert all(isinstance(one, UnknownProcessId) for one in outcomes[at + 1 :])

    await repeat(scenario)


async def test_a_call_that_is_cancelled_in_the_report_of_the_end() -> None:
    async def scenario(race: Race) -> None:
        early = race.chance.random() < 0.5
        call = race.exec_command(yield_time_ms=1_000)
        process = await race.backend.process()
        end_slowly(process, 0.5)
        child = process.child()
        exits = race.within(GRACE - 0.01) if early else 0.3
        race.exits(exits, process)
        # The report begins 50 ms after the exit, and takes half a second.
        race.later(exits + 0.05 + race.within(0.49) + 1e-6, call.cancel)
        assert isinstance(await race.outcome(call), asyncio.CancelledError)
        sessions = list(race.tools._owner.store)
        assert len(sessions) == (0 if early else 1)
        for session in sessions:
            assert (await race.rest(session.session_id)).exit_code == 7
        await race.tools.aclose()
        assert not child.alive

    await repeat(scenario)


@pytest.mark.parametrize("way", ["terminate", "clean"])
async def test_a_kill_while_the_first_call_waits(way: str) -> None:
    async def scenario(race: Race) -> None:
        call = race.exec_command()
        process = await race.backend.process()
        await race.turns()
        race.exits(race.near(DEADLINE), process)
        killed = asyncio.Event()

        def kill() -> None:
            for session in list(race.tools._owner.store):
                if way == "terminate":
                    assert race.tools.terminate(session.session_id)
                else:
                    race.tools.clean()
            killed.set()

        moment = race.near(DEADLINE)
        race.later(moment, kill)
        if race.chance.random() < 0.3:
            race.later(race.chance.choice([moment, race.near(DEADLINE)]), call.cancel)
        outcome = await race.outcome(call)
        await killed.wait()
        if isinstance(outcome, ExecResult) and outcome.session_id is None:
            assert outcome.exit_code in (-1, 7)
        # Killed too early to have a number: the session goes on until its exit.
        if race.tools._owner.store.get(next(iter(race.tools._owner.store.reserved), 0)) is not None:
            (session,) = race.tools._owner.store
            assert (await race.rest(session.session_id)).exit_code == 7

    await repeat(scenario)


async def test_kills_during_calls() -> None:
    async def scenario(race: Race) -> None:
        sessions = [await race.session(tty=True) for _ in range(2)]
        calls = []
        for session_id, process in sessions:
            child = process.child()
            calls += [race.write_stdin(session_id, chars) for chars in ("", "x", "\x03")]
            race.exits(race.within(6.0), process)
            assert child.alive
        await race.turns()
        first = sessions[0][0]
        race.later(race.within(2.0), lambda: race.tools.terminate(first))
        race.later(race.within(6.0), race.tools.clean)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, ExecResult):
                assert outcome.exit_code in (None, -1, 7)
            else:
                assert isinstance(outcome, UnknownProcessId)
        await asyncio.sleep(6.0)  # the kill of all has come
        await race.tools.aclose()
        assert not any(child.alive for _, process in sessions for child in process.children)

    await repeat(scenario)


async def test_a_close_during_calls() -> None:
    async def scenario(race: Race) -> None:
        session_id, process = await race.session()
        process.child()
        calls = [race.write_stdin(session_id) for _ in range(2)]
        calls.append(race.exec_command())
        other = await race.backend.process(1)
        race.exits(race.within(0.6), process)
        race.exits(race.within(0.6), other)
        await asyncio.sleep(race.within(0.7))
        await race.turns()
        under_way = [call for call in calls if not call.done()]
        await race.tools.aclose()
        for outcome in await asyncio.gather(*under_way, return_exceptions=True):
            if isinstance(outcome, ExecResult):
                assert outcome.exit_code in (-1, 7)
                assert outcome.session_id is None
            else:
                assert isinstance(outcome, CallRefused | UnknownProcessId)
        assert not any(child.alive for child in process.children)

    await repeat(scenario, ends_by_close=True)


async def test_a_kill_of_a_session_that_ended_unseen() -> None:
    """What the command left in its group is killed, though nobody reads its end."""

    async def scenario(race: Race) -> None:
        session_id, process = await race.session()
        child = process.child()
        race.exits(race.within(0.3), process)
        await asyncio.sleep(race.within(0.4))
        if race.chance.random() < 0.5:
            race.tools.terminate(session_id)
        await race.tools.aclose()
        assert not child.alive

    await repeat(scenario, ends_by_close=True)


async def test_what_is_left_lives_on_if_that_is_wanted() -> None:
    async def scenario(race: Race) -> None:
        session_id, process = await race.session()
        child = process.child()
        process.end(7)
        if race.chance.random() < 0.5:
            result = await race.rest(session_id)
            assert (result.exit_code, result.left_behind) == (7, False)
        else:
            await asyncio.sleep(race.within(0.1))
            race.tools.terminate(session_id)
        await race.tools.aclose()
        assert child.alive

    await repeat(scenario, options=Options(background="keep"), ends_by_close=True)


@pytest.mark.usefixtures("small_store")
async def test_a_prune_of_locked_exited_and_ending_sessions() -> None:
    async def scenario(race: Race) -> None:
        started = await asyncio.gather(*[race.exec_command() for _ in range(4)])
        sessions = list(zip(started, race.backend.processes, strict=True))
        calls = []
        # The oldest three can go: some wait in a call, some have exited, some exit just now.
        for first, process in sessions[:3]:
            assert first.session_id is not None
            if race.chance.random() < 0.5:
                end_slowly(process, race.within(0.3))
            if race.chance.random() < 0.5:
                calls.append(race.write_stdin(first.session_id))
            if race.chance.random() < 0.7:
                race.exits(race.within(2 * DEADLINE), process)
        await race.turns()
        starts = [race.exec_command() for _ in range(2)]
        started = await asyncio.gather(*starts)
        pruned = [session_id for result in started for session_id in result.pruned_sessions]
        assert len(set(pruned)) == len(pruned)
        # The last one that was used, and those that a call waits on, are not touched.
        for session_id in pruned:
            assert race.tools._owner.store.get(session_id) is None
        for result in [*started, *await asyncio.gather(*calls)]:
            assert result.exit_code in (None, 7)
        assert len(race.tools._owner.store) <= 6
        race.tools.clean()

    await repeat(scenario)


@pytest.mark.usefixtures("small_store")
async def test_many_starts_into_a_full_store() -> None:
    async def scenario(race: Race) -> None:
        calls = [race.exec_command() for _ in range(5)]
        for number in range(5):
            process = await race.backend.process(number)
            if race.chance.random() < 0.3:
                race.exits(race.near(GRACE), process)
        await asyncio.gather(*calls)
        # All of them were waited on at once, and none could go.
        last = await race.exec_command()
        assert len(race.tools._owner.store) <= 4
        assert last.session_id is not None
        race.tools.clean()

    await repeat(scenario)


async def test_a_pause_across_the_deadline() -> None:
    async def scenario(race: Race) -> None:
        begins, lasts = race.near(DEADLINE), race.within(2.0)
        loop = asyncio.get_running_loop()
        start = loop.time()
        call = race.exec_command()
        process = await race.backend.process()
        exits = race.near(DEADLINE + lasts)
        race.exits(exits, process)
        await asyncio.sleep(begins)
        async with race.tools.paused():
            await asyncio.sleep(lasts)
            if begins < DEADLINE - 1e-3 and exits > begins + 1e-3:
                assert not call.done()
        result = await call
        if result.session_id is not None:
            if begins < DEADLINE - 1e-3:
                assert loop.time() - start == pytest.approx(DEADLINE + lasts, abs=1e-6)
            result = await race.rest(result.session_id)
        assert result.exit_code == 7

    await repeat(scenario)


async def test_pauses_of_several_callers() -> None:
    async def scenario(race: Race) -> None:
        session_id, process = await race.session(tty=True)

        async def ask() -> None:
            await asyncio.sleep(race.within(0.5))
            async with race.tools.paused():
                await asyncio.sleep(race.within(0.5))
            async with race.tools.paused():
                await race.turns()

        asking = [asyncio.ensure_future(ask()) for _ in range(3)]
        calls = [race.write_stdin(session_id, "x"), race.exec_command()]
        other = await race.backend.process(1)
        race.exits(race.within(2.0), other)
        if race.chance.random() < 0.3:
            race.later(race.within(0.5), calls[0].cancel)
        await asyncio.gather(*asking, *calls, return_exceptions=True)
        process.end(7)
        for session in list(race.tools._owner.store):
            await race.rest(session.session_id)

    await repeat(scenario)


async def test_a_failed_write_to_a_process_that_exits() -> None:
    async def scenario(race: Race) -> None:
        session_id, process = await race.session(tty=True)
        process.refuse("write", OperationFailed("Input/output error (os error 5)", errno=5))
        write = race.write_stdin(session_id, "x")
        for _ in range(race.chance.randint(0, 3)):
            await asyncio.sleep(0)
        exited_first = not write.done()
        process.end(7)
        outcome = await race.outcome(write)
        if isinstance(outcome, WriteToStdin):
            # The write had failed before the exit: the session goes on, and its end is told.
            outcome = await race.rest(session_id)
        else:
            assert exited_first
        assert isinstance(outcome, ExecResult)
        assert outcome.exit_code == 7

    await repeat(scenario)


async def test_input_to_a_process_that_does_not_read() -> None:
    async def scenario(race: Race) -> None:
        session_id, process = await race.session(tty=True)
        process.input_limit = 1
        first, second = (race.write_stdin(session_id, chars) for chars in ("ab", "c"))
        race.exits(race.within(3 * SHORTEST + 0.1), process)
        assert (await first).exit_code in (None, 7)
        outcome = await race.outcome(second)
        if isinstance(outcome, WriteToStdin):
            outcome = await race.rest(session_id)
        if isinstance(outcome, ExecResult) and outcome.session_id is not None:
            outcome = await race.rest(session_id)
        assert isinstance(outcome, ExecResult | UnknownProcessId)

    await repeat(scenario)


@pytest.mark.parametrize(
    "status", [WriteStatus.STARTING, WriteStatus.STDIN_CLOSED, WriteStatus.UNKNOWN_PROCESS]
)
async def test_input_that_is_not_accepted(status: WriteStatus) -> None:
    async def scenario(race: Race) -> None:
        session_id, process = await race.session(tty=True)
        process.write_status = status
        race.exits(race.within(SHORTEST), process)
        outcome = await race.outcome(race.write_stdin(session_id, "x"))
        if status is WriteStatus.STARTING and isinstance(outcome, WriteToStdin):
            outcome = await race.rest(session_id)
        assert isinstance(outcome, ExecResult)
        if outcome.session_id is not None:
            outcome = await race.rest(session_id)
        assert outcome.exit_code == 7

    await repeat(scenario)


async def test_an_interrupt_of_a_command_on_pipes() -> None:
    async def scenario(race: Race) -> None:
        session_id, process = await race.session()
        if race.chance.random() < 0.5:
            race.exits(race.within(0.1), process, 130)
        await race.turns()
        call = race.write_stdin(session_id, "\x03")
        if race.chance.random() < 0.3:
            race.later(race.within(SHORTEST), call.cancel)
        outcome = await race.outcome(call)
        if race.tools._owner.store.get(session_id) is not None:
            if process.running:
                process.end(130)
            outcome = await race.rest(session_id)
        assert isinstance(outcome, ExecResult)
        assert outcome.exit_code == 130

    await repeat(scenario)
