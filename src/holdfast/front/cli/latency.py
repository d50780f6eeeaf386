"""Latency and version of a server, for `env check` and `connect`."""

from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter

from holdfast.wire.protocol.handshake import EnvironmentInfo

__all__ = ["answer_time", "server_version"]

# Number of requests; the median hides a slow one.
_QUESTIONS = 5


async def answer_time(ask: Callable[[], Awaitable[object]]) -> float:
    """Return the median time of a few requests, in seconds."""
    times: list[float] = []
    for _ in range(_QUESTIONS):
        began = perf_counter()
        await ask()
        times.append(perf_counter() - began)
    return median(times)


def server_version(info: EnvironmentInfo) -> str:
    """Return the name and version of a server, as far as known."""
    return f"holdfast {info.holdfast_version}" if info.holdfast_version else "not Holdfast"
