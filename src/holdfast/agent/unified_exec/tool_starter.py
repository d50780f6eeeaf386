"""
Start of commands: asks the hooks, starts the process, and waits for the first moments.

Closing the tools ends every running start, whatever it waits for.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.agent.unified_exec.hooks import (
    Attempt,
    DeniedAttempt,
    Hooks,
    StartRequest,
    checked_answer,
    end_attempt,
)
from holdfast.agent.unified_exec.output.call_output import CallOutput
from holdfast.agent.unified_exec.output.search_thread import SearchThread
from holdfast.agent.unified_exec.planner import Planner, impossible_start, spawn_failure
from holdfast.agent.unified_exec.sessions.owner import HeldSession, SessionOwner
from holdfast.agent.unified_exec.sessions.session_events import Listeners, announce_failed_start
from holdfast.agent.unified_exec.text.answer import denial_message
from holdfast.agent.unified_exec.tool_errors import (
    CallInterrupted,
    CallRefused,
    CreateProcess,
    rejected_text,
)
from holdfast.agent.unified_exec.waiting.clock import GRACE, PausableClock, exec_wait
from holdfast.base.errors import HoldfastError
from holdfast.environments.environment import Environment

__all__ = ["CLOSED", "Starter"]

CLOSED = "the tools are closed"
"""The text of a call that comes too late, or whose command was not started yet."""


class Starter:
    """Starts the commands of one set of tools."""

    def __init__(
        self,
        *,
        planner: Planner,
        hooks: Hooks,
        owner: SessionOwner,
        listeners: Listeners,
        clock: PausableClock,
        searching: SearchThread,
    ) -> None:
        self._planner = planner
        self._hooks = hooks
        self._owner = owner
        self._listeners = listeners
        self._clock = clock
        self._searching = searching
        # Timeouts of running starts; closing the tools lets them expire.
        self._under_way: set[asyncio.Timeout] = set()
        self._none_under_way = asyncio.Event()
        self._none_under_way.set()
        self.closed = False
        """True once nothing may be started any more."""

    def close(self) -> None:
        """Refuse starts from now on, and end running ones."""
        self.closed = True
        now = asyncio.get_running_loop().time()
        for limit in self._under_way:
            if not limit.expired():
                limit.reschedule(now)

    async def wait_closed(self) -> None:
        """Wait until no start is running."""
        await self._none_under_way.wait()

    @asynccontextmanager
    async def ended_by_close(self) -> AsyncIterator[None]:
        """
        End the block when the tools are closed, whatever it waits for.

        Raises:
            CallRefused: They were closed during the block.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._under_way.add(limit)
                self._none_under_way.clear()
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise CallRefused(CLOSED) from None
        finally:
            self._under_way.discard(limit)
            if not self._under_way:
                self._none_under_way.set()

    async def admit(self, environment: Environment, request: StartRequest) -> StartRequest:
        """
        Let the hooks decide about a command, and return what to start.

        Listeners are told of a declined one.

        Raises:
            UnifiedExecError: It may not be started, or cannot be.
        """
        # Before the hooks, so that nobody is asked about a command that can never run.
        impossible = impossible_start(environment, request)
        if impossible is not None:
            failure = spawn_failure(impossible)
            announce_failed_start(self._listeners, request, failure, 0.0)
            raise CreateProcess(rejected_text(failure)) from impossible
        try:
            allowed = await self._hooks.before_start(request)
        except CreateProcess as error:
            if error.declined:
                announce_failed_start(self._listeners, request, error.message, 0.0, declined=True)
            raise
        return checked_answer(allowed, StartRequest, "before_start")

    async def start(
        self, environment: Environment, request: StartRequest, *, first: HeldSession | None = None
    ) -> HeldSession:
        """
        Start a command and wait out the grace, a second time if a hook wants that.

        Whoever calls this calls `SessionOwner.follow` soon: nobody reads the command.

        Args:
            environment: Where it runs.
            request: What to start.
            first: The attempt that was denied late and told to listeners, if this is another
                attempt of the same call.

        Raises:
            UnifiedExecError: It cannot be started.
            CallRefused: The tools were closed meanwhile.
            InvalidParams: The call asks for output in a way that cannot be.
        """
        while True:
            output: CallOutput | None = None
            if request.arguments.selective:
                # Checks what the call asks for, before anything is started.
                output = await CallOutput.open(
                    request.arguments,
                    environment,
                    request.sandbox,
                    tty=request.tty,
                    thread=self._searching,
                )
            held = await self._start_once(environment, request, first)
            session = held.session
            if output is not None:
                held.output = output
                output.attach(session)
            try:
                # Most commands end here. A task to read them would cost more than they do.
                await self._clock.run(session.read(until=session.exited), GRACE)
                verdict = session.verdict
                if verdict is None or verdict.denial is None:
                    break
                self._owner.follow(held)
                # Limited: the connection may be lost.
                await self._clock.wait(session.settled, exec_wait(request.arguments.yield_time_ms))
                denied = DeniedAttempt(
                    request=request,
                    verdict=verdict,
                    message=denial_message(session.output.unreported, verdict.exit_code),
                )
                again = await self._hooks.after_denial(denied)
            # Also after a cancellation: no caller has the session yet.
            except BaseException:
                self._owner.kill(held)
                self._owner.release(held)
                raise
            if again is None:
                held.denied_early = True
                break
            self._owner.release(held, keep_id=True)
            request = again
        # `aclose` may have finished its sweep before this session existed.
        if self.closed:
            self._owner.release(held)
            raise CallRefused(CLOSED)
        return held

    async def after_late_denial(self, held: HeldSession) -> StartRequest | None:
        """
        Return what to start instead of a command whose sandbox denied it something late.

        Raises:
            CallInterrupted: Somebody was asked and cancelled the call.
            CallRefused: The tools were closed meanwhile.
        """
        session = held.session
        verdict = session.verdict
        if not self._hooks.late_denials or held.denied_early or held.forgotten:
            return None
        if verdict is None or verdict.denial is None or session.killed:
            return None
        # Set, since there is a verdict.
        assert session.ended_at is not None
        denied = DeniedAttempt(
            request=held.attempt.request,
            verdict=verdict,
            message=denial_message(session.output.unreported, verdict.exit_code),
            seconds=session.ended_at - session.started,
        )
        try:
            async with self.ended_by_close():
                again = await self._hooks.after_denial(denied)
        except CallInterrupted:
            # The model never learns its number.
            held.forgotten = True
            raise
        # `clean` may have killed all sessions while the question was open.
        return None if held.gone else again

    async def _start_once(
        self, environment: Environment, request: StartRequest, first: HeldSession | None
    ) -> HeldSession:
        attempt = await self._hooks.attempt_begins(request)
        attempt = checked_answer(attempt, Attempt, "attempt_begins")
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            params = await self._planner.params(environment, attempt)
            process = await environment.backend.start(params)
        except HoldfastError as error:
            end_attempt(self._hooks, attempt)
            failure = spawn_failure(error)
            # A second attempt (`first` is set) was announced before, and its end still will be.
            if first is None:
                announce_failed_start(self._listeners, request, failure, loop.time() - started)
            raise CreateProcess(rejected_text(failure)) from error
        except BaseException:
            end_attempt(self._hooks, attempt)
            raise
        held = self._owner.open(process, environment, attempt, started)
        if first is not None:
            held.announcer.continue_from(first.announcer)
        return held
