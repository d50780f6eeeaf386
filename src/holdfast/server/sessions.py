"""
Sessions: the state of a client that outlives its connection [session.*].

A session has the client's processes, their output and the ids of accepted writes. When its
connection ends, it is detached, not destroyed: for 80 seconds a new connection may resume it by
its id.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from holdfast.base.dialect import limits, texts
from holdfast.base.errors import InvalidRequest, SessionAttached
from holdfast.base.tasks import OwnedTasks
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.engine.process.process_table import ProcessTable
from holdfast.engine.process.variable_marks import (
    MARK_VARIABLE,
    FirstCommand,
    is_mark,
    kill_by_variable,
)
from holdfast.events import Reason
from holdfast.server.delivery import Delivery, Owner
from holdfast.server.operate.records import Records, SessionRecord
from holdfast.wire.transports.transport import Credential

__all__ = ["EXPIRY", "SILENT_EXPIRY", "Session", "Sessions", "short_session"]

logger = logging.getLogger(__name__)

# Seconds for killed processes to end; the kernel rarely needs more than 10 ms.
_KILL_LIMIT = 2.0

# Seconds a session is kept without a connection.
EXPIRY = limits.SESSION_KEPT

# Seconds the session of a Holdfast client is kept after its connection went silent.
#
# The client may only be stopped, in a debugger or by Ctrl-Z, and reconnect when it continues.
SILENT_EXPIRY = 300.0


# Maximum marks in a session: one per environment of the client, for example. Each costs a search
# through the processes of this machine at the end of the session.
_MOST_MARKS = 64


class Session(ProcessObserver):
    """A client's processes, with or without a connection."""

    def __init__(self, session_id: str, processes: ProcessTable, owner: Owner) -> None:
        self.id = session_id
        self.processes = processes
        self.usage = owner.usage
        """Usage of its principal, the only one that can resume the session."""
        self.owner: Owner | None = None
        self.credential = owner.credential
        """Credential of the client that opened or last resumed the session."""
        self._left = False
        # True if the last connection was from a Holdfast client.
        self._acknowledges = False
        # By process id, until a process is forgotten.
        self._deliveries: dict[str, Delivery] = {}
        # Marks of the client's commands, for finding their daemons; see `process.variable_marks`.
        self._marks: set[str] = set()
        self._first: FirstCommand | None = None

    @property
    def principal(self) -> str:
        """Name of the token that opened or last resumed the session."""
        return self.credential.principal

    @property
    def is_left(self) -> bool:
        """True if its client closed the connection, or lost it and has no processes."""
        return self.owner is None and (self._left or not len(self.processes))

    @property
    def has_marks(self) -> bool:
        """True if marked commands were started, which may have left daemons behind."""
        return bool(self._marks)

    async def wait_closed(self) -> None:
        """Wait for killed processes to close, at most `_KILL_LIMIT` seconds."""
        await self.processes.wait_all_closed(_KILL_LIMIT)

    def attach(self, owner: Owner) -> None:
        """Send events to this connection from now on."""
        self.owner = owner
        self.credential = owner.credential
        self._acknowledges = owner.acknowledges
        for delivery in self._deliveries.values():
            delivery.attach(owner)
        self.processes.resume_forgetting()

    def detach(self, *, closed: bool = False) -> None:
        """
        Keep events instead of sending them; call this when the connection is lost.

        Args:
            closed: True if the client closed it, and so is unlikely to return.
        """
        self.owner = None
        self._left = closed
        for delivery in self._deliveries.values():
            delivery.detach()
        # Keep closed processes as long as the session: the client may not know of their end.
        self.processes.pause_forgetting()

    def owner_paused(self, paused: bool) -> None:
        """Stop or resume reading the output of all processes, as the client does."""
        for delivery in self._deliveries.values():
            delivery.owner_paused(paused)

    def started(self, start: ProcessStart, process: LoggedProcess) -> None:
        """Send the events of a new process to the client, and remember its mark."""
        mark = start.params.env.get(MARK_VARIABLE)
        if (
            mark is not None
            and process.pid is not None
            and self.processes.on_this_machine
            and len(self._marks) < _MOST_MARKS
        ):
            owner = mark.rpartition("/")[2].partition("-")[0]
            if is_mark(owner):
                self._marks.add(owner)
                self._first = self._first or FirstCommand.now(process.pid)
        # Before the first output, so that no event is missed.
        self._deliveries[process.process_id] = Delivery(
            process, self.owner, acknowledged=self._acknowledges
        )

    def forgotten(self, process: LoggedProcess) -> None:
        """Drop the delivery of a process that can no longer be read or acknowledged."""
        self._deliveries.pop(process.process_id).end()

    def acknowledge(self, process_id: str, seq: int) -> None:
        """Release the events that the client has received; ignore a forgotten process."""
        delivery = self._deliveries.get(process_id)
        if delivery is not None:
            delivery.acknowledge(seq)

    def caught_up(self, process_id: str, after_seq: int) -> None:
        """Send events of a process again, after the client has read those it missed."""
        delivery = self._deliveries.get(process_id)
        if delivery is not None:
            delivery.caught_up(after_seq)

    def hold(self, process_id: str, held: bool) -> None:
        """
        Stop or resume reading the output of a process.

        Raises:
            UnknownProcess: No process has that id.
            InvalidRequest: The process is still being started.
        """
        self.processes.get(process_id)
        self._deliveries[process_id].hold(held)

    async def end_marked(self, mark: str) -> int:
        """Kill all processes with a mark, and return their number."""
        owner, one_only, _ = mark.partition("-")
        if owner not in self._marks:
            # Only marks of this session: a client must not kill another client's processes.
            return 0
        if not one_only:
            self._marks.discard(owner)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, kill_by_variable, mark, self._first)

    async def end_all_marked(self) -> None:
        """Kill all processes with a mark of this session."""
        for mark in list(self._marks):
            await self.end_marked(mark)


class Sessions:
    """All sessions of a server."""

    def __init__(
        self,
        make_processes: Callable[[], ProcessTable],
        *,
        expiry: float = EXPIRY,
        records: Records,
    ) -> None:
        """
        Args:
            make_processes: Creates the process table of a session.
            expiry: Seconds a session is kept without a connection.
            records: Records the ends of sessions.
        """
        self._loop = asyncio.get_running_loop()
        self._make_processes = make_processes
        self._expiry = expiry
        self._records = records
        self._sessions: dict[str, Session] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks = OwnedTasks()

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, owner: Owner) -> Session:
        """
        Open a session for a connection.

        If the principal is at its limit, sessions that clients have left are ended.

        Raises:
            Overloaded: The principal is at its limit of sessions.
        """
        # Timers are ordered by when the sessions were detached.
        for session_id in list(self._timers) if owner.usage.is_full("sessions") else ():
            left = self._sessions[session_id]
            if left.usage is owner.usage and left.is_left:
                self.end(left, Reason.SESSION_EXPIRED)
                break
        owner.usage.check("sessions")
        session = Session(_new_id(), self._make_processes(), owner)
        session.processes.add_observer(session)
        session.processes.add_observer(owner.usage)
        self._sessions[session.id] = session
        owner.usage.sessions += 1
        session.attach(owner)
        return session

    def resume(self, session_id: str, owner: Owner) -> Session:
        """
        Attach a connection to a detached session.

        A Holdfast client can also take over its session from a connection that still looks alive.

        Raises:
            InvalidRequest: The session is unknown, has expired, or belongs to another principal.
            SessionAttached: The session is attached to a client without Holdfast's extensions.
        """
        session = self._sessions.get(session_id)
        # The same error for both: another principal must not learn that the id exists.
        if session is None or session.usage is not owner.usage:
            raise InvalidRequest(texts.unknown_session(session_id))
        if session.owner is not None:
            if not (owner.acknowledges and session.owner.acknowledges):
                raise SessionAttached(session_id)
            # The client has abandoned that connection, but the server has not noticed.
            session.owner.abandon("its session was resumed on another connection")
        self._timers.pop(session_id).cancel()
        session.attach(owner)
        return session

    def detach(self, session: Session, *, silent: bool = False, closed: bool = False) -> None:
        """
        Detach a session from its connection, and start its expiry.

        Args:
            session: The session.
            silent: True if the server closed the connection because nothing arrived on it.
            closed: True if the client closed the connection.
        """
        session.detach(closed=closed)
        if session.id not in self._sessions:
            # The session ended before its connection.
            return
        expiry = max(self._expiry, SILENT_EXPIRY) if silent else self._expiry
        self._timers[session.id] = self._loop.call_later(expiry, self._expire, session)

    def end_revoked(self, admits: Callable[[Credential], bool]) -> list[Credential]:
        """Destroy the sessions whose credential is no longer valid; return the credentials."""
        revoked = [one for one in self._sessions.values() if not admits(one.credential)]
        for session in revoked:
            self.end(session, Reason.TERMINATED)
        return [session.credential for session in revoked]

    def end(self, session: Session, reason: Reason) -> None:
        """Destroy a session and kill its processes."""
        timer = self._timers.pop(session.id, None)
        if timer is not None:
            timer.cancel()
        if self._sessions.pop(session.id, None) is not None:
            session.usage.sessions -= 1
        killed = sum(process.running for process in session.processes)
        self._records.add(
            SessionRecord(
                principal=session.principal,
                session=short_session(session.id),
                state="ended",
                reason=reason.value,
                killed=killed,
            )
        )
        session.processes.end(reason)
        if killed:
            # Lets `end_all` also wait for the processes of a session that has just ended.
            self._tasks.start(session.wait_closed())
        # In a task: the search through all processes takes a while and is not urgent.
        if session.has_marks:
            self._tasks.start(session.end_all_marked())

    async def end_all(self, reason: Reason, *, grace: float) -> None:
        """Destroy all sessions, and wait at most `grace` seconds for each to be empty."""
        sessions = list(self._sessions.values())
        for session in sessions:
            self.end(session, reason)
        # After all were killed, so that they end in parallel.
        for session in sessions:
            await session.processes.wait_all_closed(grace)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._tasks.join()

    def _expire(self, session: Session) -> None:
        self.end(session, Reason.SESSION_EXPIRED)


def short_session(session_id: str) -> str:
    """Return the start of an id for the log; the whole id would allow resuming the session."""
    return session_id[:8]


def _new_id() -> str:
    """Return a random UUID (version 4) without importing `uuid`, which is slow."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
