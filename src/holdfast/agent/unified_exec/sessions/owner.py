"""
Owner of the sessions of one set of tools: their numbers, tasks, and ends.

Every opened session is released exactly once, whatever ends it. Its number is free then, its
process is told to end, its output can be read later, and its hooks are notified.
"""

import asyncio
import ctypes
import random
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from holdfast.agent.unified_exec.hooks import Attempt, Hooks, end_attempt
from holdfast.agent.unified_exec.options import Background
from holdfast.agent.unified_exec.output.call_output import CallOutput
from holdfast.agent.unified_exec.output.kept_output import Archive, Window
from holdfast.agent.unified_exec.sessions.command_session import CommandSession, Consumer
from holdfast.agent.unified_exec.sessions.session_events import Announcer, Listeners
from holdfast.agent.unified_exec.tool_errors import CallRefused
from holdfast.backends import ExecProcess
from holdfast.base.dialect import limits
from holdfast.base.errors import HoldfastError
from holdfast.base.tasks import OwnedTasks
from holdfast.environments.environment import Environment

__all__ = ["CAPACITY", "CROWDED", "END_LIMIT", "HeldSession", "SessionOwner", "SessionStore"]

CAPACITY = limits.TOOL_SESSIONS
"""Sessions that are held; one more ends another."""

CROWDED = limits.TOOL_SESSIONS_CROWDED
"""Sessions from which on a result says that there are many."""

# Sessions used last, which are never ended for others.
PROTECTED = limits.TOOL_SESSIONS_PROTECTED

FIRST_ID, LAST_ID = limits.TOOL_SESSION_IDS


class _IdsExhausted(CallRefused):
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
            raise _IdsExhausted(f"all {LAST_ID - FIRST_ID + 1} session ids are in use")
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


END_LIMIT = 5.0
"""Seconds for a server to kill what still runs; then nobody waits any more."""

# Bytes of output since the last time that make it worthwhile.
FREED_BYTES = 2 << 20

# Seconds without output before memory is given back: a flood would need it again at once.
FREED_QUIET = 0.25


class FreedMemory(Consumer):
    """
    Gives memory back to the kernel after commands have written a lot; a consumer of all sessions.

    The C library keeps freed memory for the next output, which for 64 sessions is as much again as
    what is kept. A program that holds many sessions for days should not pay for that.
    """

    def __init__(self) -> None:
        self._written = 0
        self._last_output = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # Not every C library has it.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def output(self, seq: int, data: bytes) -> None:
        """Count bytes that a command wrote."""
        self._written += len(data)
        if self._written < FREED_BYTES or self._trim is None:
            return
        loop = asyncio.get_running_loop()
        self._last_output = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(FREED_QUIET, self._timer_fired, loop)

    def _timer_fired(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop.time() < self._last_output + FREED_QUIET:
            self._timer = loop.call_at(self._last_output + FREED_QUIET, self._timer_fired, loop)
            return
        self._timer = None
        self._written = 0
        # Without the function there would be no timer.
        assert self._trim is not None
        self._trim(0)

    def close(self) -> None:
        """Give nothing back any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._trim = None


@dataclass(slots=True, eq=False)
class HeldSession:
    """A session, and what is owed for it."""

    session: CommandSession
    environment: Environment
    attempt: Attempt
    announcer: Announcer
    output: CallOutput | None = None
    """The extras about output of the call that started it."""
    followed: bool = False
    """True once a task reads it."""
    ended: bool = False
    """True once its process, and unless kept its leftovers, were told to end."""
    forgotten: bool = False
    """True if it was killed while a call waits on it; released together with that call."""
    cleaned: bool = False
    """True if that call is to report an unknown session."""
    denied_early: bool = False
    """True if its sandbox denied it something in the first moments: it was not announced."""
    released: bool = False

    @property
    def gone(self) -> bool:
        """True if it was killed or released meanwhile."""
        return self.forgotten or self.released


class SessionOwner:
    """The sessions of one set of tools, from their start to their release."""

    def __init__(
        self, *, hooks: Hooks, listeners: Listeners, background: Background, counted_ids: bool
    ) -> None:
        """
        Args:
            hooks: Notified of the end of every attempt.
            listeners: Notified of events of the commands.
            background: Treatment of processes that a command left in its group.
            counted_ids: Number the sessions 1000, 1001, … instead of at random.
        """
        self.store = SessionStore(counted=counted_ids)
        """The sessions that a model can name."""
        self.held: dict[CommandSession, HeldSession] = {}
        """All sessions that are not released, also those without a number for the model yet."""
        self.tasks = OwnedTasks()
        """Readers, and notifications of servers in the background."""
        self._memory = FreedMemory()
        self._archive = Archive()
        self._hooks = hooks
        self._listeners = listeners
        self._background = background

    def open(
        self, process: ExecProcess, environment: Environment, attempt: Attempt, started: float
    ) -> HeldSession:
        """Take a process that was just started; the caller calls `follow` soon."""
        request = attempt.request
        session = CommandSession(
            process,
            session_id=request.session_id,
            call_id=request.call_id,
            script=request.script,
            argv=request.argv,
            cwd=request.cwd.shown,
            tty=request.tty,
            environment_id=request.environment_id,
            started=started,
        )
        held = HeldSession(session, environment, attempt, Announcer(self._listeners, session))
        session.consumers += (held.announcer, self._memory)
        self.held[session] = held
        attempt.fail = lambda reason: self.fail(held, reason)
        return held

    def follow(self, held: HeldSession) -> None:
        """Read a command's output from now on, in the background; harmless when called again."""
        if not held.followed and not held.session.read_up:
            held.followed = True
            self.tasks.start(held.session.read())

    def admit(self, held: HeldSession) -> tuple[int, ...]:
        """
        Announce a command, and let the model use its number if it keeps running.

        Returns:
            The numbers of sessions that were ended to make room.
        """
        session = held.session
        pruned: tuple[int, ...] = ()
        if session.running:
            pruned = self.prune()
            self.store.add(session)
        if not held.denied_early:
            held.announcer.begin()
        return pruned

    def prune(self, *, coming: int = 1) -> tuple[int, ...]:
        """
        End the sessions that are too many, except those that a call waits on.

        Calls in parallel may hold more than the limit. So each one calls this again at its end,
        when the sessions of the calls that ended before it can go.

        Args:
            coming: How many are about to be added.

        Returns:
            Their numbers.
        """
        pruned = []
        while (surplus := self.store.surplus(coming=coming)) is not None:
            pruned.append(surplus.session_id)
            old = self.held[surplus]
            old.announcer.pruned = True
            self.kill(old)
        return tuple(pruned)

    def find_output(self, key: str | int) -> Window | None:
        """Return the end of a command's output, by a call id or the number of its session."""
        for session in self.held:
            if key == session.session_id or key in session.call_ids:
                return session.output.window()
        return self._archive.find(key)

    # -- ends

    def kill(self, held: HeldSession) -> None:
        """Mark a session as ended and kill its process; a call that waits on it reports that."""
        session = held.session
        # A call that holds the lock reports the end itself, and releases the session then.
        if session.lock.locked():
            held.forgotten = True
            if session.running:
                self._end_process(held)
        else:
            self.release(held)
            held.announcer.end()

    def fail(self, held: HeldSession, reason: str) -> None:
        """Kill a command for a reason that the call in progress, or the next one, reads."""
        session = held.session
        if session.running:
            session.mark_failed(reason)
            self._end_process(held)
        if not session.lock.locked():
            held.announcer.end()

    async def end_what_was_left(self, held: HeldSession) -> bool:
        """Kill what an exited command left in its group; return True if there was something."""
        left = False
        process = held.session.process
        if self._background != "keep":
            # Local calls return at once, and creating a timeout costs more than they do.
            limit = asyncio.timeout(END_LIMIT) if process.remote else nullcontext()
            # If it fails, whether anything was left stays unknown.
            with suppress(HoldfastError, TimeoutError):
                async with limit:
                    left = await process.terminate(left=True)
        held.ended = True
        return left

    def release(self, held: HeldSession, *, keep_id: bool = False) -> None:
        """
        Release a session: its number, its reader, and the resources of its hooks.

        Args:
            held: The session; harmless if it was released before.
            keep_id: Keep its number reserved, for another attempt of the same call.
        """
        if held.released:
            return
        held.released = True
        session = held.session
        if keep_id:
            self.store.withdraw(session)
        else:
            self.store.free(session.session_id)
        # Before the reader stops: from then on the session counts as ended, and could not be
        # marked as killed.
        self._end_process(held)
        session.stop_reading()
        # Its output can be read by id after the release.
        output = session.output.window()
        self._archive.add(output, call_ids=session.call_ids, session_id=session.session_id)
        del self.held[session]
        # It refers to the session, which a kept attempt would keep alive.
        held.attempt.fail = _ignore
        end_attempt(self._hooks, held.attempt)

    def release_all(self) -> None:
        """Kill all commands and let go of their sessions; calls that wait on them end."""
        self._memory.close()
        for held in list(self.held.values()):
            self.kill(held)
            self.release(held)
            held.announcer.end()

    def _end_process(self, held: HeldSession) -> None:
        """Kill a process in the background, or what an exited one left; does so once."""
        if held.ended:
            return
        held.ended = True
        session = held.session
        session.mark_killed()
        exited = session.verdict is not None and not session.killed
        if not (exited and self._background == "keep"):
            self.tasks.start(_terminate(session))


def _ignore(reason: str) -> None:
    """Do nothing: the command of an attempt that failed has ended."""


async def _terminate(session: CommandSession) -> None:
    # The session is lost, or the process is gone.
    with suppress(HoldfastError):
        await session.process.terminate(tree=True, left=True)
        # Only the exit is awaited when the tools are closed. The output may never end: on
        # another server a child that cannot be killed may hold it.
        await session.process.exited()
