"""
The commands of one model: start, wait, input and end.

A call holds the lock of its session. A session is stored before the first wait, so that an
interrupted call leaves it in the store and the next call gets the output collected so far.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from holdfast.agent.unified_exec.added_permissions import added_permissions
from holdfast.agent.unified_exec.arguments.tool_arguments import (
    ExecArguments,
    PermissionArguments,
    WriteArguments,
)
from holdfast.agent.unified_exec.hooks import Hooks, InputRequest, StartRequest
from holdfast.agent.unified_exec.options import Options
from holdfast.agent.unified_exec.output.call_output import CallOutput
from holdfast.agent.unified_exec.output.pages import Page, PageRequest, read_window
from holdfast.agent.unified_exec.output.search_thread import SearchThread
from holdfast.agent.unified_exec.reporter import Reporter
from holdfast.agent.unified_exec.result import ExecResult, PermissionGrant
from holdfast.agent.unified_exec.sessions.command_session import (
    CommandSession,
    SessionInfo,
    send_input,
)
from holdfast.agent.unified_exec.sessions.owner import END_LIMIT, HeldSession, SessionOwner
from holdfast.agent.unified_exec.sessions.session_events import Listener, Listeners
from holdfast.agent.unified_exec.tool_errors import (
    CallRefused,
    UnknownProcessId,
)
from holdfast.agent.unified_exec.tool_starter import (
    CLOSED,
    Planner,
    Starter,
    refuse_lone_surrogates,
)
from holdfast.agent.unified_exec.waiting.clock import PausableClock, exec_wait, write_wait
from holdfast.base.dialect import texts
from holdfast.base.errors import HoldfastError
from holdfast.base.late_import import late_module
from holdfast.environments.environment import Environment
from holdfast.environments.environment_manager import EnvironmentManager

if TYPE_CHECKING:
    from holdfast.agent.unified_exec import approval_hooks, takeover
    from holdfast.agent.unified_exec.approval_hooks import ApprovalHooks
else:
    # Most conversations have no approvals and no patches in commands.
    approval_hooks = late_module("holdfast.agent.unified_exec.approval_hooks")
    takeover = late_module("holdfast.agent.unified_exec.takeover")

__all__ = ["SessionManager", "new_call_id"]


def new_call_id() -> str:
    """Return an id for a call without one."""
    return f"call_{secrets.token_hex(12)}"


class SessionManager:
    """
    The commands of one model, in one or several environments. An async context manager.

    It owns its processes, which end when it is closed. It belongs to one event loop.
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
            environment: Runs the commands, and stays open when this is closed. From a manager, the
                default environment is used unless a call names another.
            options: Options of the tools.
            hooks: Decide about commands; by default everything is allowed.
        """
        if not isinstance(environment, Environment | EnvironmentManager):
            raise TypeError(
                f"{type(self).__name__} needs an Environment or an EnvironmentManager,"
                f" not {environment!r}"
                f" of {type(environment).__module__}"
            )
        if not isinstance(options, Options | None):
            raise TypeError(f"options is {options!r}, it must be Options or None")
        if not isinstance(hooks, Hooks | None):
            raise TypeError(f"hooks is {hooks!r}, it must be Hooks or None")
        self.options = Options() if options is None else options
        self._environments = environment
        self._planner = Planner(self.options)
        self._clock = PausableClock(self.options.longest_call)
        self._hooks = Hooks() if hooks is None else hooks
        self._approvals = _approval_hooks(self.options, self._clock, self._hooks)
        # The hooks of approvals wrap and call the given hooks.
        if self._approvals is not None:
            self._hooks = self._approvals
        self._listeners = Listeners()
        self._searching = SearchThread()
        self._owner = SessionOwner(
            hooks=self._hooks,
            listeners=self._listeners,
            background=self.options.background,
            counted_ids=self.options.counted_ids,
        )
        self._starter = Starter(
            planner=self._planner,
            hooks=self._hooks,
            owner=self._owner,
            listeners=self._listeners,
            clock=self._clock,
            searching=self._searching,
        )
        self._reporter = Reporter(self._owner, self.options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # -- environments

    @property
    def environment_ids(self) -> list[str]:
        """The environments that a call may name, default first; empty if there is no default."""
        if isinstance(self._environments, EnvironmentManager):
            return self._environments.ids_for_new_thread()
        return [self._environments.id]

    def environment(self, environment_id: str | None) -> Environment:
        """
        Return an environment by its id, or the default one.

        Raises:
            CallRefused: The environment does not exist, or there is no default.
        """
        ids = self.environment_ids
        if not ids:
            raise CallRefused(texts.NO_ENVIRONMENT)
        if environment_id is not None and environment_id not in ids:
            raise CallRefused(texts.unknown_environment(environment_id))
        if isinstance(self._environments, EnvironmentManager):
            return self._environments.require(environment_id or ids[0])
        return self._environments

    # -- sessions

    def sessions(self) -> list[SessionInfo]:
        """Return the running commands that have a number, in the order of their starts."""
        return [session.info() for session in self._owner.store if session.running]

    def terminate(self, session_id: int) -> bool:
        """
        Kill a command and release its session; a waiting call reports the end.

        The server is notified in the background, so a lost connection does not delay this.

        Returns:
            False if the session does not exist.
        """
        session = self._owner.store.get(session_id)
        if session is None:
            return False
        self._owner.kill(self._owner.held[session])
        return True

    def find_session(self, call_id: str) -> CommandSession | None:
        """Return the command that a call started, even if it has no number yet."""
        return next((held for held in self._owner.held if held.call_id == call_id), None)

    async def stop(self, session: CommandSession, *, grace: float) -> None:
        """
        Interrupt a command; if it does not end in time, kill it and all processes it started.

        Args:
            session: The command.
            grace: Seconds between the interrupt and the kill.
        """
        # The interrupt gives the command a chance to clean up; the kill follows in any case.
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(grace):
                await session.process.signal("interrupt")
                await session.exited.wait()
        held = self._owner.held.get(session)
        if held is not None:
            self._owner.kill(held)

    def clean(self) -> None:
        """Kill all commands; waiting calls fail with an unknown session."""
        for session in self._owner.store:
            held = self._owner.held[session]
            held.cleaned = True
            self._owner.kill(held)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """
        Stop the clocks of all calls during the block, while the user is asked.

        Deadlines are extended by the length of the block; the end of a command during the block is
        reported after it.
        """
        with self._clock.paused():
            yield

    def listen(self, *, deltas: bool = True) -> Listener:
        """
        Return a listener for the events of all commands from now on; close it when done.

        Args:
            deltas: Include live output.
        """
        return self._listeners.add(deltas=deltas)

    async def aclose(self) -> None:
        """Kill all commands and wait at most 5 s for their end; idempotent."""
        # First the starts, which could otherwise add sessions after `release_all`.
        self._starter.close()
        self._owner.release_all()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_LIMIT):
                    await self._starter.wait_closed()
                    await self._owner.tasks.join()
        finally:
            # Even after the time limit: no task may outlive the tools.
            await self._owner.tasks.aclose()
            self._searching.close()
            self._listeners.close()

    # -- exec_command

    async def exec_command(
        self, arguments: ExecArguments, *, call_id: str | None = None
    ) -> ExecResult:
        """
        Start a command and wait for its end, at most as long as the call requests.

        Args:
            arguments: The arguments from the model.
            call_id: The id of the call; generated by default.

        Raises:
            UnifiedExecError: The call failed; the text is for the model.
        """
        environment = self._open_environment(arguments.environment_id)
        call_id = call_id or new_call_id()
        # Before the start, because the hooks and the process id use the number.
        session_id = self._owner.store.reserve()
        try:
            begun = await self._begin(environment, arguments, call_id, session_id)
        # A failed or cancelled start must free its number.
        except BaseException:
            self._owner.store.free(session_id)
            raise
        if isinstance(begun, ExecResult):
            self._owner.store.free(session_id)
            return begun
        held = begun
        # Numbers of sessions that were ended to make room for this one.
        pruned: list[int] = []
        while True:
            outcome = await self._follow(held, arguments, call_id, pruned)
            if isinstance(outcome, ExecResult):
                return outcome
            held = await self._start_again(environment, outcome, held)

    async def _follow(
        self, held: HeldSession, arguments: ExecArguments, call_id: str, pruned: list[int]
    ) -> ExecResult | StartRequest:
        """Wait for a started command; return the result, or the start to retry with."""
        # The output only belongs to this call, so the session must not keep it.
        session, output, held.output = held.session, held.output, None
        again: StartRequest | None = None
        # Uncontended: the session is new.
        async with session.lock:
            try:
                # From here on in the store, so that an interrupted call leaves a session to poll.
                pruned += self._owner.admit(held)
                clock = asyncio.get_running_loop()
                since = clock.time()
                await self._first_wait(held, exec_wait(arguments.yield_time_ms), output)
                wall_time = clock.time() - since
                # The report of a denied command has no wall time.
                if session.verdict is not None and session.verdict.denial is not None:
                    wall_time = 0.0
                again = await self._starter.after_late_denial(held)
                if again is None:
                    return await self._reporter.report(
                        held, call_id, wall_time, arguments, output=output, pruned=tuple(pruned)
                    )
                # The number stays reserved: to the model, the second attempt is the same session.
                self._owner.release(held, keep_id=True)
                return again
            finally:
                if again is None:
                    # It was killed, or the call was cancelled before it was stored.
                    if held.forgotten or not self._owner.store.holds(session):
                        self._owner.release(held)
                    self._owner.prune(coming=0)
                    held.announcer.end()

    async def _start_again(
        self, environment: Environment, request: StartRequest, first: HeldSession
    ) -> HeldSession:
        """Start a command again, with another request, after its sandbox denied it something."""
        try:
            async with self._starter.ended_by_close():
                return await self._starter.start(environment, request, first=first)
        except BaseException:
            self._owner.store.free(first.session.session_id)
            first.announcer.end()
            raise

    async def _begin(
        self, environment: Environment, arguments: ExecArguments, call_id: str, session_id: int
    ) -> HeldSession | ExecResult:
        """Start a command and return its session; for a patch, return the result."""
        async with self._starter.ended_by_close():
            request = await self._planner.plan(
                environment, arguments, call_id=call_id, session_id=session_id
            )
            # A cheap test that spares most commands the loading of the patch modules.
            if self.options.patches and "patch" in request.script.lower():
                patched = await self._apply(environment, request)
                if patched is not None:
                    return patched
            request = await self._starter.admit(environment, request)
            return await self._starter.start(environment, request)

    async def apply_patch(
        self,
        text: str,
        *,
        workdir: str | None = None,
        environment_id: str | None = None,
        call_id: str | None = None,
    ) -> ExecResult:
        """
        Apply a patch with the sandbox, hooks and approvals of commands.

        Args:
            text: The patch, from `*** Begin Patch` to `*** End Patch`.
            workdir: See `exec_command`.
            environment_id: The environment of the files.
            call_id: The id of the call; generated by default.

        Raises:
            CallRefused: The patch was not applied; the text is for the model.
            CallInterrupted: The approver cancelled the call.
        """
        environment = self._open_environment(environment_id)
        arguments = ExecArguments(cmd="apply_patch", workdir=workdir, login=False)
        async with self._starter.ended_by_close():
            request = await self._planner.plan(
                environment, arguments, call_id=call_id or new_call_id(), session_id=0
            )
            request = replace(request, argv=("apply_patch", text))
            result = await self._apply(environment, request)
        # The argv is a patch, so there is a result.
        assert result is not None
        return result

    async def _apply(self, environment: Environment, request: StartRequest) -> ExecResult | None:
        """
        Apply the patch in a command; return None if the command is not a patch.

        Raises:
            CallRefused: The patch was not applied; the text is for the model.
            CallInterrupted: The approver cancelled the call.
        """
        policy = self.options.model_policy
        return await takeover.take_patch(environment, request, self._hooks, policy)

    # -- write_stdin

    def session(self, session_id: int) -> CommandSession:
        """
        Return a session by its number.

        Raises:
            UnknownProcessId: It does not exist, or its end was already reported.
        """
        session = self._owner.store.get(session_id)
        if session is None:
            raise UnknownProcessId(session_id)
        return session

    async def write_stdin(
        self, arguments: WriteArguments, *, call_id: str | None = None
    ) -> ExecResult:
        """
        Send input to a command, or poll it, and wait for its end as long as the call requests.

        Args:
            arguments: The arguments from the model.
            call_id: The id of the call; generated by default.

        Raises:
            UnifiedExecError: The call failed; the text is for the model.
        """
        session = self.session(arguments.session_id)
        refuse_lone_surrogates(chars=arguments.chars)
        held = self._owner.held[session]
        call_id = call_id or new_call_id()
        async with session.lock:
            # It may have ended and been released while this call waited for the lock.
            if not self._owner.store.holds(session):
                raise UnknownProcessId(arguments.session_id)
            self._owner.store.touch(session)
            session.call_ids.append(call_id)
            wait = write_wait(
                arguments.yield_time_ms,
                poll=not arguments.chars,
                longest_poll=self.options.longest_poll,
            )
            loop = asyncio.get_running_loop()
            try:
                output: CallOutput | None = None
                if arguments.selective:
                    output = await CallOutput.open(
                        arguments,
                        held.environment,
                        held.attempt.request.sandbox,
                        # Input without a terminal is refused later, in the text that models know.
                        tty=session.tty or bool(arguments.chars),
                        thread=self._searching,
                    )
                if arguments.chars:
                    await self._ask_about_input(held, call_id, arguments.chars)
                    await send_input(session, arguments.chars, wait, self._owner.tasks)
                since = loop.time()
                await self._wait(session, wait, output)
                wall_time = loop.time() - since
                result = await self._reporter.report(
                    held, call_id, wall_time, arguments, output=output
                )
                if arguments.chars or result.session_id is not None:
                    held.announcer.input_sent(arguments.chars)
                return result
            finally:
                if held.forgotten:
                    self._owner.release(held)
                self._owner.prune(coming=0)
                held.announcer.end()

    async def _ask_about_input(self, held: HeldSession, call_id: str, chars: str) -> None:
        """
        Have the hooks decide about input.

        Raises:
            CallRefused: The input is refused, or the tools were closed meanwhile.
            CallInterrupted: The approver cancelled the call.
            UnknownProcessId: The command was killed meanwhile.
        """
        request = InputRequest(call_id=call_id, chars=chars, started=held.attempt.request)
        async with self._starter.ended_by_close():
            await self._hooks.before_input(request)
        # The command may have been killed while the question was open.
        if held.gone:
            raise UnknownProcessId(held.session.session_id)

    # -- permissions

    def end_turn(self) -> None:
        """End a turn of the model, with the permissions granted for it."""
        if self._approvals is not None:
            self._approvals.flow.end_turn()

    async def request_permissions(
        self, arguments: PermissionArguments, *, call_id: str | None = None
    ) -> PermissionGrant:
        """
        Ask for permissions for later commands.

        Args:
            arguments: The arguments from the model.
            call_id: The id of the call; generated by default.

        Raises:
            CallRefused: The request is not allowed; the text is for the model.
            CallInterrupted: The approver cancelled the call.
        """
        if self._approvals is None:
            raise CallRefused("permissions cannot be requested: there are no approvals")
        environment = self._open_environment(arguments.environment_id)
        call_id = call_id or new_call_id()
        async with self._starter.ended_by_close():
            cwd = await environment.uri()
            sandbox = await environment.sandbox_context(self.options.sandbox)
            wanted = await added_permissions(arguments.permissions, environment, cwd, sandbox)
            granted, scope = await self._approvals.request_permissions(
                wanted,
                call_id=call_id,
                environment_id=environment.id,
                cwd=cwd.shown,
                sandbox=sandbox,
                reason=arguments.reason,
            )
        return PermissionGrant(call_id=call_id, permissions=granted, scope=scope)

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
        Return a page of a command's output, also after its end.

        The last MiB of each command is kept, for the last 32 ended commands.

        Args:
            key: The id of one of its calls, or the number of its session.
            from_seq: See `PageRequest`.
            lines: The first and the last line.
            pattern: Return only matching lines.

        Raises:
            CallRefused: No output is kept for that id.
            InvalidParams: An argument is invalid.
        """
        output = self._owner.find_output(key)
        if output is None:
            raise CallRefused(f"no output is kept for {key!r}")
        request = PageRequest(from_seq=from_seq, lines=lines, pattern=pattern)
        if pattern is None:
            return read_window(output, request)
        return await self._searching.run(lambda: read_window(output, request))

    # -- waits

    async def _first_wait(self, held: HeldSession, limit: float, output: CallOutput | None) -> None:
        """Wait for a new command as `_wait` does, and follow it from then on."""
        session = held.session
        if output is None and not (session.running or held.followed):
            if not session.settled.is_set():
                # Its output ends now, or reading it is given up soon.
                await self._clock.run(session.read(until=session.settled), limit)
            self._owner.follow(held)
        else:
            self._owner.follow(held)
            await self._wait(session, limit, output)

    async def _wait(self, session: CommandSession, limit: float, output: CallOutput | None) -> None:
        """
        Wait until a command and its output have ended, or a requested condition is met.

        Output alone does not end the wait.
        """
        if output is None:
            await self._clock.wait(session.settled, limit)
            return
        with output.following(session):
            await self._clock.wait(output.wake, limit)
        await output.finish()

    def _open_environment(self, environment_id: str | None) -> Environment:
        if self._starter.closed:
            raise CallRefused(CLOSED)
        return self.environment(environment_id)


def _approval_hooks(options: Options, clock: PausableClock, inner: Hooks) -> "ApprovalHooks | None":
    """Return the hooks for approvals, or None; the module is only imported if needed."""
    if options.approvals is None:
        return None
    paused = clock.paused if options.pause_for_questions else nullcontext
    return approval_hooks.ApprovalHooks(options.approvals, paused=paused, inner=inner)
