"""Conversion of a model's arguments into the parameters of a process."""

import posixpath
import uuid

from msgspec import UNSET

from holdfast.agent.unified_exec.added_permissions import added_permissions
from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments
from holdfast.agent.unified_exec.hooks import Attempt, StartRequest
from holdfast.agent.unified_exec.options import Options
from holdfast.agent.unified_exec.tool_errors import CallRefused
from holdfast.agent.unified_exec.tool_variables import POLICY, command_variables
from holdfast.base.dialect import texts
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
    ShellSnapshotParams,
    ShellSnapshotShell,
    StartMetadata,
    StartParams,
    ThreadId,
)
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = [
    "Planner",
    "folder_of",
    "impossible_start",
    "refuse_half_characters",
    "shell_argv",
    "spawn_failure",
]

_POWERSHELL = ("pwsh", "powershell")


def shell_argv(shell: ShellInfo, script: str, *, login: bool) -> list[str]:
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
            argv=tuple(shell_argv(shell, arguments.cmd, login=login)),
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


def impossible_start(environment: Environment, request: StartRequest) -> HoldfastError | None:
    """Return the reason why a command cannot be started anywhere, before anybody is asked."""
    if "\0" not in request.script:
        return None
    # A NUL would end the argument early and turn the rest into another one.
    reason = "nul byte found in provided data"
    # A remote start fails with the server's error, a local one with the system's.
    if environment.is_remote:
        return RemoteError(codes.INTERNAL_ERROR, reason)
    return SpawnFailed(reason, program=request.argv[0])


def spawn_failure(error: HoldfastError) -> str:
    """Return the reason of a failed start, as the model reads it."""
    cause = error.__cause__
    text = str(cause if isinstance(cause, RemoteError) else error)
    return f"{texts.PROCESS_NOT_CREATED}{text}"
