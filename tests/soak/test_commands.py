"""The soak of the tools in a short form; `python -m tests.soak.commands` is the long one."""

from contextlib import nullcontext

import pytest

from tests.e2e.measured import measured
from tests.soak.commands import RETENTION, Load, soak

WARM_UP = Load(commands=100, sessions=12, background=6)
SHORT = Load(commands=300, sessions=36, background=18)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.requirement("unified-exec.nothing-left")
@pytest.mark.parametrize("where", ["local", "server"])
async def test_commands_sessions_and_background_children_leave_nothing(where: str) -> None:
    with nullcontext() if where == "local" else measured(RETENTION) as server:
        figures = await soak(SHORT, server, WARM_UP)
    assert figures["faults"] == []
