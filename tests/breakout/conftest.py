"""One engine and one process beside for all attempts, and grounds for them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.engine.process.registry import LocalBackend
from tests.breakout.ground import Prepared, prepare
from tests.breakout.harness import Outsider, beside
from tests.breakout.shared_runs import SharedRuns


@pytest.fixture(scope="session")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outsider]:
    with beside(tmp_path_factory.mktemp("o")) as outsider:
        yield outsider


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def backend() -> AsyncIterator[LocalBackend]:
    async with LocalBackend() as backend:
        yield backend


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_runs(
    backend: LocalBackend,
    outsider: Outsider,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> SharedRuns | None:
    """Runs of many attempts; None if each is to be made by itself."""
    if pytestconfig.getoption("--attempts-alone"):
        return None
    return SharedRuns(backend, outsider, tmp_path_factory.mktemp("s"))


@pytest.fixture
def ground(tmp_path: Path, outsider: Outsider) -> Prepared:
    return prepare(tmp_path / "g", outsider.about)
