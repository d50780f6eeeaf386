"""
MCP sessions over HTTP: limits per client, and which session makes room for another.

The SDK has one limit for all clients, above which it refuses sessions, and keeps an idle session
for half an hour. So one client could lock out all others. Here each token has a limit, above which
its session that has been idle longest makes room. Without tokens, clients cannot be distinguished:
of all sessions, the one that has been idle longest ends, with its commands only if there is no
other.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from holdfast.base.errors import Overloaded

__all__ = ["SESSIONS", "SESSIONS_OF_ONE", "HttpSessions"]

SESSIONS_OF_ONE: Final = 64
"""Maximum MCP sessions of a token."""

SESSIONS: Final = 1_024
"""Maximum MCP sessions of all clients."""

_IN_USE: Final = "have a call under way"

# How a session is ended: by its id and the key of its owner.
_EndSession = Callable[[str, str], Awaitable[None]]


class _McpSession:
    """An MCP session and its running requests."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.calls = 0
        # Streams for notifications, which a client may leave open.
        self.streams = 0


class HttpSessions:
    """The MCP sessions of all clients. An owner is a token, or all clients without one."""

    def __init__(self, end: _EndSession, *, is_used: Callable[[str], bool]) -> None:
        """
        Args:
            end: Ends a session of the SDK, if it exists.
            is_used: Returns True for a session without a token that has commands, which would end
                with it.
        """
        self._end_session = end
        self._is_used = is_used
        # In the order of their last requests. Sessions that the SDK has ended as idle are still
        # here, and removed first.
        self._sessions: dict[str, _McpSession] = {}
        self._opening: Counter[str] = Counter()

    @asynccontextmanager
    async def opening(self, owner: str, *, limit: int = SESSIONS_OF_ONE) -> AsyncIterator[None]:
        """
        Make room for a session that is opened in the block, and reserve its place.

        Args:
            owner: The token.
            limit: Maximum number of its sessions.

        Raises:
            Overloaded: There are too many sessions, none of them idle.
        """
        ended = self._take_surplus(owner, limit)
        mine = self._count(owner)
        if mine >= limit:
            raise Overloaded(f"this client has {mine} MCP sessions, and all of them {_IN_USE}")
        if self._total() >= SESSIONS:
            raise Overloaded(f"this server has {SESSIONS} MCP sessions, and all of them {_IN_USE}")
        # Counted before the first await, so that another request cannot take the place.
        self._opening[owner] += 1
        try:
            if ended is not None:
                await self._end_session(*ended)
            yield
        finally:
            self._opening[owner] -= 1
            if not self._opening[owner]:
                del self._opening[owner]

    def _take_surplus(self, owner: str, limit: int) -> tuple[str, str] | None:
        """Remove the session that makes room for another one, and return its id and owner."""
        if self._count(owner) < limit:
            if self._total() < SESSIONS:
                return None
            # From the owner with the most sessions, so that one with few cannot be locked out.
            owners = {one.owner for one in self._sessions.values()}
            owner = max(owners, key=self._count, default=owner)
        # Prefer sessions without commands, and then those without open streams, whose client may
        # have left.
        idle = [
            (self._is_used(session_id), one.streams > 0, number, session_id)
            for number, (session_id, one) in enumerate(self._sessions.items())
            if one.owner == owner and not one.calls
        ]
        if not idle:
            return None
        session_id = min(idle)[3]
        self.closed(session_id)
        return session_id, owner

    def opened(self, session_id: str, owner: str) -> None:
        """Note that a session was opened."""
        self._sessions[session_id] = _McpSession(owner)

    def closed(self, session_id: str) -> None:
        """Note that a session has ended, if it is known."""
        self._sessions.pop(session_id, None)

    @contextmanager
    def request(self, session_id: str | None, owner: str, *, stream: bool) -> Iterator[None]:
        """Count a request of a session during the block, if the owner has that session."""
        session = None if session_id is None else self._sessions.get(session_id)
        if session is None or session_id is None or session.owner != owner:
            yield
            return
        session.streams += stream
        session.calls += not stream
        try:
            yield
        finally:
            session.streams -= stream
            session.calls -= not stream
            # Reinsert at the end: the session was just used.
            if self._sessions.pop(session_id, None) is not None:
                self._sessions[session_id] = session

    async def end_all_of(self, owner: str) -> int:
        """End all sessions of an owner; return their number."""
        found = [key for key, one in self._sessions.items() if one.owner == owner]
        for session_id in found:
            self.closed(session_id)
        await asyncio.gather(*(self._end_session(session_id, owner) for session_id in found))
        return len(found)

    def _total(self) -> int:
        return len(self._sessions) + self._opening.total()

    def _count(self, owner: str) -> int:
        return self._opening[owner] + sum(one.owner == owner for one in self._sessions.values())
