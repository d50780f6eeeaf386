"""
Sessions: what a client owns beyond its connection (exec-server spec 4.2).

A session has its processes, their output and the memory of what was written. When
its connection ends it is detached, not destroyed: for 30 seconds a new connection
may ask for it by its id.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import UNSET

from holdfast.errors import InvalidRequest, SessionAttached
from holdfast.events import Reason, Verdict
from holdfast.process.local import LocalProcess
from holdfast.process.observers import ProcessObserver, ProcessStart
from holdfast.process.output import LogListener
from holdfast.process.table import LocalProcesses
from holdfast.protocol import codes
from holdfast.protocol.methods import PROCESS_CLOSED, PROCESS_EXITED
from holdfast.protocol.process import ClosedEvent, ExitedEvent, OutputChunk
from holdfast.rpc.encode import encode_notification, encode_output, output_prefix

__all__ = ["EXPIRY", "Owner", "Session", "Sessions"]

EXPIRY = 30.0
"""Seconds a session is kept without a connection."""


class Owner(Protocol):
    """The connection a session is attached to."""

    @property
    def paused(self) -> bool:
        """Whether the client reads too slowly."""

    def send(self, message: bytes) -> None:
        """Send an encoded message."""

    def send_parts(self, parts: Sequence[bytes]) -> None:
        """Send one that is in parts."""


class Session(ProcessObserver):
    """One client's processes, with or without a connection to it."""

    def __init__(self, session_id: str, processes: LocalProcesses) -> None:
        self.id = session_id
        self.processes = processes
        self.owner: Owner | None = None

    def attach(self, owner: Owner) -> None:
        """From now on, new events go to this connection."""
        self.owner = owner
        self.owner_paused(owner.paused)

    def detach(self) -> None:
        """The connection is gone: events are kept, not sent, and nobody is held up."""
        self.owner = None
        self.owner_paused(False)

    def owner_paused(self, paused: bool) -> None:
        """Hold the processes of a client that does not read, and let them go on when it does."""
        for process in self.processes:
            if paused:
                process.hold_output(self)
            else:
                process.release_output(self)

    def started(self, start: ProcessStart, process: LocalProcess) -> None:
        """Tell the client of everything that happens to it."""
        process.log.subscribe(_Push(self, process.process_id))
        if self.owner is not None and self.owner.paused:
            process.hold_output(self)


class _Push(LogListener):
    """Turns the entries of one log into notifications, while there is somebody to notify."""

    __slots__ = ("_prefix", "_process_id", "_session")

    def __init__(self, session: Session, process_id: str) -> None:
        self._session = session
        self._process_id = process_id
        self._prefix = output_prefix(process_id)

    def output(self, chunk: OutputChunk) -> None:
        owner = self._session.owner
        if owner is not None:
            owner.send_parts(encode_output(self._prefix, chunk.seq, chunk.stream, chunk.chunk))

    def exited(self, seq: int, verdict: Verdict) -> None:
        owner = self._session.owner
        if owner is not None:
            event = ExitedEvent(
                process_id=self._process_id,
                seq=seq,
                exit_code=-1 if verdict.exit_code is None else verdict.exit_code,
                sandbox_denied=verdict.denial is not None,
                limit=(verdict.detail or UNSET) if verdict.reason is Reason.LIMIT else UNSET,
                network_attempts=list(verdict.network_attempts) or UNSET,
            )
            owner.send(encode_notification(PROCESS_EXITED.name, event))

    def closed(self, seq: int) -> None:
        owner = self._session.owner
        if owner is not None:
            event = ClosedEvent(process_id=self._process_id, seq=seq)
            owner.send(encode_notification(PROCESS_CLOSED.name, event))


class Sessions:
    """All sessions of a server."""

    def __init__(
        self,
        make_processes: Callable[[], LocalProcesses],
        *,
        expiry: float = EXPIRY,
    ) -> None:
        """`make_processes` makes the table of a session, which then observes it."""
        self._loop = asyncio.get_running_loop()
        self._make_processes = make_processes
        self._expiry = expiry
        self._sessions: dict[str, Session] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, owner: Owner) -> Session:
        """A new session for a connection."""
        session = Session(_new_id(), self._make_processes())
        session.processes.add_observer(session)
        self._sessions[session.id] = session
        session.attach(owner)
        return session

    def resume(self, session_id: str, owner: Owner) -> Session:
        """
        Attach a connection to a session that lost its own.

        Raises:
            InvalidRequest: There is no such session, or no more.
            SessionAttached: Its connection is alive as far as one can tell.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise InvalidRequest(codes.unknown_session(session_id))
        if session.owner is not None:
            raise SessionAttached(session_id)
        self._timers.pop(session_id).cancel()
        session.attach(owner)
        return session

    def detach(self, session: Session) -> None:
        """Start the clock of a session whose connection ended."""
        session.detach()
        if session.id not in self._sessions:
            return  # it ended first
        self._timers[session.id] = self._loop.call_later(self._expiry, self._expire, session)

    def end(self, session: Session, reason: Reason) -> None:
        """Destroy a session and kill what it runs."""
        timer = self._timers.pop(session.id, None)
        if timer is not None:
            timer.cancel()
        self._sessions.pop(session.id, None)
        session.processes.end(reason)

    async def end_all(self, reason: Reason, *, grace: float) -> None:
        """Destroy all sessions, and wait a bounded time until nothing of them runs."""
        sessions = list(self._sessions.values())
        for session in sessions:
            self.end(session, reason)
        for session in sessions:
            await session.processes.wait_all_closed(grace)

    def processes(self) -> list[LocalProcess]:
        """Every process of every session."""
        return [process for session in self._sessions.values() for process in session.processes]

    def _expire(self, session: Session) -> None:
        self.end(session, Reason.SESSION_EXPIRED)


def _new_id() -> str:
    """A random UUID (version 4), made without the module that costs a server its start-up time."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
