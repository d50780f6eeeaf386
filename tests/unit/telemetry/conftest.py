"""A recorder of its own for each test: nothing here is global."""

import pytest

from tests.unit.telemetry.recorded import Recorded


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()
