"""MCP sessions of one token, and of all: which one ends for another."""

from contextlib import AsyncExitStack

import pytest

from holdfast.base.errors import Overloaded
from holdfast.front.mcp.http_sessions import SESSIONS, SESSIONS_OF_ONE, HttpSessions

pytestmark = pytest.mark.requirement("auth.sessions-of-one")


class Kept:
    """Sessions, and those of them that were ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []
        self.used: set[str] = set()
        self.sessions = HttpSessions(self._end, is_used=self.used.__contains__)
        self._number = 0

    async def _end(self, session: str, owner: str) -> None:
        self.ended.append((session, owner))

    async def open(self, owner: str, count: int = 1) -> None:
        """Open sessions, which are numbered."""
        for _ in range(count):
            async with self.sessions.opening(owner):
                self.sessions.opened(str(self._number), owner)
                self._number += 1


async def test_a_token_has_sixty_four() -> None:
    kept = Kept()
    await kept.open("one", SESSIONS_OF_ONE)
    await kept.open("two", SESSIONS_OF_ONE)
    assert (SESSIONS_OF_ONE, kept.ended) == (64, [])
    await kept.open("one", 2)
    assert kept.ended == [("0", "one"), ("1", "one")]


async def test_a_session_in_use_is_ended_last() -> None:
    kept = Kept()
    await kept.open("one", SESSIONS_OF_ONE)
    with kept.sessions.request("0", "one", stream=False):
        kept.used.add("1")
        with kept.sessions.request("2", "one", stream=True):
            await kept.open("one")
            assert kept.ended == [("3", "one")]
    # A request that is over counts as use, and one of a foreign token does not.
    with kept.sessions.request("4", "two", stream=False):
        await kept.open("one")
    assert kept.ended[1:] == [("4", "one")]


async def test_without_another_one_a_session_with_commands_is_ended() -> None:
    kept = Kept()
    await kept.open("one", SESSIONS_OF_ONE)
    kept.used.update(map(str, range(SESSIONS_OF_ONE)))
    with (
        kept.sessions.request("0", "one", stream=False),
        kept.sessions.request("1", "one", stream=True),
    ):
        await kept.open("one", 2)
        # Never one with a call, and one with a stream after the others.
        assert kept.ended == [("2", "one"), (str(SESSIONS_OF_ONE), "one")]


async def test_if_all_are_in_use_another_one_is_refused() -> None:
    kept = Kept()
    await kept.open("one", SESSIONS_OF_ONE)
    async with AsyncExitStack() as stack:
        for number in range(SESSIONS_OF_ONE):
            stack.enter_context(kept.sessions.request(str(number), "one", stream=False))
        with pytest.raises(Overloaded, match="this client has 64 MCP sessions"):
            await kept.open("one")
        await kept.open("two")
    assert kept.ended == []


async def test_sessions_that_are_being_opened_count() -> None:
    kept = Kept()
    async with AsyncExitStack() as stack:
        for _ in range(SESSIONS_OF_ONE):
            await stack.enter_async_context(kept.sessions.opening("one"))
        with pytest.raises(Overloaded):
            await kept.open("one")
    await kept.open("one")


async def test_on_a_full_server_the_token_with_most_makes_room() -> None:
    kept = Kept()
    for number in range(SESSIONS // SESSIONS_OF_ONE):
        await kept.open(f"token {number}", SESSIONS_OF_ONE - (number == 3))
    await kept.open("last")
    assert kept.ended == []
    await kept.open("last", 2)
    assert [owner for _, owner in kept.ended] != ["last", "last"]
    assert len(kept.ended) == 2
    assert await kept.sessions.end_all_of("last") == 3
