"""One client does its worst, and another one is served as if it were alone."""

import pytest

from tests import dead_mount
from tests.soak.worst_client import ATTACKS, NEEDS_DEAD_MOUNT, run

LONGEST = 20.0
"""Milliseconds for 99 of 100 answers."""

MOST_MEMORY = 600
"""MiB: what may wait of one client and of all, and the server itself."""


@pytest.mark.requirement("security.others.attacks")
@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ATTACKS)
async def test_another_client_is_served(name: str) -> None:
    if name in NEEDS_DEAD_MOUNT and not dead_mount.can_mount():
        pytest.skip("nothing can be mounted here")
    figures = await run(name)
    assert figures.p99 < LONGEST, figures
    assert figures.starts >= 10, figures
    assert figures.memory < MOST_MEMORY, figures
    assert figures.inotify <= 1, figures
