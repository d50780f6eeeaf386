"""
Registry of the processes of one owner, by the owner's ids: starts, finds and forgets them.

The order of the checks of a start is part of the protocol [start.check-order].
"""

import errno
import logging
import os
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.base.errors import (
    CannotEnforce,
    DuplicateProcess,
    InvalidParams,
    InvalidRequest,
    SpawnFailed,
)
from holdfast.base.late_import import late_module
from holdfast.base.system_text import system_text
from holdfast.engine.process import limits
from holdfast.engine.process.admission import (
    NO_PROXY,
    failing_command,
    is_sandboxed,
    manages_network,
    native_cwd,
    refuse_managed_network,
    refuse_unsupported,
)
from holdfast.engine.process.checked_arguments import check_streams
from holdfast.engine.process.child import Child
from holdfast.engine.process.closed_processes import RETENTION
from holdfast.engine.process.executable_lookup import (
    Launch,
    pipe_launch,
    terminal_folder,
    terminal_launch,
)
from holdfast.engine.process.io.epoll import readers_of
from holdfast.engine.process.io.input_budget import InputBudget
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.engine.process.pending_start import PendingStart
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.process_table import MakeLog, ProcessTable, TableSettings, plain_log
from holdfast.engine.process.pty import DEFAULT_SIZE
from holdfast.engine.process.reachable import (
    call_after_stat,
    can_start_without_waiting,
    paths_to_check,
)
from holdfast.engine.process.sandbox_source import (
    CommandSandbox,
    SandboxOutdated,
    SandboxSource,
    default_source,
)
from holdfast.engine.process.spawn import needs_descriptor_limit
from holdfast.engine.process.start_threads import StartThreads
from holdfast.engine.process.variables import child_environment, without_tokens
from holdfast.events import Reason, Verdict
from holdfast.wire.protocol.process import (
    Enforcement,
    ProcessLimits,
    ShellSnapshotParams,
    StartParams,
    StreamsAtEnd,
)

if TYPE_CHECKING:
    from holdfast.engine.process.snapshots import script
    from holdfast.engine.process.snapshots import snapshot_cache as cache
else:
    # Few starts come with a snapshot of a shell.
    cache = late_module("holdfast.engine.process.snapshots.snapshot_cache")
    script = late_module("holdfast.engine.process.snapshots.script")

__all__ = ["ProcessRegistry"]

logger = logging.getLogger(__name__)

# Plans after the first one for a sandbox whose files changed while it was built.
_SANDBOX_RETRIES = 3


class ProcessRegistry(ProcessTable[LocalProcess]):
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
        # The epoll instance is made now: once a child runs, nothing may fail because no
        # descriptor is left.
        readers_of(self._loop)
        self._inherited = os.environ if inherited is None else inherited
        self._shell = shell
        self._input_budget = InputBudget() if input_budget is None else input_budget
        self._sandboxes = sandboxes
        # Made with the first start that wants one.
        self._snapshots: cache.Snapshots | None = None
        self._threads = StartThreads()

    def terminate(
        self,
        process_id: str,
        *,
        tree: bool = False,
        left: bool = False,
        streams: StreamsAtEnd = "close",
    ) -> bool:
        check_streams(streams)
        starting = self._starting.get(process_id)
        if starting is not None:
            starting.call_off()
            return True
        process = self._processes.get(process_id)
        return process is not None and process.terminate(tree=tree, left=left, streams=streams)

    def launch(self, params: StartParams) -> LocalProcess | Awaitable[LocalProcess]:
        """
        Start a process. Return an awaitable only if the start has to wait.

        A start waits for the capture of a shell's profile, for a sandbox, for limits, or for
        files that the kernel has not cached: their mount may be dead.

        The order of the checks is part of the protocol [start.check-order].
        """
        start = ProcessStart(params)
        self._observers.preparing(start)
        try:
            return self._checked_launch(start)
        except BaseException as error:
            # Observers that counted the start have to hear of its end, whatever it was.
            self._observers.failed(start, error)
            raise

    def _checked_launch(self, start: ProcessStart) -> LocalProcess | Awaitable[LocalProcess]:
        params = start.params
        refuse_unsupported(params)
        snapshot = params.shell_snapshot
        if snapshot is not None:
            script.check_scope(snapshot)
        if not params.argv:
            raise InvalidParams("argv must not be empty")
        if params.process_id in self._processes or params.process_id in self._starting:
            raise DuplicateProcess(params.process_id)
        snapshot = (
            snapshot if snapshot is not None and script.applies(params.argv, snapshot) else None
        )
        env = self._environment(params)
        # Most programs and directories are cached. Such a start is made in the loop, without a
        # switch to a thread and back.
        no_wait = can_start_without_waiting(
            _executed(params), native_cwd(params), env, tty=params.tty
        )
        if (
            not no_wait
            or snapshot is not None
            or is_sandboxed(params)
            or manages_network(params)
            or params.limits is not None
        ):
            pending: PendingStart[LocalProcess] = PendingStart(
                params.process_id,
                lambda pending: self._launch_slowly(start, snapshot, env, pending, no_wait=no_wait),
                is_plain=snapshot is None and params.sandbox is None,
            )
            self._starting[params.process_id] = pending
            return pending
        return self._launch(start, params.argv, env)

    def _launch(
        self,
        start: ProcessStart,
        argv: Sequence[str],
        env: Mapping[str, str],
        instead: StartParams | None = None,
    ) -> LocalProcess:
        """Spawn the requested process in the event loop, or `instead` under its id."""
        params = start.params
        # Before the spawn: if the log cannot be made, no process may run.
        log = self._make_log(params)
        self._observers.prepared(start)
        try:
            child = self._spawn(params if instead is None else instead, argv, env)
        except SpawnFailed as error:
            self._log_failure(params, error)
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
        # Registered before the observers are called: they may look it up by its id.
        self._processes[process.process_id] = process
        self._observers.started(start, process)
        return process

    def _log_failure(self, params: StartParams, error: SpawnFailed) -> None:
        verdict = Verdict(reason=Reason.SPAWN_FAILED, detail=str(error))
        logger.debug("process %s was not started: %s", params.process_id, verdict)

    async def _launch_slowly(
        self,
        start: ProcessStart,
        request: ShellSnapshotParams | None,
        env: Mapping[str, str],
        pending: PendingStart[LocalProcess],
        *,
        no_wait: bool,
    ) -> LocalProcess:
        params = start.params
        sandbox = None
        try:
            if params.limits is not None:
                await self._check_limits(params)
            # The capture of a profile and the sandbox look at the same files in the loop.
            if not no_wait and (request is not None or is_sandboxed(params)):
                await self._wait_reachable(params, env)
            pending.check()
            sandbox = await self._sandbox(params, env)
            if sandbox is not None:
                # Whatever enforces it: with a token, a command could use its server to get out.
                env = without_tokens(env)
            argv: Sequence[str] = params.argv
            if request is not None and not isinstance(sandbox, CannotEnforce):
                if self._snapshots is None:
                    self._snapshots = cache.Snapshots(self._loop)
                snapshot = await self._snapshots.get(params, request, env, sandbox)
                if snapshot is not None:
                    given = {*params.env, *(params.env_policy.set if params.env_policy else ())}
                    given.update(params.unset or ())
                    argv, env = script.wrap(argv, snapshot, env=env, given=given)
            pending.check()
            if isinstance(sandbox, CannotEnforce):
                # The real server starts its launcher, which fails [sandbox.launcher-fails].
                # `arg0` and limits were meant for the command, not for this shell.
                failing_params = msgspec.structs.replace(params, arg0=None, limits=None)
                # Without the request's variables: this shell is in no sandbox, and a variable
                # such as `LD_PRELOAD` could make it run code of the client.
                argv = failing_command(str(sandbox), NO_PROXY if manages_network(params) else 1)
                return self._launch(start, argv, {}, failing_params)
            if sandbox is not None:
                return await self._launch_sandboxed(start, argv, env, sandbox, pending)
            # Not in the loop with limits: the child sets them itself, and is waited for.
            if no_wait and params.limits is None:
                return self._launch(start, argv, env)
            return await self._launch_in_thread(start, argv, env, pending)
        except BaseException as error:
            self._observers.failed(start, error)
            raise
        finally:
            del self._starting[params.process_id]
            # The command has a reservation of its own by now.
            if sandbox is not None and not isinstance(sandbox, CannotEnforce):
                sandbox.close()
            # Last: requests that waited for this start find the process, or no start any more.
            for call in pending.afterwards or ():
                call()

    async def _check_limits(self, params: StartParams) -> None:
        """Refuse limits that cannot be enforced; this may have to ask systemd about cgroups."""
        # The caller has checked that.
        assert params.limits is not None
        check = partial(limits.rlimits.check_limits, params.limits)
        if not limits.rlimits.may_need_cgroup(params.limits):
            # Only a cgroup may need a slow call of systemd.
            check()
            return
        await call_after_stat(self._threads, (), check, program=params.argv[0])

    async def _wait_reachable(self, params: StartParams, env: Mapping[str, str]) -> None:
        """Wait until `stat` of the start's directory and program has returned, well or not."""
        looked_at = paths_to_check(_executed(params), native_cwd(params), env, tty=params.tty)
        await call_after_stat(self._threads, looked_at, lambda: None, program=params.argv[0])

    async def _launch_in_thread(
        self,
        start: ProcessStart,
        argv: Sequence[str],
        env: Mapping[str, str],
        pending: PendingStart[LocalProcess],
    ) -> LocalProcess:
        """Spawn a child in a thread, so that the event loop does not wait for its files."""
        params = start.params
        log = self._make_log(params)
        self._observers.prepared(start)
        try:
            child = await call_after_stat(
                self._threads,
                paths_to_check(_executed(params), native_cwd(params), env, tty=params.tty),
                partial(self._spawn, params, argv, env),
                Child.discard,
                program=argv[0],
            )
        except SpawnFailed as error:
            self._log_failure(params, error)
            raise
        await _check_pending(pending, child)
        return self._adopt(start, child, log)

    async def _sandbox(
        self, params: StartParams, env: Mapping[str, str]
    ) -> CommandSandbox | CannotEnforce | None:
        """Return the sandbox of a start, None for no sandbox, or the reason it cannot be built."""
        if manages_network(params):
            return refuse_managed_network(env)
        if params.sandbox is None or not is_sandboxed(params):
            return None
        try:
            source = default_source() if self._sandboxes is None else self._sandboxes
            return await source.get(
                params.sandbox, cwd=native_cwd(params), env=env, threads=self._threads
            )
        except TimeoutError:
            fault = errno.ETIMEDOUT
            text = f"the paths of the sandbox's profile do not answer: {system_text(fault)}"
            raise SpawnFailed(text, errno=fault, program=params.argv[0]) from None
        except SpawnFailed:
            # It names the path at fault, which is not the program.
            raise
        except OSError as error:
            # No descriptor is left to look with.
            raise SpawnFailed(
                f"the sandbox cannot be made: {system_text(error)}",
                errno=error.errno or None,
                program=params.argv[0],
            ) from error

    async def _launch_sandboxed(
        self,
        start: ProcessStart,
        argv: Sequence[str],
        env: Mapping[str, str],
        sandbox: CommandSandbox,
        pending: PendingStart[LocalProcess],
    ) -> LocalProcess:
        params = start.params
        cwd = native_cwd(params)
        terminal = None
        if params.tty:
            terminal = _terminal_size(params)
            # On the host, as without a sandbox; the profile then decides about that directory.
            cwd = terminal_folder(cwd, env)
        name = argv[0] if params.arg0 is None else params.arg0
        log = self._make_log(params)
        start.preparation = "sandbox"
        self._observers.prepared(start)

        def begin(inside: CommandSandbox) -> Awaitable[Child]:
            return inside.start(
                Launch(argv[0], [name, *argv[1:]], cwd),
                env,
                terminal=terminal,
                pipe_stdin=params.pipe_stdin,
                limits=params.limits,
            )

        held = sandbox.enforcement
        try:
            try:
                child = await begin(sandbox)
            except SandboxOutdated as error:
                child, held = await self._begin_again(params, env, begin, error)
        except SpawnFailed as error:
            if error.path == cwd:
                # The cwd is at fault, so the error is about the command, not the launcher.
                error.program = argv[0]
            self._log_failure(params, error)
            raise
        except OSError as error:
            raise SpawnFailed(
                system_text(error), errno=error.errno or None, program=argv[0]
            ) from error
        await _check_pending(pending, child)
        logger.debug("process %s is in a sandbox, isolation %s", params.process_id, held.isolation)
        return self._adopt(start, child, log, held)

    async def _begin_again(
        self,
        params: StartParams,
        env: Mapping[str, str],
        begin: Callable[[CommandSandbox], Awaitable[Child]],
        error: SandboxOutdated,
    ) -> tuple[Child, Enforcement]:
        """
        Start a command in a sandbox that is planned anew.

        Files that a sandbox hides or keeps come and go with other servers of the user.

        Raises:
            SpawnFailed: It cannot be built again and again.
        """
        for _ in range(_SANDBOX_RETRIES):
            sandbox = await self._sandbox(params, env)
            if sandbox is None or isinstance(sandbox, CannotEnforce):
                break
            try:
                return await begin(sandbox), sandbox.enforcement
            except SandboxOutdated as again:
                error = again
            finally:
                sandbox.close()
        raise error

    def end(self, reason: Reason) -> None:
        # Nobody will read them: without this, their output would stay for 80 seconds.
        self._closed.keep_no_more()
        self._call_off_starts()
        for process in list(self._processes.values()):
            process.kill_group(reason)

    def _environment(self, params: StartParams) -> dict[str, str]:
        env = child_environment(params.env, params.env_policy, params.metadata, self._inherited)
        if params.tty:
            # The real server does so as well, but never sets TERM [env.shell-on-terminal].
            env.setdefault("SHELL", self._shell)
        # After all other steps, so that a name is unset wherever it came from.
        for name in params.unset or ():
            env.pop(name, None)
        return env

    def _spawn(self, params: StartParams, argv: Sequence[str], env: Mapping[str, str]) -> Child:
        find = terminal_launch if params.tty else pipe_launch
        launch = find(argv, params.arg0, native_cwd(params), env)

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


def _terminal_size(params: StartParams) -> tuple[int, int]:
    size = params.terminal_size
    return DEFAULT_SIZE if size is None else (size.rows, size.cols)


def _executed(params: StartParams) -> Sequence[str]:
    """Return argv with the file to execute first: on a terminal, `arg0` names that file."""
    if not params.tty or params.arg0 is None:
        return params.argv
    return [params.arg0, *params.argv[1:]]


async def _check_pending(pending: PendingStart[LocalProcess], child: Child) -> None:
    """
    Check that nobody gave up the start in the meantime.

    Raises:
        InvalidRequest: It was given up; nothing is left of the child.
    """
    try:
        pending.check()
    except InvalidRequest:
        # The answer says so only when the child is gone.
        child.discard()
        await child.wait_reaped()
        raise
