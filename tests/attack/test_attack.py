"""Attacks in their short forms; the modules beside this one tell how to run the long ones."""

import pytest

from tests.attack.fuzz import TRANSPORTS, fuzz
from tests.attack.kills import kill_servers


@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_wrong_messages_do_no_harm(transport: str) -> None:
    figures = fuzz(transport, messages=3_000, seed=2026)
    assert figures.messages == 3_000
    assert figures.complaints == []
    assert figures.growth < 8.0


@pytest.mark.timeout(120)
async def test_killed_servers_leave_nothing() -> None:
    await kill_servers(kills=4, seed=2026)
