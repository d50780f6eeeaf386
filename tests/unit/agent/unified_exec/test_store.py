"""Session that is ended for another one, its notice, and the ids of sessions."""

import asyncio
from contextlib import closing

import pytest

from holdfast.agent.unified_exec import CommandEnded, Options, UnifiedExec
from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments, WriteArguments
from holdfast.agent.unified_exec.sessions.command_session import CommandSession
from holdfast.agent.unified_exec.sessions.owner import CAPACITY, PROTECTED, SessionStore
from holdfast.testing import FakeEnvironment, FakeProcess

pytestmark = [pytest.mark.virtual_time, pytest.mark.requirement("unified.11.prune")]


def full_store() -> tuple[SessionStore, list[CommandSession]]:
    """Return a store without room, and its sessions, the one used longest ago first."""
    store = SessionStore(counted=True)
    sessions = [
        CommandSession(
            FakeProcess(),
            session_id=store.reserve(),
            call_id="call",
            script="x",
            argv=("sh", "-c", "x"),
            cwd="/",
            tty=False,
            environment_id="local",
            started=0.0,
        )
        for _ in range(CAPACITY)
    ]
    for session in sessions:
        assert store.surplus() is None
        store.add(session)
    return store, sessions


async def exit_of(*sessions: CommandSession) -> None:
    for session in sessions:
        assert isinstance(session.process, FakeProcess)
        session.process.end(0)
        await session.read()
        assert not session.running


@pytest.mark.requirement("tools.sessions.order")
async def test_sessions_are_in_the_order_of_their_starts() -> None:
    async with FakeEnvironment() as environment, UnifiedExec(environment) as tools:
        begun = []
        for _ in range(8):
            result = await tools.exec_command(ExecArguments(cmd="x", yield_time_ms=250))
            begun.append(result.session_id)
        # Their numbers are random.
        assert [info.session_id for info in tools.sessions()] == begun
        # A call in between changes nothing.
        first = begun[0]
        assert first is not None
        await tools.write_stdin(WriteArguments(session_id=first, yield_time_ms=250))
        assert [info.session_id for info in tools.sessions()] == begun


async def test_the_one_used_longest_ago_goes() -> None:
    store, sessions = full_store()
    assert store.surplus() is sessions[0]
    store.touch(sessions[0])
    assert store.surplus() is sessions[1]


async def test_an_exited_one_goes_before_one_that_runs() -> None:
    store, sessions = full_store()
    await exit_of(sessions[30], sessions[20])
    assert store.surplus() is sessions[20]
    # The last one that may go: the eight behind it were used last.
    store, sessions = full_store()
    await exit_of(sessions[-PROTECTED - 1])
    assert store.surplus() is sessions[-PROTECTED - 1]


async def test_those_used_last_never_go_even_if_they_have_exited() -> None:
    store, sessions = full_store()
    await exit_of(*sessions[-PROTECTED:])
    assert store.surplus() is sessions[0]


async def test_one_that_a_call_waits_on_is_skipped() -> None:
    store, sessions = full_store()
    async with sessions[0].lock:
        assert store.surplus() is sessions[1]
    await exit_of(sessions[20], sessions[30])
    async with sessions[20].lock:
        assert store.surplus() is sessions[30]


async def test_none_that_runs_goes_for_one_whose_end_is_being_reported() -> None:
    store, sessions = full_store()
    await exit_of(sessions[20])
    async with sessions[20].lock:
        assert store.surplus() is None


async def test_while_calls_wait_on_all_of_them_none_goes() -> None:
    store, sessions = full_store()
    for session in sessions:
        await session.lock.acquire()
    assert store.surplus() is None


async def test_the_one_that_goes_is_told_to_the_caller_and_to_listeners() -> None:
    environment = FakeEnvironment()
    options = Options(counted_ids=True)
    async with UnifiedExec(environment, options=options) as tools:
        arguments = ExecArguments(cmd="x", yield_time_ms=250)
        for _ in range(CAPACITY):
            assert (await tools.exec_command(arguments)).pruned_sessions == ()
        with closing(tools.listen()) as events:
            assert (await tools.exec_command(arguments)).pruned_sessions == (1_000,)
            ended = await anext(events)
            assert isinstance(ended, CommandEnded)
            assert (ended.session_id, ended.pruned, ended.exit_code) == (1_000, True, -1)
            tools.terminate(1_001)
            while not isinstance(ended := await anext(events), CommandEnded):
                pass
            assert (ended.session_id, ended.pruned) == (1_001, False)


async def test_calls_in_parallel_leave_no_more_than_the_store_may_hold() -> None:
    environment = FakeEnvironment()
    async with UnifiedExec(environment, options=Options(counted_ids=True)) as tools:
        arguments = ExecArguments(cmd="x", yield_time_ms=250)
        results = await asyncio.gather(
            *[tools.exec_command(arguments) for _ in range(CAPACITY + 20)]
        )
        left = {info.session_id for info in tools.sessions()}
        assert len(left) == CAPACITY
        # Each one that went is named by a call that ended after its own.
        gone = [number for result in results for number in result.pruned_sessions]
        assert sorted([*gone, *left]) == sorted(result.session_id or 0 for result in results)


@pytest.mark.parametrize("exited", [True, False])
async def test_a_call_that_is_cancelled_or_reports_an_end_leaves_no_more(exited: bool) -> None:
    environment = FakeEnvironment()
    async with UnifiedExec(environment, options=Options(counted_ids=True)) as tools:
        arguments = ExecArguments(cmd="x", yield_time_ms=250)
        longer = ExecArguments(cmd="x", yield_time_ms=30_000)
        # All but the last call end while the session of the last one is among the oldest.
        last = asyncio.create_task(tools.exec_command(longer))
        await asyncio.sleep(1)
        short = [asyncio.create_task(tools.exec_command(arguments)) for _ in range(CAPACITY + 2)]
        await asyncio.sleep(0.2)
        if exited:
            environment.backend.processes[0].end(0)
        else:
            last.cancel()
        await asyncio.wait([last, *short])
        assert len(tools._owner.store) == CAPACITY


@pytest.mark.requirement("unified.11.terminate")
async def test_one_that_is_terminated_is_kept_for_the_call_that_waits_on_it() -> None:
    environment = FakeEnvironment()
    async with UnifiedExec(environment, options=Options(counted_ids=True)) as tools:
        call = asyncio.create_task(tools.exec_command(ExecArguments(cmd="x")))
        await asyncio.sleep(1)
        assert tools.terminate(1_000)
        # Its number is not given again before the call has reported its end.
        assert tools._owner.store.reserved == {1_000}
        assert (await call).exit_code == -1
        assert not tools._owner.store.reserved
        assert not tools.terminate(1_000)


def test_ids_are_counted_beyond_the_highest_that_is_reserved() -> None:
    store = SessionStore(counted=True)
    assert [store.reserve(), store.reserve(), store.reserve()] == [1_000, 1_001, 1_002]
    store.free(1_001)
    assert store.reserve() == 1_003


def test_an_id_is_given_once_until_it_is_freed() -> None:
    store = SessionStore()
    given = [store.reserve() for _ in range(5_000)]
    assert len(set(given)) == len(given)
    assert all(1_000 <= number <= 99_999 for number in given)
    assert store.reserved == set(given)
    for number in given:
        store.free(number)
    assert not store.reserved
