"""How long a place takes to answer."""

from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter

__all__ = ["answer_time"]

_QUESTIONS = 5
"""Whose median counts."""


async def answer_time(ask: Callable[[], Awaitable[object]]) -> float:
    """Seconds that an answer takes, by asking a few times."""
    times: list[float] = []
    for _ in range(_QUESTIONS):
        began = perf_counter()
        await ask()
        times.append(perf_counter() - began)
    return median(times)
