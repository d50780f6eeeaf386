"""An engine for each test, with nothing left of it at the end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import Reason
from tests.unit.engine.process.starting import LIMIT

ON_BOTH_LOOPS = {"test_ending.py", "test_pump.py"}
"""Files about pipes and their ends, which each event loop watches in its own way."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    """Run some files on both event loops; the others on the usual one."""
    if item.path.name not in ON_BOTH_LOOPS:
        return None
    uvloop = pytest.importorskip("uvloop")
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def processes() -> AsyncIterator[ProcessRegistry]:
    processes = ProcessRegistry(inherited={"INHERITED": "yes"}, shell="/bin/login-shell")
    yield processes
    processes.end(Reason.SERVER_STOPPING)
    assert await processes.wait_all_closed(LIMIT)
