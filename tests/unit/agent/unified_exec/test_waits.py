"""Waits of calls: every limit of the contract, by a virtual clock."""

import asyncio

import pytest

from holdfast.agent.unified_exec import CommandBegan, InputWanted, Options, UnifiedExec
from holdfast.agent.unified_exec.arguments.tool_arguments import (
    ExecArguments,
    WaitForArguments,
    WriteArguments,
)
from holdfast.events import WaitingFor
from holdfast.testing import FakeEnvironment, FakeProcess

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.requirement("tools.suite.longest-yield"),
]


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("asked", "waited"), [(0, 0.25), (10, 0.25), (250, 0.25), (1_000, 1.0), (120_000, 30.0)]
)
async def test_the_wait_of_a_command(asked: int, waited: float) -> None:
    async with UnifiedExec(FakeEnvironment()) as tools:
        start = now()
        result = await tools.exec_command(ExecArguments(cmd="x", yield_time_ms=asked))
        assert result.session_id is not None
        assert result.wall_time == pytest.approx(waited)
        assert now() - start == pytest.approx(0.15 + waited)


@pytest.mark.parametrize(
    ("chars", "asked", "waited"),
    [
        ("x", 0, 0.25),
        ("x", 10, 0.25),
        ("x", 1_000, 1.0),
        ("x", 120_000, 30.0),
        ("", 0, 5.0),
        ("", 250, 5.0),
        ("", 6_000, 6.0),
        ("", 120_000, 120.0),
        ("", 2**64 - 1, 300.0),
    ],
)
async def test_the_wait_of_input_and_of_a_poll(chars: str, asked: int, waited: float) -> None:
    async with UnifiedExec(FakeEnvironment()) as tools:
        begun = await tools.exec_command(ExecArguments(cmd="x", tty=True, yield_time_ms=0))
        assert begun.session_id is not None
        start = now()
        result = await tools.write_stdin(
            WriteArguments(session_id=begun.session_id, chars=chars, yield_time_ms=asked)
        )
        assert result.session_id == begun.session_id
        assert result.wall_time == pytest.approx(waited)
        assert now() - start == pytest.approx(waited + (0.1 if chars else 0.0))


@pytest.mark.parametrize(("longest", "waited"), [(7.0, 7.0), (1.0, 5.0), (1_000.0, 600.0)])
async def test_the_longest_poll_can_be_chosen(longest: float, waited: float) -> None:
    async with UnifiedExec(FakeEnvironment(), options=Options(longest_poll=longest)) as tools:
        begun = await tools.exec_command(ExecArguments(cmd="x", yield_time_ms=0))
        assert begun.session_id is not None
        result = await tools.write_stdin(
            WriteArguments(session_id=begun.session_id, yield_time_ms=600_000)
        )
        assert result.wall_time == pytest.approx(waited)


async def test_output_that_a_child_holds_costs_50_milliseconds() -> None:
    environment = FakeEnvironment()

    async def leave_a_child(process: FakeProcess) -> int:
        await asyncio.sleep(1.0)
        process.exit()
        # Its program goes on, or the output would end here.
        await asyncio.sleep(1000)
        return 0

    environment.backend.on(lambda params: True, leave_a_child)
    async with UnifiedExec(environment) as tools:
        result = await tools.exec_command(ExecArguments(cmd="x"))
        assert result.exit_code == 0
        # The first 150 ms are not counted.
        assert result.wall_time == pytest.approx(1.0 - 0.15 + 0.05)


async def test_a_program_that_reads_its_terminal_is_seen_after_400_milliseconds() -> None:
    environment = FakeEnvironment()

    async def read(process: FakeProcess) -> int:
        process.waits_for = WaitingFor.LINE
        await asyncio.sleep(1000)
        return 0

    environment.backend.on(lambda params: True, read)
    options = Options(extras=True)
    async with UnifiedExec(environment, options=options) as tools, tools.listen() as events:
        arguments = ExecArguments(cmd="x", tty=True, wait_for=WaitForArguments(input=True))
        result = await tools.exec_command(arguments)
        assert result.waiting_for is WaitingFor.LINE
        assert result.wall_time == pytest.approx(0.4)
        assert isinstance(await anext(events), CommandBegan)
        assert isinstance(await anext(events), InputWanted)


async def test_from_60_sessions_on_a_note_says_so() -> None:
    async with UnifiedExec(FakeEnvironment()) as tools:
        arguments = ExecArguments(cmd="x", yield_time_ms=250)
        notes = [(await tools.exec_command(arguments)).notes for _ in range(60)]
        assert notes[:-1] == [()] * 59
        assert len(notes[-1]) == 1
        assert notes[-1][0].text.startswith("60 of at most 64 sessions are open")
