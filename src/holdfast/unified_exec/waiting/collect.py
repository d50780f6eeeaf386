"""Waits of one call: for the end of a command, within the limits of the contract."""

import asyncio

from holdfast.unified_exec.sessions.session import CommandSession
from holdfast.unified_exec.waiting.clock import PausableClock

__all__ = [
    "GRACE",
    "LONGEST_POLL",
    "exec_wait",
    "wait_for_end",
    "write_wait",
]

GRACE = 0.15
"""Seconds after a start in which an exit is reported at once, before any clock runs."""

LONGEST_POLL = 300.0
"""Seconds an empty `write_stdin` may wait, unless told otherwise."""

_SHORTEST = 0.25
_SHORTEST_POLL = 5.0
_LONGEST = 30.0


def exec_wait(yield_time_ms: int) -> float:
    """Return the seconds that `exec_command` waits."""
    return min(max(yield_time_ms / 1000, _SHORTEST), _LONGEST)


def write_wait(yield_time_ms: int, *, poll: bool, longest_poll: float) -> float:
    """
    Return the seconds that `write_stdin` waits.

    Args:
        yield_time_ms: What the model asked for.
        poll: True if it sends no input.
        longest_poll: The configured maximum of a poll; never below 5 s.
    """
    wanted = max(yield_time_ms / 1000, _SHORTEST)
    if poll:
        return min(max(wanted, _SHORTEST_POLL), max(longest_poll, _SHORTEST_POLL))
    return min(wanted, _LONGEST)


async def wait_for_end(
    session: CommandSession, clock: PausableClock, limit: float, wake: asyncio.Event | None = None
) -> None:
    """
    Wait until a command and its output have ended, at most `limit` seconds.

    Output alone does not end the wait.

    Args:
        session: The command.
        clock: Stands still while a person is asked something.
        limit: Seconds.
        wake: Ends the wait early when it is set.
    """
    if wake is None:
        await clock.wait(session.settled, limit)
        return
    with session.when_settled(wake.set):
        await clock.wait(wake, limit)
