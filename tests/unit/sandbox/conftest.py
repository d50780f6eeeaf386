"""The engine of `tests/unit/process`, for tests that start commands in sandboxes."""

from tests.unit.process.conftest import processes as processes
