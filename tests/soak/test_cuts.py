"""The soak of random cuts in a short form; `python -m tests.soak.cuts` is the long one."""

import pytest

from tests.e2e.wire import serving
from tests.soak.cuts import soak
from tests.soak.proxy import CUTS


@pytest.mark.soak
@pytest.mark.both_loops
@pytest.mark.timeout(240)
@pytest.mark.requirement("extension.ack", "extension.hold-detached", "client.recovery.start")
async def test_no_byte_and_no_process_is_lost_by_cuts_of_every_kind() -> None:
    with serving() as server:
        figures = await soak(server.url, cuts=24, processes=12, seed=2026, kinds=list(CUTS))
        assert "Traceback" not in server.errors
    made, done = figures["cuts"], figures["processes"]
    assert isinstance(made, dict) and isinstance(done, dict)  # noqa: PT018 - for the checker
    assert sum(made.values()) == 24
    assert set(done) == {"fast", "slow", "echo", "tiny"}
