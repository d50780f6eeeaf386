"""
Starts commands: from the arguments of a model to a running process.

A planner turns the arguments into the parameters of a process. A starter asks the hooks, starts the
process and waits for the grace, a short time in which an exit is reported at once.

Closing the tools ends every start in progress, regardless of what it waits for.
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
    "directory_of",
    "refuse_lone_surrogates",
]

_FORCED = names.TOOL_VARIABLES
"""Override all others, even on a terminal: plain text, and no pager that waits for a key."""

POLICY = EnvPolicy(
    inherit="all",
    ignore_default_excludes=True,
    exclude=list(names.NOT_INHERITED),
    set={},
    include_only=[],
)
"""Commands inherit all variables of their environment except those about another command."""


def command_variables(
    given: Mapping[str, str],
    unset: Iterable[str],
    *,
    session_id: str,
    sandbox: SandboxContext | None,
) -> dict[str, str]:
    """
    Return the variables to set for a command, in addition to inherited ones.

    The ids of the thread and the call are not included: they are in the metadata of the start.

    Args:
        given: Variables from the options of the tools.
        unset: Names that the options exclude, including variables that are otherwise forced.
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
    """Return the argv that runs `script` in `shell`, as a login shell or not."""
    kind = shell_kind(shell.name)
    if kind in _POWERSHELL:
        return [shell.path, *([] if login else ["-NoProfile"]), "-Command", script]
    if kind == "cmd":
        return [shell.path, "/c", script]
    return [shell.path, "-lc" if login else "-c", script]


class Planner:
    """Plans the commands of one conversation."""

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
        Return the command that an `exec_command` requests.

        Raises:
            CallRefused: An argument cannot be used; the text is for the model.
        """
        options = self._options
        # First, since later steps could not report strings that cannot be encoded.
        refuse_lone_surrogates(cmd=arguments.cmd, workdir=arguments.workdir, shell=arguments.shell)
        if arguments.login and not options.allow_login_shell:
            raise CallRefused(texts.LOGIN_DISABLED)
        login = options.allow_login_shell if arguments.login is None else arguments.login
        cwd = await directory_of(environment, arguments.workdir)
        try:
            shell = await environment.shell(arguments.shell)
        except InvalidParams as error:
            raise CallRefused(str(error)) from error
        # Hooks get the environment's default shell, regardless of the call.
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
        # A snapshot replaces the startup files of a login shell, which other commands do not run.
        is_shell = request.clearance is None or request.clearance.program is None
        if options.shell_snapshot and is_shell and request.argv[1:2] == ("-lc",):
            shell = await environment.shell()
            snapshot = ShellSnapshotParams(
                scope_id=self._thread_id,
                shell=ShellSnapshotShell(name=shell.name, path=shell.path),
            )
        return StartParams(
            # The number is not enough: a second attempt of the same call uses the same number.
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


def refuse_lone_surrogates(**texts: str | None) -> None:
    """
    Refuse strings that cannot be encoded, which arguments from a program may contain.

    Raises:
        CallRefused: A string has a lone surrogate; the text names it.
    """
    for name, text in texts.items():
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:
            raise CallRefused(
                f"`{name}` has a lone surrogate at position {error.start}: it is not valid text"
            ) from None


async def directory_of(environment: Environment, workdir: str | None) -> PathUri:
    """
    Return the directory for a `workdir`, normalized as text: `a/link/..` is `a`.

    Raises:
        CallRefused: It is relative to a directory of another operating system, or not a path.
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
    environment: Environment, directory: PathUri, sandbox: SandboxContext | None
) -> bool:
    """Return True if a directory is known to be missing, as seen from the sandbox."""
    try:
        found = await environment.filesystem.get_metadata(
            GetMetadataParams(directory, sandbox=sandbox)
        )
        return not found.is_directory
    except NotFound:
        return True
    except HoldfastError:
        # The start fails in the same way, with a more specific error.
        return False


def _nul_error(environment: Environment, request: StartRequest) -> HoldfastError:
    """Return the error of the start of a command whose text has a NUL."""
    reason = "nul byte found in provided data"
    # A remote start fails with the server's error, a local one with the kernel's.
    if environment.is_remote:
        return RemoteError(codes.INTERNAL_ERROR, reason)
    return SpawnFailed(reason, program=request.argv[0])


def _spawn_failure(error: HoldfastError) -> str:
    """Return the reason of a failed start for the model."""
    cause = error.__cause__
    text = str(cause if isinstance(cause, RemoteError) else error)
    return f"{texts.PROCESS_NOT_CREATED}{text}"


CLOSED = "the tools are closed"
"""The text of a call after the close, or one whose command was not started by then."""


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
        # Timeouts of starts in progress; closing the tools makes them expire.
        self._under_way: set[asyncio.Timeout] = set()
        self._none_under_way = asyncio.Event()
        self._none_under_way.set()
        self.closed = False
        """True once starts are refused."""

    def close(self) -> None:
        """Refuse starts from now on, and end those in progress."""
        self.closed = True
        now = asyncio.get_running_loop().time()
        for limit in self._under_way:
            if not limit.expired():
                limit.reschedule(now)

    async def wait_closed(self) -> None:
        """Wait until no start is in progress."""
        await self._none_under_way.wait()

    @asynccontextmanager
    async def ended_by_close(self) -> AsyncIterator[None]:
        """
        End the block when the tools are closed, regardless of what it waits for.

        Raises:
            CallRefused: The tools were closed during the block.
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
        Have the hooks decide about a command, and return the command to start.

        Listeners are notified of a declined command.

        Raises:
            UnifiedExecError: The command is refused, or cannot be started.
        """
        # Before the hooks, so that the user is not asked about a command that can never run: a NUL
        # would end the argument early and turn the rest into another argument.
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
        Start a command and wait for the grace, both twice if a hook requests another attempt.

        The caller must soon call `SessionOwner.follow`: until then the output is not read.

        Args:
            environment: The environment of the command.
            request: The command to start.
            first: For a second attempt of the same call, the first one, which was denied late and
                announced to listeners.

        Raises:
            UnifiedExecError: The command cannot be started.
            CallRefused: The tools were closed meanwhile.
            InvalidParams: The call's extras about output are invalid.
        """
        while True:
            output: CallOutput | None = None
            if request.arguments.selective:
                # Check the request before a command is started.
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
                # With a limit, since the connection may be lost.
                await self._clock.wait(session.settled, exec_wait(request.arguments.yield_time_ms))
                denied = DeniedAttempt(
                    request=request,
                    verdict=verdict,
                    message=denial_message(session.output.unreported, verdict.exit_code),
                )
                again = await self._hooks.after_denial(denied)
            # Including cancellation: no caller has the session yet.
            except BaseException:
                self._owner.kill(held)
                self._owner.release(held)
                raise
            if again is None:
                held.denied_early = True
                break
            self._owner.release(held, keep_id=True)
            request = again
        # `aclose` may have released all sessions before this one existed.
        if self.closed:
            self._owner.release(held)
            raise CallRefused(CLOSED)
        return held

    async def after_late_denial(self, held: HeldSession) -> StartRequest | None:
        """
        Return the request for another attempt, if the sandbox denied a command something late.

        Raises:
            CallInterrupted: The approver cancelled the call.
            CallRefused: The tools were closed meanwhile.
        """
        session = held.session
        verdict = session.verdict
        if not self._hooks.late_denials or held.denied_early or held.forgotten:
            return None
        if verdict is None or verdict.denial is None or session.killed:
            return None
        # There is a verdict.
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
            # The model never learned its number.
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
            # A second attempt, with `first` set, has already been announced; its end will be, too.
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
