"""Implementation of `Environment.run`, `start` and `attach` for every kind of environment."""

import asyncio
import os
import resource
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from errno import E2BIG, EACCES, ENOENT, ENOTDIR
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec import UNSET

from holdfast.backends import ExecProcess
from holdfast.environments.commands.arguments import (
    Command,
    as_argv,
    as_bytes,
    as_cap,
    as_names,
    as_terminal_size,
    as_variables,
    seconds,
)
from holdfast.environments.commands.completed import Completed
from holdfast.environments.commands.run import OnOutput, run_on, run_to_end
from holdfast.environments.commands.running import EndLeft, Running
from holdfast.environments.limits import Limits
from holdfast.environments.paths import AnyPath
from holdfast.environments.sandbox import AnySandbox
from holdfast.errors import (
    DuplicateProcess,
    HoldfastError,
    InvalidParams,
    NotFound,
    SpawnFailed,
    UnknownProcess,
    Unsupported,
)
from holdfast.events import Reason
from holdfast.process.variable_marks import MARK_VARIABLE, FirstCommand, with_mark
from holdfast.protocol import codes
from holdfast.protocol.paths import PathUri
from holdfast.protocol.process import EnvPolicy, StartParams, TerminalSize
from holdfast.tasks import OwnedTasks

if TYPE_CHECKING:
    from holdfast.environments.environment import Environment

__all__ = ["Commands", "Confinement"]

# A child gets all variables of its machine, as if it were started by hand there.
_EVERYTHING = EnvPolicy(
    inherit="all", ignore_default_excludes=True, exclude=[], set={}, include_only=[]
)

# Detached processes that stay known after their end; the bound keeps memory finite.
_NAMES_KEPT = 64

# Twice what one local process needs, so that half of the descriptor limit is left for others.
_DESCRIPTORS_PER_RUN = 8

# Ends the input of a command after `n` bytes. Codex's server has no method to close stdin, and
# the command would wait for the end of its input for ever.
_WITH_INPUT = 'n=$1; shift; head -c "$n" | "$@"'


@dataclass(frozen=True, slots=True)
class Confinement:
    """The sandbox and the limits of one command, as the caller gave them."""

    sandbox: AnySandbox | None = None
    """The environment's sandbox applies if this is None."""
    limits: Limits | None = None


class Commands:
    """The commands of one environment."""

    def __init__(
        self,
        environment: "Environment",
        end_marked: Callable[[str, FirstCommand | None], Awaitable[None]],
    ) -> None:
        """
        Args:
            environment: The environment.
            end_marked: Kills the processes whose mark begins with the given one: those of one
                command, or of all.
        """
        self._environment = environment
        self._end_marked = end_marked
        self._tasks = OwnedTasks()
        # Random, so that two users of one session do not choose the same process id.
        self._prefix = secrets.token_hex(4)
        # Marks everything that commands start here; see `process.variable_marks`.
        self._mark = secrets.token_hex(8)
        self._marked = False
        self._first: FirstCommand | None = None
        self._count = 0
        self._detached: dict[str, Running] = {}
        # Names whose processes are being started now.
        self._claims: set[str] = set()
        # Running processes that `start` made, by id; ended ones are removed by `_forget_ended`.
        self._processes: dict[str, ExecProcess] = {}
        # The objects that callers have. Weak: a dropped one no longer holds up its process.
        self._started: WeakValueDictionary[str, Running] = WeakValueDictionary()
        # A local run takes descriptors of this process; a server limits its own.
        self._turn: AbstractAsyncContextManager[object] = (
            nullcontext() if environment.is_remote else asyncio.Semaphore(_runs_at_once())
        )

    async def run(
        self,
        command: Command,
        *,
        cwd: AnyPath | None,
        env: Mapping[str, str] | None,
        unset: Iterable[str],
        given: object,
        timeout: float | None,
        cap: int,
        drain: float | None,
        on_output: OnOutput | None,
        confined: Confinement,
    ) -> Completed:
        """Run a command to its end; see `Environment.run`."""
        argv = as_argv(command)
        data = b"" if given is None else as_bytes(given, "input")
        if on_output is not None and not callable(on_output):
            raise TypeError(f"on_output is a function, not {type(on_output).__name__}")
        limit = None if timeout is None else seconds(timeout, "timeout")
        quiet = None if drain is None else seconds(drain, "drain")
        as_cap(cap)
        variables, names = as_variables(env), as_names(unset)
        async with self._turn:
            folder = await self._environment.uri(cwd)
            run = argv
            if data and not (await self._environment.capabilities()).process_close_stdin:
                # A Codex server cannot close stdin, so `head` ends the input instead.
                run = ["/bin/sh", "-c", _WITH_INPUT, "sh", str(len(data)), *argv]
            params = await self._params(
                run, folder, variables, names, confined, pipe_stdin=bool(data)
            )
            process = await self._launch(params, argv)
            end_left = self._end_left_by(process, params)
            try:
                done = await run_to_end(
                    process,
                    command if isinstance(command, str) else tuple(argv),
                    given=data,
                    timeout=limit,
                    cap=cap,
                    drain=quiet,
                    on_output=on_output,
                    tasks=self._tasks,
                )
            # A second cancellation must not interrupt the killing, so it runs in a task.
            except BaseException:
                await run_on(end_left(), self._tasks)
                raise
            # Only after a kill: a command that ended by itself may leave processes in the
            # background.
            if done.reason in (Reason.TIMED_OUT, Reason.LIMIT):
                await end_left()
            return done

    async def start(
        self,
        command: Command,
        *,
        cwd: AnyPath | None,
        env: Mapping[str, str] | None,
        unset: Iterable[str],
        tty: bool,
        size: tuple[int, int] | None,
        stdin: bool,
        detach: str | None,
        confined: Confinement,
    ) -> Running:
        """Start a command that keeps running; see `Environment.start`."""
        argv = as_argv(command)
        variables, names = as_variables(env), as_names(unset)
        terminal = None if size is None else as_terminal_size(size)
        folder = await self._environment.uri(cwd)
        if tty and cwd is not None and (fault := await self._folder_fault(folder)):
            # On a terminal the protocol starts the command in the user's home instead of failing.
            raise _cannot_run_in(folder, fault, argv[0])
        # The claim spans the awaits below: a second `start` with the same name is refused at once.
        with nullcontext() if detach is None else self._claimed(detach):
            if detach is not None:
                await self._see_free(detach)
            params = await self._params(
                argv,
                folder,
                variables,
                names,
                confined,
                tty=tty,
                size=terminal,
                pipe_stdin=stdin,
                name=detach or "",
            )
            process = await self._launch(params, argv)
            # Here, because nothing else would shrink the table of a long-lived environment.
            self._forget_ended()
            self._processes[process.process_id] = process
            running = self._running(process, detach, self._end_left_by(process, params))
            if detach is not None:
                self._detached[detach] = running
            return running

    def processes(self) -> list[Running]:
        """Return the running processes; see `Environment.processes`."""
        self._forget_ended()
        return [
            self._started.get(process_id) or self._running(process, None, _nothing_left)
            for process_id, process in self._processes.items()
        ]

    def _running(self, process: ExecProcess, detached: str | None, end_left: EndLeft) -> Running:
        running = Running(process, detached=detached, tasks=self._tasks, end_left=end_left)
        self._started[process.process_id] = running
        return running

    def _forget_ended(self) -> None:
        ended = [name for name, process in self._processes.items() if process.verdict is not None]
        for name in ended:
            del self._processes[name]

    async def warm_up(self, confined: Confinement) -> None:
        """Run `true` once, so that the next start finds sandbox and caches ready."""
        folder = await self._environment.uri(None)
        params = await self._params(["true"], folder, {}, [], confined, pipe_stdin=False)
        process = await self._launch(params, ["true"])
        await run_to_end(process, "true", cap=0, tasks=self._tasks)

    def attach(self, name: str) -> Running:
        """Return a detached process; see `Environment.attach`."""
        running = self._detached.get(name)
        if running is None:
            raise UnknownProcess(name, f"no process was detached as `{name}` here")
        return running

    async def aclose(self) -> None:
        """End all processes now; a server would do so only 30 seconds later."""
        running = self.processes()
        await asyncio.gather(*(one.aclose() for one in running), return_exceptions=True)
        await self._tasks.aclose()
        # Last, when nothing more can be started that would carry the mark.
        await self.end_left()

    async def end_left(self) -> None:
        """Kill what commands left behind, daemons too; call it when nothing more is started."""
        if self._marked:
            self._marked = False
            await self._end_marked(self._mark, self._first)

    def _end_left_by(self, process: ExecProcess, params: StartParams) -> EndLeft:
        """Return a function that kills what one command has left behind."""
        if MARK_VARIABLE not in params.env:
            return _nothing_left
        mark = params.env[MARK_VARIABLE].rpartition("/")[2]
        first: FirstCommand | None = None
        # The first command bounds the search in /proc: a marked process cannot be older.
        if not self._environment.is_remote and process.pid is not None:
            first = FirstCommand.now(process.pid)
            self._first = self._first or first

        async def end_left() -> None:
            await self._end_marked(mark, first)

        return end_left

    @contextmanager
    def _claimed(self, name: str) -> Iterator[None]:
        """Refuse a second start by the same name while one is under way."""
        if not isinstance(name, str):
            raise TypeError(f"the name to detach a process by is text, not {type(name).__name__}")
        if not name:
            raise InvalidParams("the name to detach a process by is empty")
        if name in self._claims:
            raise DuplicateProcess(name, f"a process detached as `{name}` is being started")
        self._claims.add(name)
        try:
            yield
        finally:
            self._claims.discard(name)

    async def _see_free(self, name: str) -> None:
        """Check that no running process has the name, and forget old names."""
        known = self._detached.get(name)
        if known is not None and not await _is_over(known.process):
            raise DuplicateProcess(
                name, f"a process detached as `{name}` is running: attach to it, or end it first"
            )
        # Only when full, since checking each process may take a round trip.
        if len(self._detached) >= _NAMES_KEPT:
            for other, running in list(self._detached.items()):
                if await _is_over(running.process):
                    del self._detached[other]

    async def _params(
        self,
        argv: list[str],
        folder: PathUri,
        env: dict[str, str],
        unset: list[str],
        confined: Confinement,
        *,
        pipe_stdin: bool,
        tty: bool = False,
        size: TerminalSize | None = None,
        name: str = "",
    ) -> StartParams:
        if unset and not (await self._environment.capabilities()).process_unset:
            raise Unsupported(codes.METHOD_NOT_FOUND, "exec-server cannot unset variables")
        if confined.limits is not None and not isinstance(confined.limits, Limits):
            raise TypeError(f"limits is a `Limits`, not {type(confined.limits).__name__}")
        self._count += 1
        # The sandbox is resolved on the machine of the command, which may need a connection.
        sandbox = await self._environment.sandbox_context(confined.sandbox)
        # A sandbox has a PID namespace: nothing outlives its command, so no mark is needed.
        if sandbox is None and (await self._environment.capabilities()).process_end_marked:
            # A mark of an enclosing Holdfast is kept, so that its own cleanup still finds the
            # process.
            outer = None if self._environment.is_remote else os.environ.get(MARK_VARIABLE)
            env = {**env, MARK_VARIABLE: with_mark(outer, f"{self._mark}-{self._count}")}
            self._marked = True
        return StartParams(
            process_id=f"{name or self._prefix}-{self._count}",
            argv=argv,
            cwd=folder,
            env=env,
            env_policy=_EVERYTHING,
            tty=tty,
            pipe_stdin=pipe_stdin,
            terminal_size=size,
            sandbox=sandbox,
            limits=None if confined.limits is None else confined.limits.on_wire(),
            unset=unset or UNSET,
        )

    async def _launch(self, params: StartParams, argv: list[str]) -> ExecProcess:
        try:
            return await self._environment.backend.start(params)
        except SpawnFailed as error:
            raise await self._explained(error, params, argv) from error

    async def _explained(
        self, error: SpawnFailed, params: StartParams, argv: list[str]
    ) -> SpawnFailed:
        """Return the failure with the cause that the system's text leaves open."""
        errno = error.errno
        program = error.program or argv[0]
        # The same errno is reported for a missing program and for a missing directory.
        if errno in (ENOENT, ENOTDIR, EACCES) and (fault := await self._folder_fault(params.cwd)):
            return _cannot_run_in(params.cwd, fault, program)
        hint = ""
        # A common mistake: a whole command line as the only element of a list.
        if errno == ENOENT and " " in argv[0]:
            hint = "; give a whole command line as one text, not as a list"
        elif errno == E2BIG:
            hint = "; write what is long to a file or to its input"
        return SpawnFailed(
            f"cannot run `{argv[0]}`: {error}{hint}", errno=errno, path=error.path, program=program
        )

    async def _folder_fault(self, folder: PathUri) -> int | None:
        """Return the errno that explains why a directory cannot be the cwd, or None."""
        try:
            metadata = await self._environment.filesystem.get_metadata(folder)
        except NotFound:
            return ENOENT
        except HoldfastError:
            # Unknown: the original error stays as it is.
            return None
        return None if metadata.is_directory else ENOTDIR


async def _nothing_left() -> None:
    """Do nothing: the server cannot find left processes, or there cannot be any."""


def _cannot_run_in(folder: PathUri, errno: int, program: str) -> SpawnFailed:
    shown = folder.shown
    fault = "there is no such folder" if errno == ENOENT else "it is not a folder"
    return SpawnFailed(
        f"cannot run `{program}` in `{shown}`: {fault}", errno=errno, path=shown, program=program
    )


async def _is_over(process: ExecProcess) -> bool:
    """Return True if it has exited or is lost with its server; does not wait."""
    if process.verdict is not None:
        return True
    try:
        # A zero timeout makes one attempt: the answer is known here, or not.
        async with asyncio.timeout(0):
            await process.exited()
    except TimeoutError:
        return False
    except HoldfastError:
        return True
    return True


def _runs_at_once() -> int:
    # A negative limit is RLIM_INFINITY.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, soft // _DESCRIPTORS_PER_RUN) if soft > 0 else 1 << 20
