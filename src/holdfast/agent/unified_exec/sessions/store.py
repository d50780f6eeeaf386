"""
The sessions that a model can name, and the numbers it names them by.

Pure: no event loop and no clock. All methods are atomic between two awaits.
"""

import random
from collections.abc import Iterator

from holdfast.agent.unified_exec.sessions.command_session import CommandSession
from holdfast.agent.unified_exec.tool_errors import CallRefused
from holdfast.base.dialect import limits

__all__ = ["CAPACITY", "CROWDED", "IdsExhausted", "SessionStore"]

CAPACITY = limits.TOOL_SESSIONS
"""Sessions that are held; one more ends another."""

CROWDED = limits.TOOL_SESSIONS_CROWDED
"""Sessions from which on a result says that there are many."""

# Sessions used last, which are never ended for others.
PROTECTED = limits.TOOL_SESSIONS_PROTECTED

FIRST_ID, LAST_ID = limits.TOOL_SESSION_IDS


class IdsExhausted(CallRefused):
    """All numbers are taken: 99,000 commands are being started at once."""


class SessionStore:
    """Sessions by their ids, and ids that are reserved for sessions to come."""

    def __init__(self, *, counted: bool = False) -> None:
        """
        Args:
            counted: Give the ids 1000, 1001, … instead of random ones, for tests.
        """
        self._sessions: dict[int, CommandSession] = {}
        self._reserved: set[int] = set()
        self._counted = counted
        self._uses = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[CommandSession]:
        """All sessions, the one started first in front."""
        # Not the order of the dictionary: a session is added some time after its start.
        return iter(sorted(self._sessions.values(), key=lambda session: session.started))

    @property
    def reserved(self) -> frozenset[int]:
        """All ids that are taken, also for commands that are being started."""
        return frozenset(self._reserved)

    def reserve(self) -> int:
        """Return an id that nobody else gets until it is freed."""
        if len(self._reserved) > LAST_ID - FIRST_ID:
            raise IdsExhausted(f"all {LAST_ID - FIRST_ID + 1} session ids are in use")
        if self._counted:
            session_id = max(self._reserved, default=FIRST_ID - 1) + 1
        else:
            # No secret: it only has to differ from the ids that are in use.
            session_id = random.randint(FIRST_ID, LAST_ID)  # noqa: S311
            while session_id in self._reserved:
                session_id = random.randint(FIRST_ID, LAST_ID)  # noqa: S311
        self._reserved.add(session_id)
        return session_id

    def free(self, session_id: int) -> None:
        """Let an id be given again; its session, if there is one, is forgotten."""
        self._sessions.pop(session_id, None)
        self._reserved.discard(session_id)

    def withdraw(self, session: CommandSession) -> None:
        """Forget a session whose id stays reserved, for another attempt of the same call."""
        if self.holds(session):
            del self._sessions[session.session_id]

    def add(self, session: CommandSession) -> None:
        """Hold a session under the id that was reserved for it."""
        self._sessions[session.session_id] = session
        self.touch(session)

    def get(self, session_id: int) -> CommandSession | None:
        """Return a session by its id."""
        return self._sessions.get(session_id)

    def holds(self, session: CommandSession) -> bool:
        """Return True if it is this session that is held under its id."""
        return self._sessions.get(session.session_id) is session

    def touch(self, session: CommandSession) -> None:
        """Note that a session was used just now."""
        self._uses += 1
        session.last_used = self._uses

    def surplus(self, *, coming: int = 1) -> CommandSession | None:
        """
        Return the session to end before others are added, if there is one.

        That is the exited one used longest ago, else the one used longest ago. Those used
        last are never chosen. One that a call waits on is skipped, and if such a one has
        exited, no live one goes in its place: there will be room in a moment.

        Args:
            coming: How many are about to be added.
        """
        if len(self._sessions) + coming <= CAPACITY:
            return None
        oldest_first = sorted(self._sessions.values(), key=lambda session: session.last_used)
        candidates = oldest_first[:-PROTECTED]
        exited = [session for session in candidates if not session.running]
        free = [session for session in exited if not session.lock.locked()]
        if free or exited:
            return free[0] if free else None
        return next((session for session in candidates if not session.lock.locked()), None)
