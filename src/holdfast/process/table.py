"""
The processes of one owner, by the owner's ids: starting, finding, forgetting.

The order of the checks of a start is part of the protocol (exec-server spec 7.2).
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from weakref import WeakValueDictionary

from holdfast.errors import (
    DuplicateProcess,
    InvalidParams,
    InvalidRequest,
    SpawnFailed,
    UnknownProcess,
)
from holdfast.events import Reason, Verdict
from holdfast.process.child import Child
from holdfast.process.env import child_environment
from holdfast.process.local import LocalProcess
from holdfast.process.program import pipe_launch, terminal_launch
from holdfast.process.pty import DEFAULT_SIZE
from holdfast.process.shell_snapshot import applies, check_scope, wrap
from holdfast.process.snapshots import Snapshots
from holdfast.process.spawn import system_text
from holdfast.protocol.paths import ForeignPathUri
from holdfast.protocol.process import ShellSnapshotParams, StartParams

__all__ = ["RETENTION", "LocalProcesses"]

logger = logging.getLogger(__name__)

RETENTION = 30.0
"""Seconds a closed process can still be read, and its id is not free."""


class _SlowStart:
    """A start that has to wait for something. Nothing of it runs before it is awaited."""

    def __init__(
        self, run: Callable[["_SlowStart"], Coroutine[object, None, LocalProcess]]
    ) -> None:
        self._run = run
        self.called_off = False

    def __await__(self) -> Generator[object, None, LocalProcess]:
        return self._run(self).__await__()


class LocalProcesses:
    """
    The processes of one owner, by the owner's ids.

    A process stays for `RETENTION` seconds after its close, then its id is free.
    """

    def __init__(
        self,
        *,
        inherited: Mapping[str, str] | None = None,
        shell: str = "/bin/sh",
        started: Callable[[LocalProcess], None] = lambda process: None,
        ended: Callable[[LocalProcess], None] = lambda process: None,
        retention: float = RETENTION,
    ) -> None:
        """
        Args:
            inherited: What an environment policy inherits; this process's own by default.
            shell: The user's login shell, for terminals without a `SHELL`.
            started: Called with each process before anything of it is logged.
            ended: Called with each process at its close.
            retention: Seconds a closed process is kept.
        """
        self._loop = asyncio.get_running_loop()
        self._inherited = os.environ if inherited is None else inherited
        self._shell = shell
        self._started = started
        self._ended = ended
        self._retention = retention
        self._processes: dict[str, LocalProcess] = {}
        # Closed processes and when to forget them, the oldest first; one timer serves all.
        self._closed: deque[tuple[float, LocalProcess]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        # Starts that have to wait for something before the process is there, as long
        # as somebody holds them: one that is dropped before it runs frees its id.
        self._starting: WeakValueDictionary[str, _SlowStart] = WeakValueDictionary()
        self._snapshots = Snapshots(self._loop)

    def __iter__(self) -> Iterator[LocalProcess]:
        return iter(self._processes.values())

    def __len__(self) -> int:
        return len(self._processes)

    def find(self, process_id: str) -> LocalProcess | None:
        """The process of that id, if there is one."""
        return self._processes.get(process_id)

    def get(self, process_id: str) -> LocalProcess:
        """
        The process of that id.

        Raises:
            UnknownProcess: There is none.
            InvalidRequest: Its start is still under way.
        """
        process = self._processes.get(process_id)
        if process is None:
            if process_id in self._starting:
                raise InvalidRequest(f"process id {process_id} is starting")
            raise UnknownProcess(process_id)
        return process

    def is_starting(self, process_id: str) -> bool:
        """Whether a start of that id is under way and waits for something."""
        return process_id in self._starting

    def terminate(self, process_id: str, *, tree: bool = False) -> bool:
        """Kill a process, or call off its start; whether there was anything to end."""
        starting = self._starting.get(process_id)
        if starting is not None:
            starting.called_off = True
            return True
        process = self._processes.get(process_id)
        return process is not None and process.terminate(tree=tree)

    def launch(self, params: StartParams) -> LocalProcess | Awaitable[LocalProcess]:
        """
        Start a process; an awaitable only if a shell's profile has to be captured for it.

        The order of the checks is part of the protocol (exec-server spec 7.2). A
        start that fails leaves no trace: the id is free.

        Raises:
            InvalidParams: The arguments cannot be served.
            DuplicateProcess: The id is taken.
            SpawnFailed: The system refused.
        """
        refuse_unsupported(params)
        snapshot = params.shell_snapshot
        if snapshot is not None:
            check_scope(snapshot)
        if not params.argv:
            raise InvalidParams("argv must not be empty")
        if params.process_id in self._processes or params.process_id in self._starting:
            raise DuplicateProcess(params.process_id)
        if snapshot is not None and applies(params.argv, snapshot):
            start = _SlowStart(lambda start: self._launch_from_snapshot(params, snapshot, start))
            self._starting[params.process_id] = start
            return start
        return self._launch(params, params.argv, self._environment(params))

    def _launch(
        self, params: StartParams, argv: Sequence[str], env: Mapping[str, str]
    ) -> LocalProcess:
        try:
            child = self._spawn(params, argv, env)
        except SpawnFailed as error:
            verdict = Verdict(reason=Reason.SPAWN_FAILED, detail=str(error))
            logger.info("process %s was not started: %s", params.process_id, verdict)
            raise
        process = LocalProcess(self._loop, params, child, self._process_closed)
        self._processes[params.process_id] = process
        self._started(process)
        return process

    async def _launch_from_snapshot(
        self, params: StartParams, request: ShellSnapshotParams, start: "_SlowStart"
    ) -> LocalProcess:
        try:
            env = self._environment(params)
            snapshot = await self._snapshots.get(params, request, env)
            if start.called_off:
                raise InvalidRequest(f"process {params.process_id} start was cancelled")
        finally:
            del self._starting[params.process_id]
        if snapshot is None:
            return self._launch(params, params.argv, env)
        given = {*params.env, *(params.env_policy.set if params.env_policy else ())}
        argv, env = wrap(params.argv, snapshot, env=env, given=given)
        return self._launch(params, argv, env)

    def end(self, reason: Reason) -> None:
        """Kill every process and what is left of its group; nothing is kept after its close."""
        self._retention = 0.0
        for starting in list(self._starting.values()):
            starting.called_off = True
        for process in list(self._processes.values()):
            process.kill_group(reason)

    async def wait_all_closed(self, limit: float) -> bool:
        """Wait until nothing runs any more, for so many seconds at most."""
        try:
            async with asyncio.timeout(limit):
                for process in list(self._processes.values()):
                    await process.wait_closed()
        except TimeoutError:
            return False
        return True

    def _environment(self, params: StartParams) -> dict[str, str]:
        env = child_environment(params.env, params.env_policy, params.metadata, self._inherited)
        if params.tty:
            env.setdefault("SHELL", self._shell)
        return env

    def _spawn(self, params: StartParams, argv: Sequence[str], env: Mapping[str, str]) -> Child:
        cwd = native_cwd(params)
        try:
            if params.tty:
                launch = terminal_launch(argv, params.arg0, cwd, env)
                size = params.terminal_size
                rows, cols = DEFAULT_SIZE if size is None else (size.rows, size.cols)
                return Child.on_terminal(launch, env, rows=rows, cols=cols)
            launch = pipe_launch(argv, params.arg0, cwd, env)
            return Child.on_pipes(launch, env, pipe_stdin=params.pipe_stdin)
        except OSError as error:
            # No descriptor, no terminal or no memory left.
            raise SpawnFailed(system_text(error.errno or 0), errno=error.errno) from error

    def _process_closed(self, process: LocalProcess) -> None:
        self._ended(process)
        self._closed.append((self._loop.time() + self._retention, process))
        if self._timer is None:
            self._timer = self._loop.call_later(self._retention, self._forget_old)

    def _forget_old(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._closed and self._closed[0][0] <= now:
            _, process = self._closed.popleft()
            if self._processes.get(process.process_id) is process:
                del self._processes[process.process_id]
        if self._closed:
            self._timer = self._loop.call_at(self._closed[0][0], self._forget_old)


def native_cwd(params: StartParams) -> str:
    """
    The folder to start in.

    Raises:
        InvalidParams: It is a folder of another kind of machine.
    """
    try:
        return params.cwd.native
    except ForeignPathUri as error:
        raise InvalidParams(
            f"cwd URI `{params.cwd}` is not valid on this exec-server host: {error}"
        ) from None


def refuse_unsupported(params: StartParams) -> None:
    """
    Refuse what asks for a protection that is not there.

    A client believes a server that ignores such a request, so ignoring it is
    never an option. A profile of the type `disabled` asks for nothing.

    Raises:
        InvalidParams: With what is missing.
    """
    if params.network_proxy is not None:
        raise InvalidParams("network proxies are not supported by this exec-server")
    native_cwd(params)
    if params.sandbox is not None:
        permissions = params.sandbox.get("permissions")
        if permissions is None:
            raise InvalidParams("missing field `permissions`")
        if not isinstance(permissions, dict) or permissions.get("type") != "disabled":
            raise InvalidParams("sandboxed processes are not supported by this exec-server")
    if params.managed_network is not None:
        raise InvalidParams("managed networking is not supported by this exec-server")
