"""
Start of commands: from the arguments of a model to a process that runs.

A planner turns the arguments into the parameters of a process. A starter asks the hooks, starts the
process, and waits for the first moments.

Closing the tools ends every running start, whatever it waits for.
"""

import asyncio
import posixpath
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from msgspec import UNSET

from holdfast.agent.unified_exec.added_permissions import added_permissions
from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments
from holdfast.agent.unified_exec.hooks import (
    Attempt,
    DeniedAttempt,
    Hooks,
    StartRequest,
    checked_answer,
    end_attempt,
)
from holdfast.agent.unified_exec.options import Options
from holdfast.agent.unified_exec.output.call_output import CallOutput
from holdfast.agent.unified_exec.output.search_thread import SearchThread
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
from holdfast.base.dialect import names, texts, versions
from holdfast.base.errors import (
    HoldfastError,
    InvalidParams,
    NotFound,
    RemoteError,
    SpawnFailed,
    Unsupported,
)
from holdfast.environments.environment import Environment
from holdfast.environments.shell import shell_kind
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.fs import GetMetadataParams
from holdfast.wire.protocol.handshake import ShellInfo
from holdfast.wire.protocol.paths import ForeignPathUri, PathUri
from holdfast.wire.protocol.process import (
    EnvPolicy,
    ShellSnapshotParams,
    ShellSnapshotShell,
    StartMetadata,
    StartParams,
    ThreadId,
)
from holdfast.wire.protocol.sandbox import ManagedProfile, SandboxContext

__all__ = [
    "CLOSED",
    "POLICY",
    "Planner",
    "Starter",
    "command_variables",
    "folder_of",
    "refuse_half_characters",
]

_FORCED = names.TOOL_VARIABLES
"""Set over everything else, also on a terminal: plain text, and no program that waits for a key."""

POLICY = EnvPolicy(
    inherit="all",
    ignore_default_excludes=True,
    exclude=list(names.NOT_INHERITED),
    set={},
    include_only=[],
)
"""Commands inherit all variables of their environment, but for those about another command."""


def command_variables(
    given: Mapping[str, str],
    unset: Iterable[str],
    *,
    session_id: str,
    sandbox: SandboxContext | None,
) -> dict[str, str]:
    """
    Return the variables to set for one command, besides those it inherits.

    The ids of the thread and of the call are not here: they go with the start's metadata.

    Args:
        given: Variables the owner of the tools wants set.
        unset: Names the owner does not want set, not even by force.
        session_id: The id of the conversation.
        sandbox: The sandbox of the command.
    """
    variables = {
        **given,
        names.TOOL_SESSION: session_id,
        names.TOOL_VERSION: versions.FOLLOWED,
        names.LINE_ENDINGS: "1",
        **_FORCED,
    }
    if sandbox is not None and not _has_network(sandbox):
        variables[names.NO_NETWORK] = "1"
    for name in unset:
        variables.pop(name, None)
    return variables


def _has_network(sandbox: SandboxContext) -> bool:
    permissions = sandbox.permissions
    return not isinstance(permissions, ManagedProfile) or permissions.network == "enabled"


_POWERSHELL = ("pwsh", "powershell")


def _shell_argv(shell: ShellInfo, script: str, *, login: bool) -> list[str]:
    """Return the argv that runs `script` in `shell`, with the start files of a login or not."""
    kind = shell_kind(shell.name)
    if kind in _POWERSHELL:
        return [shell.path, *([] if login else ["-NoProfile"]), "-Command", script]
    if kind == "cmd":
        return [shell.path, "/c", script]
    return [shell.path, "-lc" if login else "-c", script]


class Planner:
    """Planner of the commands of one conversation."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._thread_id = ThreadId(options.thread_id or str(uuid.uuid4()))

    async def plan(
        self,
        environment: Environment,
        arguments: ExecArguments,
        *,
        call_id: str,
        session_id: int,
    ) -> StartRequest:
        """
        Return the command that `exec_command` asks for.

        Raises:
            CallRefused: An argument cannot be met; the text is for the model.
        """
        options = self._options
        # First, since no later step could report a text that cannot be encoded.
        refuse_half_characters(cmd=arguments.cmd, workdir=arguments.workdir, shell=arguments.shell)
        if arguments.login and not options.allow_login_shell:
            raise CallRefused(texts.LOGIN_DISABLED)
        login = options.allow_login_shell if arguments.login is None else arguments.login
        cwd = await folder_of(environment, arguments.workdir)
        try:
            shell = await environment.shell(arguments.shell)
        except InvalidParams as error:
            raise CallRefused(str(error)) from error
        # Hooks get the environment's own shell, whichever the call asks for.
        own_shell = shell if arguments.shell is None else await environment.shell()
        sandbox = await environment.sandbox_context(options.sandbox)
        added = None
        if options.approvals is not None and arguments.additional_permissions is not None:
            added = await added_permissions(
                arguments.additional_permissions, environment, cwd, sandbox
            )
        return StartRequest(
            call_id=call_id,
            session_id=session_id,
            environment_id=environment.id,
            script=arguments.cmd,
            argv=tuple(_shell_argv(shell, arguments.cmd, login=login)),
            cwd=cwd,
            tty=arguments.tty,
            env=command_variables(
                options.env, options.unset, session_id=self._thread_id, sandbox=sandbox
            ),
            sandbox=sandbox,
            arguments=arguments,
            shell=own_shell.path,
            is_local=not environment.is_remote,
            added=added,
            cwd_missing=arguments.tty
            and bool(arguments.workdir)
            and await _is_missing(environment, cwd, sandbox),
        )

    async def params(self, environment: Environment, attempt: Attempt) -> StartParams:
        """
        Return the parameters of one start.

        Raises:
            Unsupported: The server lacks an extension that an option needs.
        """
        request, options = attempt.request, self._options
        if options.unset and not (await environment.capabilities()).process_unset:
            raise Unsupported(codes.METHOD_NOT_FOUND, "exec-server cannot unset variables")
        snapshot = None
        # A snapshot replaces the start files of a login shell; other commands run none.
        is_shell = request.clearance is None or request.clearance.program is None
        if options.shell_snapshot and is_shell and request.argv[1:2] == ("-lc",):
            shell = await environment.shell()
            snapshot = ShellSnapshotParams(
                scope_id=self._thread_id,
                shell=ShellSnapshotShell(name=shell.name, path=shell.path),
            )
        return StartParams(
            # Unique beyond the number: a second attempt of the same call uses the same number.
            process_id=f"{request.session_id}-{uuid.uuid4()}",
            argv=list(request.argv),
            arg0=request.arg0,
            cwd=request.cwd,
            env={**request.env, **attempt.environment},
            env_policy=POLICY,
            metadata=StartMetadata(thread_id=self._thread_id, tool_call_id=request.call_id),
            tty=request.tty,
            pipe_stdin=False,
            sandbox=request.sandbox,
            limits=None if options.limits is None else options.limits.on_wire(),
            shell_snapshot=snapshot,
            unset=list(options.unset) or UNSET,
        )


def refuse_half_characters(**texts: str | None) -> None:
    """
    Refuse texts that cannot be encoded; JSON cannot contain them, a program's arguments can.

    Raises:
        CallRefused: One of them has half a surrogate pair; the text names it.
    """
    for name, text in texts.items():
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:
            raise CallRefused(
                f"`{name}` has half a surrogate pair at position {error.start}: it is no text"
            ) from None


async def folder_of(environment: Environment, workdir: str | None) -> PathUri:
    """
    Return the directory that a `workdir` means, normalized as text: `a/link/..` is `a`.

    Raises:
        CallRefused: It is relative to a directory of another operating system, or no path.
    """
    if not workdir:
        return await environment.uri()
    if "\0" in workdir:
        raise CallRefused(f"'{workdir}' is invalid on 'linux'")
    try:
        base = (await environment.uri()).native
    except ForeignPathUri as error:
        raise CallRefused(str(error)) from error
    return PathUri.from_path(posixpath.normpath(posixpath.join(base, workdir)))


async def _is_missing(
    environment: Environment, folder: PathUri, sandbox: SandboxContext | None
) -> bool:
    """Return True if a directory is known not to exist, as far as the sandbox shows it."""
    try:
        found = await environment.filesystem.get_metadata(
            GetMetadataParams(folder, sandbox=sandbox)
        )
        return not found.is_directory
    except NotFound:
        return True
    except HoldfastError:
        # The start meets it, too, and says more about it.
        return False


def _nul_error(environment: Environment, request: StartRequest) -> HoldfastError:
    """Return the error of the start of a command whose text has a NUL."""
    reason = "nul byte found in provided data"
    # A remote start fails with the server's error, a local one with the system's.
    if environment.is_remote:
        return RemoteError(codes.INTERNAL_ERROR, reason)
    return SpawnFailed(reason, program=request.argv[0])


def _spawn_failure(error: HoldfastError) -> str:
    """Return the reason of a failed start, as the model reads it."""
    cause = error.__cause__
    text = str(cause if isinstance(cause, RemoteError) else error)
    return f"{texts.PROCESS_NOT_CREATED}{text}"


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
        # Before the hooks, so that they are not asked about a command that can never run: a NUL
        # would end the argument early and turn the rest into another one.
        if "\0" in request.script:
            impossible = _nul_error(environment, request)
            failure = _spawn_failure(impossible)
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
            failure = _spawn_failure(error)
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
