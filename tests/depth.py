"""
Number of repetitions of what depends on chance: races, generated examples, random schedules.

A change is tested with a few of each. `HOLDFAST_TEST_DEPTH=5 scripts/test` runs five times as
many: do so after a change to what they test, and before a release.
"""

import os

__all__ = ["times"]

_DEPTH = int(os.environ.get("HOLDFAST_TEST_DEPTH", "1"))


def times(count: int) -> int:
    """Return how often to repeat something that is done so often without the variable."""
    return count * _DEPTH
