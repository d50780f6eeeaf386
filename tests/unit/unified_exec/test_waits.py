"""Waits of calls: every limit of the contract, by a virtual clock."""

import asyncio

import pytest

from holdfast.testing import FakeEnvironment
from holdfast.unified_exec import Options, UnifiedExec
from holdfast.unified_exec.arguments.tool_arguments import ExecArguments, WriteArguments

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
