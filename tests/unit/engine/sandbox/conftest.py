"""The engine of `tests/unit/engine/process`, for tests that start commands in sandboxes."""

from tests.unit.engine.process.conftest import processes as processes
