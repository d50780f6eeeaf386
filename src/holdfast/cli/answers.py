"""The answer of a server to `env check`: how fast it is, and which version."""

from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter

from holdfast.protocol.handshake import EnvironmentInfo

__all__ = ["answer_time", "server_version"]

# Whose median counts.
_QUESTIONS = 5


async def answer_time(ask: Callable[[], Awaitable[object]]) -> float:
    """Seconds that an answer takes, by asking a few times."""
    times: list[float] = []
    for _ in range(_QUESTIONS):
        began = perf_counter()
        await ask()
        times.append(perf_counter() - began)
    return median(times)


def server_version(info: EnvironmentInfo) -> str:
    """Return the name and the version of a server, as far as it tells."""
    return f"holdfast {info.holdfast_version}" if info.holdfast_version else "not Holdfast"
