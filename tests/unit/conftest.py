"""Settings for tests with generated examples."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.depth import times

# The same examples on every run, and no clock: a busy machine is no reason to fail.
settings.register_profile(
    "holdfast", derandomize=True, deadline=None, database=None, max_examples=times(25)
)
settings.load_profile("holdfast")


def pytest_collection_finish(session: pytest.Session) -> None:
    """
    Let Hypothesis read all modules once, before the processes of the tests are forked.

    It looks for constants in them, which takes each process seconds in a new checkout.
    """
    if session.config.getoption("--forks", 0) > 1:
        given(st.integers())(lambda _: None)()
