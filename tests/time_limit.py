"""
Ends a test that takes too long, with one thread for all tests.

`pytest-timeout` starts a thread for each test and waits for its end: a tenth of what a short test
costs. Here one thread looks once a second whether the test has run out of time, and leaves what
happens then to `pytest-timeout`: it shows all stacks and ends the process.
"""

import os
import threading
from time import monotonic, sleep
from typing import Any

import pytest
import pytest_timeout  # type: ignore[import-untyped]

__all__ = ["TimeLimit"]

_INTERVAL = 1.0
"""Seconds between two looks."""


class TimeLimit:
    """The test that runs, and when it must have ended."""

    def __init__(self) -> None:
        self._running: tuple[pytest.Item, Any, float] | None = None
        self._process: int | None = None

    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        if settings.method != "thread":
            return None  # pytest-timeout does it by a signal
        self._running = item, settings, monotonic() + settings.timeout
        if self._process != os.getpid():  # no thread follows a fork
            self._process = os.getpid()
            threading.Thread(target=self._watch, name="time limit", daemon=True).start()
        return True

    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        del item
        if self._running is None:
            return None
        self._running = None
        return True

    def _watch(self) -> None:
        while True:
            sleep(_INTERVAL)
            running = self._running
            if running is not None and monotonic() > running[2]:
                # Does not return, unless a debugger is at work.
                pytest_timeout.timeout_timer(*running[:2])
