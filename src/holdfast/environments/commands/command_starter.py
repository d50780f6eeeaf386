"""
Starts single commands in an environment.

`Environment.launch`, `start` and `run` use it. It imports little, to keep `holdfast run` fast.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from errno import E2BIG, EACCES, ENOENT, ENOTDIR
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import UNSET

from holdfast.backends import ExecProcess
from holdfast.base.errors import HoldfastError, NotFound, SpawnFailed, Unsupported
from holdfast.engine.process.variable_marks import MARK_VARIABLE, FirstCommand, with_mark
from holdfast.environments.path_uris import AnyPath
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.fs import GetMetadataParams
from holdfast.wire.protocol.paths import ForeignPathUri, PathUri
from holdfast.wire.protocol.process import EnvPolicy, StartParams, TerminalSize

if TYPE_CHECKING:
    from holdfast.environments.environment import Environment
    from holdfast.environments.limits import Limits
    from holdfast.environments.sandbox import AnySandbox

__all__ = [
    "END_LIMIT",
    "CommandStarter",
    "CommandToStart",
    "Confinement",
    "EndLeft",
    "StartedCommand",
    "nothing_left",
]

END_LIMIT = 5.0
"""Seconds to wait for a killed process to end; only a broken connection takes longer."""

EndLeft = Callable[[], Coroutine[object, object, None]]
"""Function that kills the processes a command has left behind."""

# A child gets all variables of its machine, as if started by hand there.
_EVERYTHING = EnvPolicy(
    inherit="all", ignore_default_excludes=True, exclude=[], set={}, include_only=[]
)


class Confinement(msgspec.Struct, frozen=True):
    """The sandbox and the limits of one command, as the caller gave them."""

    sandbox: "AnySandbox | None" = None
    """None for the environment's sandbox."""
    limits: "Limits | None" = None


class CommandToStart(msgspec.Struct, frozen=True):
    """One command to start; the arguments have been checked."""

    argv: list[str]
    cwd: AnyPath | None = None
    """Its directory, relative to the environment's; None for the environment's."""
    env: Mapping[str, str] = {}
    """Variables in addition to those of the machine."""
    unset: Sequence[str] = ()
    """Names of variables to remove."""
    confined: Confinement = Confinement()
    stdin: bool = False
    """True for an open stdin on a pipe."""
    tty: bool = False
    size: TerminalSize | None = None
    name: str = ""
    """Prefix of its process id; empty for any."""


class StartedCommand(NamedTuple):
    """A process that was started."""

    process: ExecProcess
    end_left: EndLeft
    """Kills the processes it has left behind."""


class CommandStarter:
    """Starts the commands of one environment."""

    def __init__(
        self,
        environment: "Environment",
        end_marked: Callable[[str, FirstCommand | None], Awaitable[None]],
    ) -> None:
        """
        Args:
            environment: The environment.
            end_marked: Kills the processes whose mark begins with the given one: those of one
                command or of all commands.
        """
        self._environment = environment
        self._end_marked = end_marked
        # Random, so that the process ids of two users of one session do not collide.
        self._prefix = os.urandom(4).hex()
        # Marks all processes of commands started here; see `process.variable_marks`.
        self._mark = os.urandom(8).hex()
        self._marked = False
        # The first command that was marked, if it is on this machine.
        self._first: FirstCommand | None = None
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(
        self, request: CommandToStart, shown: list[str] | None = None
    ) -> StartedCommand:
        """
        Start a command.

        Args:
            request: The command.
            shown: The command to name in errors, if it differs from the one that is started.

        Raises:
            SpawnFailed: It could not be started; the message says why.
            HoldfastError: See `Environment.run`.
            RuntimeError: Commands were started in another event loop before.
        """
        self._check_loop()
        argv = shown or request.argv
        folder = await self._environment.uri(request.cwd)
        if request.tty and request.cwd is not None and (fault := await self._folder_fault(folder)):
            # On a terminal the protocol starts the command in the user's home instead of failing.
            raise _cannot_run_in(folder, fault, argv[0])
        params = await self._params(request, folder)
        try:
            process = await self._environment.backend.start(params)
        except SpawnFailed as error:
            raise await self._explained(error, params, argv) from error
        return StartedCommand(process, self._end_left_by(process, params))

    def _check_loop(self) -> None:
        """Refuse a second event loop, since connections and pipes belong to the first."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                f"environment `{self._environment.id}` was used in another event loop before:"
                " connect and use it within one `asyncio.run`"
            )

    async def end_left(self) -> None:
        """Kill what commands left behind, including daemons; call it after the last start."""
        if self._marked:
            self._marked = False
            await self._end_marked(self._mark, self._first)

    async def _params(self, request: CommandToStart, folder: PathUri) -> StartParams:
        environment = self._environment
        if request.unset and not (await environment.capabilities()).process_unset:
            raise Unsupported(codes.METHOD_NOT_FOUND, "exec-server cannot unset variables")
        limits = request.confined.limits
        if limits is not None and not hasattr(limits, "on_wire"):
            raise TypeError(f"limits must be a `Limits`, not {type(limits).__name__}")
        self._count += 1
        env = dict(request.env)
        # The sandbox is resolved on the machine of the command, which may need a connection.
        sandbox = await environment.sandbox_context(request.confined.sandbox)
        # In a sandbox, the PID namespace ends with the command, so no mark is needed.
        if (
            sandbox is None
            and environment.marks_commands
            and (await environment.capabilities()).process_end_marked
        ):
            # Keep the mark of an enclosing Holdfast, whose cleanup has to find the process.
            outer = None if environment.is_remote else os.environ.get(MARK_VARIABLE)
            env[MARK_VARIABLE] = with_mark(outer, f"{self._mark}-{self._count}")
            self._marked = True
        return StartParams(
            process_id=f"{request.name or self._prefix}-{self._count}",
            argv=request.argv,
            cwd=folder,
            env=env,
            env_policy=_EVERYTHING,
            tty=request.tty,
            pipe_stdin=request.stdin,
            terminal_size=request.size,
            sandbox=sandbox,
            limits=None if limits is None else limits.on_wire(),
            unset=list(request.unset) or UNSET,
        )

    def _end_left_by(self, process: ExecProcess, params: StartParams) -> EndLeft:
        """Return a function that kills what one command has left behind."""
        if not self._marked or MARK_VARIABLE not in params.env:
            return nothing_left
        mark = params.env[MARK_VARIABLE].rpartition("/")[2]
        first: FirstCommand | None = None
        # The first command bounds the search in /proc: a marked process cannot be older.
        if not self._environment.is_remote and process.pid is not None:
            first = FirstCommand.now(process.pid)
            self._first = self._first or first

        async def end_left() -> None:
            await self._end_marked(mark, first)

        return end_left

    async def _explained(
        self, error: SpawnFailed, params: StartParams, argv: list[str]
    ) -> SpawnFailed:
        """Return the failure with a cause, where the text of the system leaves it open."""
        errno = error.errno
        program = error.program or argv[0]
        # A missing program and a missing directory have the same errno.
        if errno in (ENOENT, ENOTDIR, EACCES) and (fault := await self._folder_fault(params.cwd)):
            return _cannot_run_in(params.cwd, fault, program)
        hint = ""
        # A common mistake: the whole command line as a single list element.
        if errno == ENOENT and " " in argv[0]:
            hint = "; pass a command line as a string, not as a list"
        elif errno == E2BIG:
            hint = "; pass long data in a file or on stdin"
        return SpawnFailed(
            f"cannot run `{argv[0]}`: {error}{hint}", errno=errno, path=error.path, program=program
        )

    async def _folder_fault(self, folder: PathUri) -> int | None:
        """Return the errno that explains why a directory cannot be the cwd, else None."""
        try:
            metadata = await self._environment.filesystem.get_metadata(GetMetadataParams(folder))
        except NotFound:
            return ENOENT
        except HoldfastError:
            # Unknown: keep the first error.
            return None
        return None if metadata.is_directory else ENOTDIR


async def nothing_left() -> None:
    """Do nothing: no processes can be left behind, or the server cannot find them."""


def _cannot_run_in(folder: PathUri, errno: int, program: str) -> SpawnFailed:
    shown = _shown(folder)
    fault = "there is no such directory" if errno == ENOENT else "it is not a directory"
    return SpawnFailed(
        f"cannot run `{program}` in `{shown}`: {fault}", errno=errno, path=shown, program=program
    )


def _shown(path: PathUri) -> str:
    try:
        return path.native
    except ForeignPathUri:
        return str(path)
