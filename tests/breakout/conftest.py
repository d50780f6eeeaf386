"""One engine and one process beside for all attempts, and a fresh ground for each."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.process.backend import LocalBackend
from tests.breakout.ground import Prepared, prepare
from tests.breakout.harness import Outsider, beside


@pytest.fixture(scope="session")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outsider]:
    with beside(tmp_path_factory.mktemp("o")) as outsider:
        yield outsider


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def backend() -> AsyncIterator[LocalBackend]:
    async with LocalBackend() as backend:
        yield backend


@pytest.fixture
def ground(tmp_path: Path, outsider: Outsider) -> Prepared:
    return prepare(tmp_path / "g", outsider.about)
