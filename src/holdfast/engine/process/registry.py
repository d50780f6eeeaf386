"""Processes of this machine: the registry of one owner, and an `ExecBackend` on top of it."""

import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.base.errors import CannotEnforce, InvalidRequest, SpawnFailed
from holdfast.base.late_import import late_module
from holdfast.base.system_text import system_text
from holdfast.engine.process import limits
from holdfast.engine.process.admission import CannotConfine, CheckedStart, admit
from holdfast.engine.process.child import Child
from holdfast.engine.process.executable_lookup import (
    Launch,
    pipe_launch,
    terminal_folder,
    terminal_launch,
)
from holdfast.engine.process.io.input_budget import InputBudget
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.io.output_reader import readers_of
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.process_table import (
    RETENTION,
    MakeLog,
    PendingStart,
    ProcessTable,
    TableSettings,
    plain_log,
)
from holdfast.engine.process.pty import DEFAULT_SIZE
from holdfast.engine.process.reachable import call_after_stat, paths_to_check
from holdfast.engine.process.sandbox_source import (
    CommandSandbox,
    SandboxOutdated,
    SandboxSource,
    default_source,
)
from holdfast.engine.process.spawn import needs_descriptor_limit
from holdfast.engine.process.start_threads import StartThreads
from holdfast.engine.process.variables import child_environment, login_shell, without_tokens
from holdfast.events import Reason, Verdict
from holdfast.wire.protocol.process import (
    Enforcement,
    ProcessLimits,
    ShellSnapshotParams,
    StartParams,
)

if TYPE_CHECKING:
    from holdfast.engine.process.snapshots import script
    from holdfast.engine.process.snapshots import snapshot_cache as cache
else:
    # Few starts come with a snapshot of a shell.
    cache = late_module("holdfast.engine.process.snapshots.snapshot_cache")
    script = late_module("holdfast.engine.process.snapshots.script")

__all__ = ["LocalBackend", "ProcessRegistry"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Plans after the first one for a sandbox whose files changed while it was built.
_SANDBOX_RETRIES = 3


class ProcessRegistry(ProcessTable):
    """
    The processes of one owner, by the owner's ids.

    A process is kept for `RETENTION` seconds after its close. Then its id is free.
    """

    on_this_machine = True

    def __init__(
        self,
        *,
        inherited: Mapping[str, str] | None = None,
        shell: str = "/bin/sh",
        observers: Iterable[ProcessObserver] = (),
        make_log: MakeLog = plain_log,
        retention: float = RETENTION,
        input_budget: InputBudget | None = None,
        sandboxes: SandboxSource | None = None,
    ) -> None:
        """
        Args:
            inherited: Variables that an environment policy inherits; by default this process's.
            shell: The user's login shell, for terminals without a `SHELL`.
            observers: Called at each start and each end.
            make_log: Called before each spawn. Its result takes the output and decides how
                much of it is kept. If the spawn fails, nothing is written to it. An error
                that it raises becomes the error of the start.
            retention: Seconds a closed process is kept.
            input_budget: Bounds the queued input of all processes; by default only theirs.
            sandboxes: Builds the sandboxes of starts; by default with bubblewrap.
        """
        super().__init__(TableSettings(observers, make_log, retention))
        # The epoll instance is made now: once a child runs, a lack of descriptors must not make it
        # fail.
        readers_of(self._loop)
        self._inherited = os.environ if inherited is None else inherited
        self._shell = shell
        self._input_budget = InputBudget() if input_budget is None else input_budget
        self._sandboxes = sandboxes
        # Created by the first start that needs one.
        self._snapshots: cache.Snapshots | None = None
        self._threads = StartThreads()

    def launch(self, params: StartParams) -> LocalProcess | Awaitable[LocalProcess]:
        """
        Start a process. Return an awaitable only if the start has to wait.

        A start waits for the capture of a shell's profile, for a sandbox, for limits, or for
        files that the kernel has not cached: their mount may be dead.

        The checks of the request come first, see `admission`.
        """
        return self._begin(params, self._launch_checked)

    def _launch_checked(self, start: ProcessStart) -> LocalProcess | Awaitable[LocalProcess]:
        request = admit(start.params, self._check_free, self._environment)
        # Most programs and directories are cached. Such a start is made in the loop, without a
        # switch to a thread and back.
        if (
            request.is_cached
            and request.snapshot is None
            and request.confinement is None
            and request.params.limits is None
        ):
            return self._spawn_here(start, request)
        is_plain = request.snapshot is None and request.params.sandbox is None
        return self._start_later(start, partial(self._prepare, request), is_plain=is_plain)

    def _spawn_here(self, start: ProcessStart, request: CheckedStart) -> LocalProcess:
        """Spawn a child in the event loop."""
        # Before the spawn: if the log cannot be made, no process may run.
        log = self._make_log(start.params)
        self._observers.prepared(start)
        try:
            child = self._spawn(request)
        except SpawnFailed as error:
            self._log_failure(start.params, error)
            raise
        return self._adopt(start, child, log)

    def _adopt(
        self,
        start: ProcessStart,
        child: Child,
        log: OutputLog,
        enforcement: Enforcement | None = None,
    ) -> LocalProcess:
        process = LocalProcess(
            self._loop,
            start.params,
            child,
            log,
            exited=self._observers.exited,
            closed=self._process_closed,
            enforcement=enforcement,
            input_budget=self._input_budget,
        )
        self._add(start, process)
        return process

    def _log_failure(self, params: StartParams, error: SpawnFailed) -> None:
        verdict = Verdict(reason=Reason.SPAWN_FAILED, detail=str(error))
        logger.debug("process %s was not started: %s", params.process_id, verdict)

    async def _prepare(
        self, request: CheckedStart, start: ProcessStart, pending: PendingStart[LocalProcess]
    ) -> LocalProcess:
        """Prepare everything that a start needs, then start it."""
        is_limited = request.params.limits is not None
        if is_limited:
            await self._check_limits(request.params)
        # The capture of a profile and the sandbox look at the same files in the loop.
        if not request.is_cached and (request.snapshot or request.confinement):
            await self._call_in_thread(request, lambda: None)
        pending.check()
        sandbox = await self._confine(request)
        match sandbox:
            case CannotConfine():
                pending.check()
                return self._spawn_here(start, request.failing(sandbox))
            case None:
                if request.snapshot is not None:
                    request = await self._with_snapshot(request, request.snapshot)
                pending.check()
                # Not in the loop with limits: the child sets them itself, and the caller waits for
                # that.
                if request.is_cached and not is_limited:
                    return self._spawn_here(start, request)
                return await self._spawn_in_thread(start, request, pending)
            case _:
                # With a token, a command could use its server to escape any sandbox.
                request = request._replace(env=without_tokens(request.env))
                try:
                    if request.snapshot is not None:
                        request = await self._with_snapshot(request, request.snapshot, sandbox)
                    pending.check()
                    return await self._start_inside(sandbox, start, request, pending)
                finally:
                    # The command has its own reservation now.
                    sandbox.close()

    async def _check_limits(self, params: StartParams) -> None:
        """Refuse limits that cannot be enforced; this may query systemd about cgroups."""
        # The caller has checked that.
        assert params.limits is not None
        check = partial(limits.rlimits.check_limits, params.limits)
        if not limits.rlimits.may_need_cgroup(params.limits):
            # Only a cgroup may need a slow call of systemd.
            check()
            return
        await call_after_stat(self._threads, (), check, program=params.argv[0])

    async def _call_in_thread(
        self,
        request: CheckedStart,
        work: Callable[[], T],
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Call `work` once `stat` of the start's directory and program has returned."""
        params = request.params
        looked_at = paths_to_check(request.executed, request.cwd, request.env, tty=params.tty)
        return await call_after_stat(self._threads, looked_at, work, undo, program=request.argv[0])

    async def _confine(self, request: CheckedStart) -> CommandSandbox | CannotConfine | None:
        """Return the sandbox of a start, None for no sandbox, or the reason it cannot be built."""
        profile = request.confinement
        if profile is None or isinstance(profile, CannotConfine):
            return profile
        program = request.params.argv[0]
        try:
            source = default_source() if self._sandboxes is None else self._sandboxes
            return await source.get(
                profile, cwd=request.cwd, env=request.env, threads=self._threads
            )
        except CannotEnforce as error:
            return CannotConfine(str(error))
        except TimeoutError:
            fault = errno.ETIMEDOUT
            text = f"the paths of the sandbox's profile do not answer: {system_text(fault)}"
            raise SpawnFailed(text, errno=fault, program=program) from None
        except SpawnFailed:
            # It names the path at fault, which is not the program.
            raise
        except OSError as error:
            # No descriptor is left to look with.
            text = f"the sandbox cannot be made: {system_text(error)}"
            raise SpawnFailed(text, errno=error.errno or None, program=program) from error

    async def _with_snapshot(
        self,
        request: CheckedStart,
        shell: ShellSnapshotParams,
        sandbox: CommandSandbox | None = None,
    ) -> CheckedStart:
        """Return a start with the profile of its shell, if that can be captured."""
        if self._snapshots is None:
            self._snapshots = cache.Snapshots(self._loop)
        params, env = request.params, request.env
        snapshot = await self._snapshots.get(params, shell, env, sandbox)
        if snapshot is None:
            return request
        given = {*params.env, *(params.env_policy.set if params.env_policy else ())}
        given.update(params.unset or ())
        argv, env = script.wrap(request.argv, snapshot, env=env, given=given)
        return request._replace(argv=argv, env=env)

    async def _spawn_in_thread(
        self, start: ProcessStart, request: CheckedStart, pending: PendingStart[LocalProcess]
    ) -> LocalProcess:
        """Spawn a child in a thread, so that the event loop does not wait for its files."""
        log = self._make_log(start.params)
        self._observers.prepared(start)
        try:
            child = await self._call_in_thread(
                request, partial(self._spawn, request), Child.discard
            )
        except SpawnFailed as error:
            self._log_failure(start.params, error)
            raise
        await _check_pending(pending, child)
        return self._adopt(start, child, log)

    async def _start_inside(
        self,
        sandbox: CommandSandbox,
        start: ProcessStart,
        request: CheckedStart,
        pending: PendingStart[LocalProcess],
    ) -> LocalProcess:
        """Start a command in a sandbox."""
        log = self._make_log(start.params)
        start.preparation = "sandbox"
        self._observers.prepared(start)
        try:
            child, held = await self._begin_inside(sandbox, request)
        except SpawnFailed as error:
            self._log_failure(start.params, error)
            raise
        await _check_pending(pending, child)
        process_id = start.params.process_id
        logger.debug("process %s is in a sandbox, isolation %s", process_id, held.isolation)
        return self._adopt(start, child, log, held)

    async def _begin_inside(
        self, sandbox: CommandSandbox, request: CheckedStart
    ) -> tuple[Child, Enforcement]:
        """Start a command in a sandbox, or in another for the same profile if it is outdated."""
        # Files that a sandbox hides or protects come and go with other servers of the user.
        with ExitStack() as planned:
            for _ in range(_SANDBOX_RETRIES):
                try:
                    return await _start_in(sandbox, request), sandbox.enforcement
                except SandboxOutdated:
                    again = await self._confine(request)
                    if again is None or isinstance(again, CannotConfine):
                        raise
                    sandbox = again
                    planned.callback(sandbox.close)
            return await _start_in(sandbox, request), sandbox.enforcement

    def _environment(self, params: StartParams) -> dict[str, str]:
        env = child_environment(params.env, params.env_policy, params.metadata, self._inherited)
        if params.tty:
            # The protocol sets SHELL, but never TERM [env.shell-on-terminal].
            env.setdefault("SHELL", self._shell)
        # After all other steps, so that a name is unset whatever set it.
        for name in params.unset or ():
            env.pop(name, None)
        return env

    def _spawn(self, request: CheckedStart) -> Child:
        params, env = request.params, request.env
        find = terminal_launch if params.tty else pipe_launch
        launch = find(request.argv, params.arg0, request.cwd, env)

        def start(launch: Launch, pass_fds: Sequence[int] = ()) -> Child:
            if params.tty:
                rows, cols = _terminal_size(params)
                return Child.on_terminal(launch, env, rows=rows, cols=cols, pass_fds=pass_fds)
            return Child.on_pipes(launch, env, pipe_stdin=params.pipe_stdin, pass_fds=pass_fds)

        try:
            if params.limits is None and not needs_descriptor_limit():
                return start(launch)
            return limits.rlimits.start_limited(start, launch, params.limits or ProcessLimits())
        except SpawnFailed:
            # Some subclasses are an `OSError` too, and must not be wrapped again below.
            raise
        except OSError as error:
            # No descriptor, terminal or memory is left.
            raise SpawnFailed(
                system_text(error), errno=error.errno or None, program=launch.program
            ) from error


class LocalBackend:
    """
    Starts processes on this machine.

    Use it as a context manager: at its end everything it started is killed.
    """

    def __init__(self, processes: ProcessRegistry | None = None) -> None:
        self._processes = ProcessRegistry() if processes is None else processes

    @classmethod
    def for_callers(cls) -> "LocalBackend":
        """Return a backend whose callers hold their processes: none stays findable by its id."""
        return cls(ProcessRegistry(shell=login_shell(), retention=0.0))

    async def __aenter__(self) -> "LocalBackend":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._processes.end(Reason.SERVER_STOPPING)
        # Bounded: a process that waits for a dead mount cannot be killed.
        await self._processes.wait_all_closed(2.0)

    async def start(self, params: StartParams) -> LocalProcess:
        process = self._processes.launch(params)
        # Most starts are complete already, and need no further turn of the event loop.
        if isinstance(process, Awaitable):
            process = await process
        # Before the process writes anything, so that a first reader misses nothing.
        process.open_events()
        return process


def _terminal_size(params: StartParams) -> tuple[int, int]:
    size = params.terminal_size
    return DEFAULT_SIZE if size is None else (size.rows, size.cols)


async def _start_in(sandbox: CommandSandbox, request: CheckedStart) -> Child:
    """
    Start a command in a sandbox.

    Raises:
        SpawnFailed: As `CommandSandbox.start`, or no descriptor is left.
    """
    params, argv, env = request.params, request.argv, request.env
    # On the host, as without a sandbox; the profile then decides about that directory.
    cwd = terminal_folder(request.cwd, env) if params.tty else request.cwd
    name = argv[0] if params.arg0 is None else params.arg0
    try:
        return await sandbox.start(
            Launch(argv[0], [name, *argv[1:]], cwd),
            env,
            terminal=_terminal_size(params) if params.tty else None,
            pipe_stdin=params.pipe_stdin,
            limits=params.limits,
        )
    except SpawnFailed as error:
        if error.path == cwd:
            # The cwd is at fault, so the error is about the command, not the launcher.
            error.program = argv[0]
        raise
    except OSError as error:
        raise SpawnFailed(system_text(error), errno=error.errno or None, program=argv[0]) from error


async def _check_pending(pending: PendingStart[LocalProcess], child: Child) -> None:
    """
    Check that the start was not called off in the meantime.

    Raises:
        InvalidRequest: It was called off; nothing is left of the child.
    """
    try:
        pending.check()
    except InvalidRequest:
        # The answer says so only when the child is gone.
        child.discard()
        await child.wait_reaped()
        raise
