"""
MCP sessions over HTTP: how many each client may have, and which one ends for another.

The SDK has one limit for all clients, beyond which it lets none in, and keeps an idle session for
half an hour. So one client could lock out all others. Here each token has a limit, and the
session of that token which has been idle for longest ends for a new one. Without tokens, no client
can be told from another: of all sessions, the one that has been idle for longest ends, with its
commands if there is no other.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from holdfast.base.errors import Overloaded

__all__ = ["SESSIONS", "SESSIONS_OF_ONE", "HttpSessions"]

SESSIONS_OF_ONE: Final = 64
"""MCP sessions of one token."""

SESSIONS: Final = 1_024
"""MCP sessions of all clients."""

_IN_USE: Final = "have a call under way"

# How a session is ended: by its id and the key of its owner.
_EndSession = Callable[[str, str], Awaitable[None]]


class _McpSession:
    """One MCP session, and the requests that are under way in it."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.calls = 0
        # Streams for notifications, which a client may leave open as long as it likes.
        self.streams = 0


class HttpSessions:
    """The MCP sessions of all clients. An owner is a token, or all clients that have none."""

    def __init__(self, end: _EndSession, *, is_used: Callable[[str], bool]) -> None:
        """
        Args:
            end: Ends a session of the SDK; harmless if there is none.
            is_used: Returns True for a session without a token that has commands, which end with
                it.
        """
        self._end_session = end
        self._is_used = is_used
        # In the order of their last requests. One that the SDK has ended for its idleness is
        # still here, and goes first.
        self._sessions: dict[str, _McpSession] = {}
        self._opening: Counter[str] = Counter()

    @asynccontextmanager
    async def opening(self, owner: str, *, limit: int = SESSIONS_OF_ONE) -> AsyncIterator[None]:
        """
        Make room for a session that is opened in the block, and count it meanwhile.

        Args:
            owner: The token.
            limit: Sessions that it may have.

        Raises:
            Overloaded: There are too many, and none of them is idle.
        """
        ended = self._take_surplus(owner, limit)
        mine = self._count(owner)
        if mine >= limit:
            raise Overloaded(f"this client has {mine} MCP sessions, and all of them {_IN_USE}")
        if self._total() >= SESSIONS:
            raise Overloaded(f"this server has {SESSIONS} MCP sessions, and all of them {_IN_USE}")
        # Counted before the first await, so that no other request takes the place.
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
        """Forget the session that has to end for another one, and return its id and owner."""
        if self._count(owner) < limit:
            if self._total() < SESSIONS:
                return None
            # Of the owner that has most: one with few sessions cannot be locked out.
            owners = {one.owner for one in self._sessions.values()}
            owner = max(owners, key=self._count, default=owner)
        # One with commands goes last, and one whose client holds a stream open goes after those
        # whose client may be gone.
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
        """Note that the client of the block has got its session."""
        self._sessions[session_id] = _McpSession(owner)

    def closed(self, session_id: str) -> None:
        """Note that a session has ended; harmless if it is unknown."""
        self._sessions.pop(session_id, None)

    @contextmanager
    def request(self, session_id: str | None, owner: str, *, stream: bool) -> Iterator[None]:
        """Count a request in a session for the block, if the owner has such a session."""
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
            # The end of a request is when the session was used last.
            if self._sessions.pop(session_id, None) is not None:
                self._sessions[session_id] = session

    async def end_all_of(self, owner: str) -> int:
        """End all sessions of an owner, and return their number."""
        found = [key for key, one in self._sessions.items() if one.owner == owner]
        for session_id in found:
            self.closed(session_id)
        await asyncio.gather(*(self._end_session(session_id, owner) for session_id in found))
        return len(found)

    def _total(self) -> int:
        return len(self._sessions) + self._opening.total()

    def _count(self, owner: str) -> int:
        return self._opening[owner] + sum(one.owner == owner for one in self._sessions.values())
