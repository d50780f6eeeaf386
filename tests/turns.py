"""
Chooses among combinations that are alike, so that each is tried often enough and not always.

Some values of a parameter stand for each other in most tests: a server that listens and one on
its standard streams do the same. `pytest.mark.in_turn("target", "url", "command")` says so, and a
test runs with one of the values. Which one is settled by its name and its other parameters: the
same in every run, and another for the next test. `--all-combinations` runs them all.
"""

import zlib
from collections.abc import Collection

import pytest

__all__ = ["is_left_out", "number_of"]


def is_left_out(item: pytest.Item) -> bool:
    """Return True if another value of a parameter has its turn in a test."""
    mark = item.get_closest_marker("in_turn")
    if mark is None or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    if item.get_closest_marker("every_transport") is not None:
        return False
    name, *values = mark.args
    value = item.callspec.params.get(name)
    return value in values and value != values[number_of(item, {name}) % len(values)]


def number_of(item: pytest.Function, chosen: Collection[str]) -> int:
    """
    Return a number of a test and its parameters, the same in every run.

    Args:
        item: The test.
        chosen: Parameters that do not count, because the number decides about them.
    """
    indices = item.callspec.indices
    own = sorted((name, index) for name, index in indices.items() if name not in chosen)
    return zlib.crc32(f"{item.originalname} {own}".encode())
