"""An engine for each test, with nothing left of it at the end."""

from collections.abc import AsyncIterator

import pytest

from holdfast.events import Reason
from holdfast.process.table import LocalProcesses
from tests.unit.process.starting import LIMIT


@pytest.fixture
async def processes() -> AsyncIterator[LocalProcesses]:
    processes = LocalProcesses(inherited={"INHERITED": "yes"}, shell="/bin/login-shell")
    yield processes
    processes.end(Reason.SERVER_STOPPING)
    assert await processes.wait_all_closed(LIMIT)
