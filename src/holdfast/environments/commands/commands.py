"""`Environment.run`, `start` and `attach`, for every kind of environment."""

import asyncio
import resource
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from holdfast.backends import ExecProcess
from holdfast.base.errors import (
    DuplicateProcess,
    HoldfastError,
    InvalidParams,
    UnknownProcess,
)
from holdfast.base.tasks import OwnedTasks
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
from holdfast.environments.commands.command_starter import (
    CommandStarter,
    CommandToStart,
    Confinement,
    EndLeft,
    nothing_left,
)
from holdfast.environments.commands.completed import Completed
from holdfast.environments.commands.run import OnOutput, run_on, run_to_end
from holdfast.environments.commands.running import Running, Starting
from holdfast.environments.path_uris import AnyPath
from holdfast.events import Reason

if TYPE_CHECKING:
    from holdfast.environments.environment import Environment

__all__ = ["Commands"]

# Detached processes that are remembered after their end; bounds memory.
_NAMES_KEPT = 64

# Twice what a local process needs, to leave half of the descriptor limit for other uses.
_DESCRIPTORS_PER_RUN = 8

# Ends the input of a command after `n` bytes. The base protocol has no method to close stdin, and
# the command would wait for the end of its input for ever.
_WITH_INPUT = 'n=$1; shift; head -c "$n" | "$@"'


class Commands:
    """The commands of one environment."""

    def __init__(self, environment: "Environment", starter: CommandStarter) -> None:
        self._environment = environment
        self._starter = starter
        self._tasks = OwnedTasks()
        self._detached: dict[str, Running] = {}
        # Names of processes that are being started.
        self._claims: set[str] = set()
        # Processes started by `start`, by id; `_forget_ended` removes those that have ended.
        self._processes: dict[str, ExecProcess] = {}
        # Objects held by callers. Weak, so that a dropped one no longer blocks its process.
        self._started: WeakValueDictionary[str, Running] = WeakValueDictionary()
        # A local run uses descriptors of this process; a server limits its own.
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
            raise TypeError(f"on_output must be a function, not {type(on_output).__name__}")
        limit = None if timeout is None else seconds(timeout, "timeout")
        quiet = None if drain is None else seconds(drain, "drain")
        as_cap(cap)
        variables, names = as_variables(env), as_names(unset)
        async with self._turn:
            run = argv
            if data and not (await self._environment.capabilities()).process_close_stdin:
                # The server cannot close stdin, so `head` ends the input instead.
                run = ["/bin/sh", "-c", _WITH_INPUT, "sh", str(len(data)), *argv]
            request = CommandToStart(run, cwd, variables, names, confined, stdin=bool(data))
            process, end_left = await self._starter.start(request, shown=argv)
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
            # In a task, so that a second cancellation does not interrupt the kill.
            except BaseException:
                await run_on(end_left(), self._tasks)
                raise
            # Only after a kill: a command that ends by itself may leave processes running.
            if done.reason in (Reason.TIMED_OUT, Reason.LIMIT):
                await end_left()
            return done

    def start(
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
    ) -> Starting:
        """Start a command that keeps running; see `Environment.start`."""

        async def start() -> Running:
            terminal = None if size is None else as_terminal_size(size)
            request = CommandToStart(
                as_argv(command),
                cwd,
                as_variables(env),
                as_names(unset),
                confined,
                stdin,
                tty,
                terminal,
                name=detach or "",
            )
            return await self._start(request, detach)

        return Starting(start())

    async def _start(self, request: CommandToStart, detach: str | None) -> Running:
        # Claimed during the awaits below: a second `start` with the same name fails at once.
        with nullcontext() if detach is None else self._claimed(detach):
            if detach is not None:
                await self._see_free(detach)
            process, end_left = await self._starter.start(request)
            # In a long-lived environment nothing else shrinks the table.
            self._forget_ended()
            self._processes[process.process_id] = process
            running = self._running(process, detach, end_left)
            if detach is not None:
                self._detached[detach] = running
            return running

    def processes(self) -> list[Running]:
        """Return the running processes; see `Environment.processes`."""
        self._forget_ended()
        return [
            self._started.get(process_id) or self._running(process, None, nothing_left)
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
        """Run `true` once, so that the sandbox and the caches are ready for the next start."""
        process, _ = await self._starter.start(CommandToStart(["true"], confined=confined))
        await run_to_end(process, "true", cap=0, tasks=self._tasks)

    def attach(self, name: str) -> Running:
        """Find a detached process; see `Environment.attach`."""
        running = self._detached.get(name)
        if running is None:
            raise UnknownProcess(name, f"no process was detached as `{name}` here")
        return running

    async def aclose(self) -> None:
        """End all processes now, not 80 seconds later as a server would."""
        running = self.processes()
        await asyncio.gather(*(one.aclose() for one in running), return_exceptions=True)
        await self._tasks.aclose()
        # Last, when no more processes can be started with the mark.
        await self._starter.end_left()

    @contextmanager
    def _claimed(self, name: str) -> Iterator[None]:
        """Reserve a name, so that a second start with it is refused meanwhile."""
        if not isinstance(name, str):
            raise TypeError(f"detach must be a string, not {type(name).__name__}")
        if not name:
            raise InvalidParams("detach must not be empty")
        if name in self._claims:
            raise DuplicateProcess(name, f"a process detached as `{name}` is being started")
        self._claims.add(name)
        try:
            yield
        finally:
            self._claims.discard(name)

    async def _see_free(self, name: str) -> None:
        """Check that no running process has the name; forget names of ended processes."""
        known = self._detached.get(name)
        if known is not None and not await _is_over(known.process):
            raise DuplicateProcess(
                name, f"a process detached as `{name}` is running: attach to it, or end it first"
            )
        # Only when full: each check may take a round trip.
        if len(self._detached) >= _NAMES_KEPT:
            for other, running in list(self._detached.items()):
                if await _is_over(running.process):
                    del self._detached[other]


async def _is_over(process: ExecProcess) -> bool:
    """Return True if it has exited or was lost with its server, without waiting."""
    if process.verdict is not None:
        return True
    try:
        # A zero timeout makes a single attempt, which succeeds if the answer is known here.
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
