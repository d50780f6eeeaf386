"""
Owner of the sessions of one set of tools: their numbers, tasks and release.

Every opened session is released exactly once, regardless of how it ends. The release frees its
number, terminates its process, keeps its output for later reads, and notifies the hooks.
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
"""Most sessions; opening one more ends another."""

CROWDED = limits.TOOL_SESSIONS_CROWDED
"""Number of sessions from which results warn that there are many."""

# Number of most recently used sessions that are never ended to make room.
PROTECTED = limits.TOOL_SESSIONS_PROTECTED

FIRST_ID, LAST_ID = limits.TOOL_SESSION_IDS


class _IdsExhausted(CallRefused):
    """All numbers are in use: 99,000 commands are starting at once."""


class SessionStore:
    """Sessions by id, and ids reserved for future sessions."""

    def __init__(self, *, counted: bool = False) -> None:
        """
        Args:
            counted: Assign the ids 1000, 1001, … instead of random ones, for tests.
        """
        self._sessions: dict[int, CommandSession] = {}
        self._reserved: set[int] = set()
        self._counted = counted
        self._uses = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[CommandSession]:
        """All sessions, in the order of their starts."""
        # Not the order of the dictionary: sessions are added some time after their start.
        return iter(sorted(self._sessions.values(), key=lambda session: session.started))

    @property
    def reserved(self) -> frozenset[int]:
        """All ids in use, including those of commands that are being started."""
        return frozenset(self._reserved)

    def reserve(self) -> int:
        """Return an id that stays unique until it is freed."""
        if len(self._reserved) > LAST_ID - FIRST_ID:
            raise _IdsExhausted(f"all {LAST_ID - FIRST_ID + 1} session ids are in use")
        if self._counted:
            session_id = max(self._reserved, default=FIRST_ID - 1) + 1
        else:
            # Not a secret: it only has to differ from the ids in use.
            session_id = random.randint(FIRST_ID, LAST_ID)  # noqa: S311
            while session_id in self._reserved:
                session_id = random.randint(FIRST_ID, LAST_ID)  # noqa: S311
        self._reserved.add(session_id)
        return session_id

    def free(self, session_id: int) -> None:
        """Free an id and remove its session, if any."""
        self._sessions.pop(session_id, None)
        self._reserved.discard(session_id)

    def withdraw(self, session: CommandSession) -> None:
        """Remove a session but keep its id reserved, for another attempt of the same call."""
        if self.holds(session):
            del self._sessions[session.session_id]

    def add(self, session: CommandSession) -> None:
        """Store a session under its reserved id."""
        self._sessions[session.session_id] = session
        self.touch(session)

    def get(self, session_id: int) -> CommandSession | None:
        """Return a session by id, if it exists."""
        return self._sessions.get(session_id)

    def holds(self, session: CommandSession) -> bool:
        """Return True if this session is the one stored under its id."""
        return self._sessions.get(session.session_id) is session

    def touch(self, session: CommandSession) -> None:
        """Mark a session as just used."""
        self._uses += 1
        session.last_used = self._uses

    def surplus(self, *, coming: int = 1) -> CommandSession | None:
        """
        Return the session to end before others are added, if any.

        This is the least recently used exited session, or otherwise the least recently used one.
        The most recently used ones are never chosen. Sessions with a waiting call are skipped; if
        such a session has exited, no running one is chosen instead, since there will be room soon.

        Args:
            coming: Number of sessions about to be added.
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
"""Seconds to wait for a server to kill remaining processes."""

# Bytes of output since the last trim that make another worthwhile.
FREED_BYTES = 2 << 20

# Seconds without output before memory is returned: a flood would need it again immediately.
FREED_QUIET = 0.25


class FreedMemory(Consumer):
    """
    Returns memory to the kernel after commands wrote much output; a consumer of all sessions.

    The C library keeps freed memory for the next output, which for 64 sessions doubles the memory
    of the kept output. A program that holds many sessions for days should not pay for that.
    """

    def __init__(self) -> None:
        self._written = 0
        self._last_output = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # Not every C library has this function.
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
        # The timer is only set if the function exists.
        assert self._trim is not None
        self._trim(0)

    def close(self) -> None:
        """Stop returning memory."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._trim = None


@dataclass(slots=True, eq=False)
class HeldSession:
    """A session with its resources."""

    session: CommandSession
    environment: Environment
    attempt: Attempt
    announcer: Announcer
    output: CallOutput | None = None
    """The output extras of the call that started it."""
    followed: bool = False
    """True once a task reads its output."""
    ended: bool = False
    """True once its process, and unless kept its leftover processes, are being terminated."""
    forgotten: bool = False
    """True if it was killed while a call waits for it, which then releases it."""
    cleaned: bool = False
    """True if that call should report an unknown session."""
    denied_early: bool = False
    """True if it was not announced, since its sandbox denied it something early on."""
    released: bool = False

    @property
    def gone(self) -> bool:
        """True if it was killed or released."""
        return self.forgotten or self.released


class SessionOwner:
    """The sessions of one set of tools, from their start to their release."""

    def __init__(
        self, *, hooks: Hooks, listeners: Listeners, background: Background, counted_ids: bool
    ) -> None:
        """
        Args:
            hooks: Notified of the end of each attempt.
            listeners: Notified of events of the commands.
            background: Handling of processes that a command left in its group.
            counted_ids: Number the sessions 1000, 1001, … instead of at random.
        """
        self.store = SessionStore(counted=counted_ids)
        """The sessions that the model can use."""
        self.held: dict[CommandSession, HeldSession] = {}
        """All sessions not yet released, including those that the model does not know yet."""
        self.tasks = OwnedTasks()
        """Readers, and terminations in the background."""
        self._memory = FreedMemory()
        self._archive = Archive()
        self._hooks = hooks
        self._listeners = listeners
        self._background = background

    def open(
        self, process: ExecProcess, environment: Environment, attempt: Attempt, started: float
    ) -> HeldSession:
        """Create a session for a new process; the caller must soon call `follow`."""
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
        """Read a command's output in the background from now on; idempotent."""
        if not held.followed and not held.session.read_up:
            held.followed = True
            self.tasks.start(held.session.read())

    def admit(self, held: HeldSession) -> tuple[int, ...]:
        """
        Announce a command; if it keeps running, make its number available to the model.

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
        End surplus sessions, except those with a waiting call.

        Parallel calls may exceed the limit. So each one calls this again at its end, when sessions
        of earlier calls can be ended.

        Args:
            coming: Number of sessions about to be added.

        Returns:
            The numbers of the ended sessions.
        """
        pruned = []
        while (surplus := self.store.surplus(coming=coming)) is not None:
            pruned.append(surplus.session_id)
            old = self.held[surplus]
            old.announcer.pruned = True
            self.kill(old)
        return tuple(pruned)

    def find_output(self, key: str | int) -> Window | None:
        """Return the tail of a command's output, by call id or session number."""
        for session in self.held:
            if key == session.session_id or key in session.call_ids:
                return session.output.window()
        return self._archive.find(key)

    # -- end

    def kill(self, held: HeldSession) -> None:
        """Mark a session as killed and kill its process; a waiting call reports that."""
        session = held.session
        # The call that holds the lock reports the end and then releases the session.
        if session.lock.locked():
            held.forgotten = True
            if session.running:
                self._end_process(held)
        else:
            self.release(held)
            held.announcer.end()

    def fail(self, held: HeldSession, reason: str) -> None:
        """Kill a command and report the reason to the call in progress, or else the next one."""
        session = held.session
        if session.running:
            session.mark_failed(reason)
            self._end_process(held)
        if not session.lock.locked():
            held.announcer.end()

    async def end_leftovers(self, held: HeldSession) -> bool:
        """Kill processes that an exited command left in its group; return True if there were."""
        left = False
        process = held.session.process
        if self._background != "keep":
            # Local calls return immediately; a timeout would cost more than the call.
            limit = asyncio.timeout(END_LIMIT) if process.remote else nullcontext()
            # After a failure it is unknown whether any processes were left.
            with suppress(HoldfastError, TimeoutError):
                async with limit:
                    left = await process.terminate(left=True)
        held.ended = True
        return left

    def release(self, held: HeldSession, *, keep_id: bool = False) -> None:
        """
        Release a session: its number, its reader and the resources of its hooks.

        Args:
            held: The session; does nothing if it was already released.
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
        # Before the reader stops: after that the session counts as ended and could not be marked
        # as killed.
        self._end_process(held)
        session.stop_reading()
        # So that its output can be read by id after the release.
        output = session.output.window()
        self._archive.add(output, call_ids=session.call_ids, session_id=session.session_id)
        del self.held[session]
        # The function refers to the session, which a kept attempt would keep alive.
        held.attempt.fail = _ignore
        end_attempt(self._hooks, held.attempt)

    def release_all(self) -> None:
        """Kill all commands and release their sessions; waiting calls end."""
        self._memory.close()
        for held in list(self.held.values()):
            self.kill(held)
            self.release(held)
            held.announcer.end()

    def _end_process(self, held: HeldSession) -> None:
        """Kill a process, or what an exited one left, in the background; idempotent."""
        if held.ended:
            return
        held.ended = True
        session = held.session
        session.mark_killed()
        exited = session.verdict is not None and not session.killed
        if not (exited and self._background == "keep"):
            self.tasks.start(_terminate(session))


def _ignore(reason: str) -> None:
    """Do nothing: the command of the attempt has ended."""


async def _terminate(session: CommandSession) -> None:
    # The session is lost, or the process is gone.
    with suppress(HoldfastError):
        await session.process.terminate(tree=True, left=True)
        # Closing the tools only waits for the exit. The output may never end: on another server
        # it may be held by a child that cannot be killed.
        await session.process.exited()
