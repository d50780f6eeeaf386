"""
Runs the commands of one model: starts, waits, input, and the end of all of them.

A call holds the lock of its session. A session is in the store before the first wait, so an
interrupted call leaves it there, and what the call had collected goes to the next one.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Self

from holdfast.environments.environment import Environment
from holdfast.environments.manager import EnvironmentManager
from holdfast.errors import ConnectionLost, HoldfastError
from holdfast.events import WaitingFor
from holdfast.protocol.process import WriteStatus
from holdfast.tasks import OwnedTasks
from holdfast.unified_exec.announce import Announcer, announce_failed_start
from holdfast.unified_exec.arguments import ExecArguments, WriteArguments
from holdfast.unified_exec.call_output import CallOutput
from holdfast.unified_exec.clock import PausableClock
from holdfast.unified_exec.collect import GRACE, INPUT_PAUSE, exec_wait, wait_for_end, write_wait
from holdfast.unified_exec.errors import (
    NO_ENVIRONMENT,
    CallRefused,
    CreateProcess,
    ProcessFailed,
    SessionStdinClosed,
    UnknownProcessId,
    WriteToStdin,
    rejected_text,
    unknown_environment_text,
)
from holdfast.unified_exec.events import Listener, Listeners
from holdfast.unified_exec.hooks import Attempt, DeniedAttempt, Hooks, StartRequest
from holdfast.unified_exec.options import Options
from holdfast.unified_exec.output import Archive, OutputLog
from holdfast.unified_exec.pages import Page
from holdfast.unified_exec.result import ExecResult
from holdfast.unified_exec.session import Session
from holdfast.unified_exec.start import (
    Planner,
    native_path,
    refuse_half_characters,
    spawn_failure,
)
from holdfast.unified_exec.store import CAPACITY, CROWDED, SessionStore
from holdfast.unified_exec.text import denial_message

__all__ = ["SessionInfo", "SessionManager", "new_call_id"]

INTERRUPT = "\x03"
"""The one input that also a command on pipes takes: it becomes a SIGINT."""

CLOSED = "the tools are closed"
"""What a call reads that comes too late, or whose command was not started yet."""

_INPUT_NOTES = {
    WaitingFor.LINE: "The program waits for a line of input.",
    WaitingFor.PASSWORD: "The program waits for a password, or another line it does not show.",
    WaitingFor.KEY: "The program waits for a key.",
}

SLOW_LINE = 5.0
"""Seconds that a server has to take input, however short the call: the line may be slow."""

END_LIMIT = 5.0
"""Seconds that closing the tools waits for servers to kill what still runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One command that runs."""

    session_id: int
    call_id: str
    """The id of the `exec_command` that started it."""
    command: str
    """The text the model gave."""
    cwd: str
    tty: bool
    environment_id: str
    pid: int | None
    """The kernel's number for it where it runs, if that is known."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A session, and what is owed for it."""

    session: Session
    environment: Environment
    attempt: Attempt
    announcer: Announcer
    ended: bool = False
    """True once its process was told to end, and what it left behind was, unless kept."""
    forgotten: bool = False
    """True if it was killed while a call waits on it: it goes with that call."""
    cleaned: bool = False
    """True if that call is to find that there is no such session any more."""
    denied_early: bool = False
    """True if its sandbox denied it something in the grace: nothing is told of it."""
    released: bool = False


async def _interrupt(session: Session) -> None:
    with suppress(HoldfastError):  # it is lost, or gone
        await session.process.signal("interrupt")


def new_call_id() -> str:
    """Return an id for a call that came without one."""
    return f"call_{secrets.token_hex(12)}"


class SessionManager:
    """
    The commands of one model, on one environment or several. An async context manager.

    Whoever makes it owns its processes: they end with it. It belongs to one event loop.
    """

    def __init__(
        self,
        environment: Environment | EnvironmentManager,
        *,
        options: Options | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """
        Args:
            environment: Where commands run. It stays open when this is closed. Of a
                manager, the default environment is used unless a call names another one.
            options: Choices of the owner.
            hooks: Decide over commands; everything is allowed without.
        """
        if not isinstance(environment, Environment | EnvironmentManager):
            raise TypeError(
                f"{type(self).__name__} needs an Environment or an EnvironmentManager,"
                f" not {environment!r}"
            )
        self.options = Options() if options is None else options
        self._environments = environment
        self._hooks = Hooks() if hooks is None else hooks
        self._planner = Planner(self.options)
        self._store = SessionStore(counted=self.options.counted_ids)
        self._entries: dict[Session, _Entry] = {}
        self._clock = PausableClock()
        self._archive = Archive()
        self._listeners = Listeners()
        self._tasks = OwnedTasks()
        # Calls whose process is not started yet. Closing the tools ends them.
        self._starting: set[asyncio.Timeout] = set()
        self._none_starting = asyncio.Event()
        self._none_starting.set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # -- environments

    @property
    def environment_ids(self) -> list[str]:
        """The environments a call may name, the default first; empty if there is no default."""
        if isinstance(self._environments, EnvironmentManager):
            return self._environments.ids_for_new_thread()
        return [self._environments.id]

    def environment(self, environment_id: str | None) -> Environment:
        """
        Return an environment by its id, or the default one.

        Raises:
            CallRefused: There is no such environment, or no default one.
        """
        ids = self.environment_ids
        if not ids:
            raise CallRefused(NO_ENVIRONMENT)
        if environment_id is not None and environment_id not in ids:
            raise CallRefused(unknown_environment_text(environment_id))
        if isinstance(self._environments, EnvironmentManager):
            return self._environments.require(environment_id or ids[0])
        return self._environments

    # -- sessions

    def sessions(self) -> list[SessionInfo]:
        """Return the commands that run and have a number, by that number in order."""
        return [
            SessionInfo(
                session_id=session.session_id,
                call_id=session.call_id,
                command=session.script,
                cwd=session.cwd,
                tty=session.tty,
                environment_id=session.environment_id,
                pid=session.process.pid,
            )
            for session in self._store
            if session.running
        ]

    def terminate(self, session_id: int) -> bool:
        """
        Kill a command and forget its session; a call that waits on it reports its end.

        The server is told in the background: a line that is down does not hold this up.

        Returns:
            False if there is no such session.
        """
        session = self._store.get(session_id)
        if session is None:
            return False
        self._kill(self._entries[session])
        return True

    def clean(self) -> None:
        """Kill all commands, as `terminate` does; a call that waits on one fails."""
        for session in self._store:
            entry = self._entries[session]
            entry.cleaned = True
            self._kill(entry)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """
        Stop the clocks of all calls in the block, while a person is asked something.

        Deadlines move by the length of the block, and an end in it is reported after it.
        """
        with self._clock.paused():
            yield

    def listen(self, *, deltas: bool = True) -> Listener:
        """
        Return the events of all commands from now on; close it when done.

        Args:
            deltas: Also live output.
        """
        return self._listeners.add(deltas=deltas)

    async def aclose(self) -> None:
        """Kill all commands and wait for their end, at most 5 s; harmless a second time."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for starting in self._starting:
            if not starting.expired():
                starting.reschedule(now)
        for entry in list(self._entries.values()):
            self._kill(entry)
            self._release(entry)
            entry.announcer.end()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_LIMIT):
                    await self._none_starting.wait()
                    await self._tasks.join()
        finally:
            await self._tasks.aclose()
            self._listeners.close()

    # -- exec_command

    async def exec_command(
        self, arguments: ExecArguments, *, call_id: str | None = None
    ) -> ExecResult:
        """
        Start a command and wait for its end, at most as long as the call asks for.

        Args:
            arguments: What the model asked for.
            call_id: The id of the call; made up unless given.

        Raises:
            UnifiedExecError: It could not be done; the text is for the model.
        """
        environment = self._open_environment(arguments.environment_id)
        call_id = call_id or new_call_id()
        session_id = self._store.reserve()
        try:
            async with self._ended_by_close():
                request = await self._planner.plan(
                    environment, arguments, call_id=call_id, session_id=session_id
                )
                request = await self._hooks.before_start(request)
                output = await CallOutput.open(arguments, environment, request.sandbox)
                entry = await self._start(environment, request)
                if self._closed:
                    self._release(entry)
                    raise CallRefused(CLOSED)
        except BaseException:
            self._store.free(session_id)
            raise
        session = entry.session
        async with session.lock:  # nobody else can have it: it was just made
            try:
                pruned = self._admit(entry)
                clock = asyncio.get_running_loop()
                since = clock.time()
                await self._wait(session, exec_wait(arguments.yield_time_ms), output)
                wall_time = clock.time() - since
                if session.verdict is not None and session.verdict.denial is not None:
                    wall_time = 0.0
                return await self._report(
                    entry, call_id, wall_time, arguments, output=output, pruned=pruned
                )
            finally:
                # It was killed, or it was never stored and the call is cancelled.
                if entry.forgotten or not self._store.holds(session):
                    self._release(entry)
                entry.announcer.end()

    @asynccontextmanager
    async def _ended_by_close(self) -> AsyncIterator[None]:
        """
        End the block when the tools are closed, whatever it waits for.

        Raises:
            CallRefused: They were closed in the block.
        """
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._starting.add(scope)
                self._none_starting.clear()
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise CallRefused(CLOSED) from None
        finally:
            self._starting.discard(scope)
            if not self._starting:
                self._none_starting.set()

    async def _start(self, environment: Environment, request: StartRequest) -> _Entry:
        """
        Start a command and wait out the grace, a second time if a hook wants that.

        Raises:
            UnifiedExecError: It cannot be started.
        """
        while True:
            entry = await self._start_once(environment, request)
            session = entry.session
            try:
                await self._clock.wait(session.exited, GRACE)
                verdict = session.verdict
                if verdict is None or verdict.denial is None:
                    return entry
                # Not for ever: the line may be lost.
                await self._clock.wait(session.settled, exec_wait(request.arguments.yield_time_ms))
                denied = DeniedAttempt(
                    request=request,
                    verdict=verdict,
                    message=denial_message(session.peek_output(), verdict.exit_code),
                )
                again = await self._hooks.after_denial(denied)
            except BaseException:
                self._kill(entry)
                self._release(entry)
                raise
            if again is None:
                entry.denied_early = True
                return entry
            self._release(entry, keep_id=True)
            request = again

    async def _start_once(self, environment: Environment, request: StartRequest) -> _Entry:
        attempt = await self._hooks.attempt_begins(request)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            params = await self._planner.params(environment, attempt)
            process = await environment.backend.start(params)
        except HoldfastError as error:
            self._hooks.attempt_ended(attempt)
            failure = spawn_failure(error)
            announce_failed_start(self._listeners, request, failure, loop.time() - started)
            raise CreateProcess(rejected_text(failure)) from error
        except BaseException:
            self._hooks.attempt_ended(attempt)
            raise
        session = Session(
            process,
            session_id=request.session_id,
            call_id=request.call_id,
            script=request.script,
            argv=request.argv,
            cwd=native_path(request.cwd),
            tty=request.tty,
            environment_id=request.environment_id,
            started=started,
        )
        entry = _Entry(session, environment, attempt, Announcer(self._listeners, session))
        session.consumers.append(entry.announcer)
        self._entries[session] = entry
        attempt.fail = lambda reason: self._fail(entry, reason)
        self._tasks.start(session.read())
        return entry

    def _admit(self, entry: _Entry) -> tuple[int, ...]:
        """Tell that a command began, and hold its session; others may have to go."""
        session = entry.session
        pruned = []
        if session.running:
            while (surplus := self._store.surplus()) is not None:
                pruned.append(surplus.session_id)
                old = self._entries[surplus]
                old.announcer.pruned = True
                self._kill(old)
            self._store.add(session)
        if not entry.denied_early:
            entry.announcer.begin()
        return tuple(pruned)

    # -- write_stdin

    def session(self, session_id: int) -> Session:
        """
        Return a session by its number.

        Raises:
            UnknownProcessId: There is none, or its end was reported.
        """
        session = self._store.get(session_id)
        if session is None:
            raise UnknownProcessId(session_id)
        return session

    async def write_stdin(
        self, arguments: WriteArguments, *, call_id: str | None = None
    ) -> ExecResult:
        """
        Send input to a command, or poll it, and wait for its end as long as the call asks.

        Args:
            arguments: What the model asked for.
            call_id: The id of the call; made up unless given.

        Raises:
            UnifiedExecError: It could not be done; the text is for the model.
        """
        session = self.session(arguments.session_id)
        refuse_half_characters(chars=arguments.chars)
        entry = self._entries[session]
        call_id = call_id or new_call_id()
        async with session.lock:
            if not self._store.holds(session):
                raise UnknownProcessId(arguments.session_id)
            self._store.touch(session)
            session.call_ids.append(call_id)
            wait = write_wait(
                arguments.yield_time_ms,
                poll=not arguments.chars,
                longest_poll=self.options.longest_poll,
            )
            loop = asyncio.get_running_loop()
            try:
                output = await CallOutput.open(
                    arguments, entry.environment, entry.attempt.request.sandbox
                )
                if arguments.chars:
                    await self._send(entry, arguments.chars, wait)
                since = loop.time()
                await self._wait(session, wait, output)
                wall_time = loop.time() - since
                result = await self._report(entry, call_id, wall_time, arguments, output=output)
                if arguments.chars or result.session_id is not None:
                    entry.announcer.input_sent(arguments.chars)
                return result
            finally:
                if entry.forgotten:
                    self._release(entry)
                entry.announcer.end()

    async def _send(self, entry: _Entry, chars: str, limit: float) -> None:
        """
        Give input to a command, as far as it has an input.

        Raises:
            UnifiedExecError: It could not be given.
        """
        session = entry.session
        if not session.tty:
            if chars != INTERRUPT:
                if session.process.remote and not session.running:
                    return  # a server says that it is gone, and its end is reported
                raise SessionStdinClosed
            if session.running:
                # A line that is down holds a signal; the call has its deadline all the same.
                await asyncio.wait([self._tasks.start(_interrupt(session))], timeout=INPUT_PAUSE)
            return
        if not session.running:
            return  # its end is reported, whatever the input was
        if session.process.remote:
            limit = max(limit, SLOW_LINE)
        try:
            async with asyncio.timeout(limit):
                status = await session.process.write(chars.encode())
        except TimeoutError:
            raise WriteToStdin from None  # it does not read, and its queue is full
        except ConnectionLost as error:
            session.mark_failed(str(error))
            return  # reported as a failure
        except HoldfastError as error:
            if session.exit_code is None and session.process.verdict is None:
                raise WriteToStdin from error
            return  # it has exited meanwhile, though its reader may not have come to that
        if status is WriteStatus.STARTING:
            raise WriteToStdin
        session.look_for_input()
        if status is WriteStatus.ACCEPTED:
            await asyncio.sleep(INPUT_PAUSE)

    # -- read_output

    async def read_output(
        self,
        key: str | int,
        *,
        from_seq: int | None = None,
        lines: tuple[int, int | None] | None = None,
        pattern: str | None = None,
    ) -> Page:
        """
        Return a page of what a command wrote, also after its end.

        The last mebibyte of each command is kept, and the last 32 commands that ended.

        Args:
            key: The id of one of its calls, or the number of its session.
            from_seq: As for `OutputLog.read`, as are the others.
            lines: The first and the last line.
            pattern: Only lines that match.

        Raises:
            CallRefused: Nothing is kept under that id.
            InvalidParams: An argument makes no sense.
        """
        log = self._find_log(key)
        if log is None:
            raise CallRefused(f"no output is kept for {key!r}")
        steps = log.read_in_steps(from_seq=from_seq, lines=lines, pattern=pattern)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                page: Page = end.value
                return page
            await asyncio.sleep(0)

    def _find_log(self, key: str | int) -> OutputLog | None:
        for session in self._entries:
            if key == session.session_id or key in session.call_ids:
                return session.log
        return self._archive.find(key)

    # -- the way out

    async def _report(
        self,
        entry: _Entry,
        call_id: str,
        wall_time: float,
        arguments: ExecArguments | WriteArguments,
        *,
        output: CallOutput | None,
        pruned: Iterable[int] = (),
    ) -> ExecResult:
        """
        Return the result of a call, and let go of a command that has ended.

        Raises:
            ProcessFailed: It cannot be followed any more.
            UnknownProcessId: All sessions were cleaned meanwhile.
        """
        session = entry.session
        if session.failure is not None:
            self._release(entry)
            raise ProcessFailed(session.failure)
        if entry.cleaned:
            raise UnknownProcessId(session.session_id)
        exit_code = session.exit_code
        left = False
        if exit_code is not None and not session.killed:
            left = await self._end_what_was_left(entry)
        result = ExecResult(
            call_id=call_id,
            chunk_id=secrets.token_hex(3),
            wall_time=wall_time,
            captured=session.take_output(),
            exit_code=exit_code,
            session_id=session.session_id if exit_code is None else None,
            command=session.argv,
            verdict=session.verdict,
            killed=session.killed,
            left_behind=left,
            output_lost=entry.announcer.output_lost,
            pruned_sessions=tuple(pruned),
            selected=None if output is None else output.selected(),
            ended_by=None if output is None else output.ended_by,
            waiting_for=session.waiting_for,
            notes=self._notes(session),
            max_output_tokens=arguments.max_output_tokens,
            model_policy=self.options.model_policy,
        )
        entry.announcer.output_lost = False
        if exit_code is not None:
            self._release(entry)
        return result

    def _notes(self, session: Session) -> tuple[str, ...]:
        notes = []
        if session.waiting_for is not None:
            notes.append(_INPUT_NOTES[session.waiting_for])
        count = len(self._store)
        if count >= CROWDED:
            notes.append(
                f"{count} of at most {CAPACITY} sessions are open; the one used longest ago is"
                " ended to make room."
            )
        return tuple(notes)

    async def _wait(self, session: Session, limit: float, output: CallOutput | None) -> None:
        """Wait for the end of a command, or for what the call asks for, within a limit."""
        if output is None:
            await wait_for_end(session, self._clock, limit)
            return
        with output.following(session):
            await wait_for_end(session, self._clock, limit, output.wake)

    async def _end_what_was_left(self, entry: _Entry) -> bool:
        """Kill what an exited command left in its group; return True if there was something."""
        left = False
        process = entry.session.process
        if self.options.background != "keep":
            # Nothing waits on this machine, and most commands run here.
            limit = asyncio.timeout(END_LIMIT) if process.remote else nullcontext()
            with suppress(HoldfastError, TimeoutError):  # nobody knows
                async with limit:
                    left = await process.terminate(left=True)
        entry.ended = True
        return left

    def _kill(self, entry: _Entry) -> None:
        """Mark a session as ended and kill its process; a call that waits on it reports that."""
        session = entry.session
        if session.lock.locked():
            entry.forgotten = True
            if session.running:
                self._end_process(entry)
        else:
            self._release(entry)
            entry.announcer.end()

    def _fail(self, entry: _Entry, reason: str) -> None:
        session = entry.session
        if session.running:
            session.mark_failed(reason)
            self._end_process(entry)
        if not session.lock.locked():
            entry.announcer.end()

    def _end_process(self, entry: _Entry) -> None:
        """Kill a process in the background, or what an exited one left; does so once."""
        if entry.ended:
            return
        entry.ended = True
        session = entry.session
        session.mark_killed()
        exited = session.verdict is not None and not session.killed
        if not (exited and self.options.background == "keep"):
            self._tasks.start(self._terminate(session))

    async def _terminate(self, session: Session) -> None:
        with suppress(HoldfastError):  # it is lost, or gone
            await session.process.terminate(tree=True, left=True)
            await session.process.wait()  # who closes the tools waits for the end

    def _release(self, entry: _Entry, *, keep_id: bool = False) -> None:
        """Let go of a session: its number, its reader and what the hooks made for it."""
        if entry.released:
            return
        entry.released = True
        session = entry.session
        if not keep_id:
            self._store.free(session.session_id)
        self._end_process(entry)
        session.stop_reading()
        self._archive.add(session.log, call_ids=session.call_ids, session_id=session.session_id)
        del self._entries[session]
        self._hooks.attempt_ended(entry.attempt)

    def _open_environment(self, environment_id: str | None) -> Environment:
        if self._closed:
            raise CallRefused(CLOSED)
        return self.environment(environment_id)
