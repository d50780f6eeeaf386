"""
The processes of one session, by the client's ids: found, observed and forgotten.

A table also starts processes, in the way of its subclass: `ProcessRegistry` starts them on this
machine, `server.backend_processes` on any `ExecBackend`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable
from weakref import WeakValueDictionary

from holdfast.backends import at_once
from holdfast.base.dialect import limits, texts
from holdfast.base.errors import DuplicateProcess, InvalidRequest, Overloaded, UnknownProcess
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import Observers, ProcessObserver, ProcessStart
from holdfast.events import Reason
from holdfast.wire.protocol.process import StartParams, StreamsAtEnd, check_streams

__all__ = [
    "MAX_OUTPUT",
    "RETENTION",
    "ClosedProcesses",
    "MakeLog",
    "OpensSessions",
    "PendingStart",
    "ProcessTable",
    "TableSettings",
    "plain_log",
]

# Seconds after a resume in which no process with unacknowledged output is forgotten.
_RESUMED_TIME = 5.0

# Seconds that a closed process can still be read and its id stays taken.
RETENTION = limits.PROCESS_KEPT

MAX_OUTPUT = 64 << 20
"""Bytes of memory for the output of all closed processes of one table."""


class ClosedProcesses:
    """
    Closed processes, the oldest first; one timer forgets them all.

    Beyond `MAX_OUTPUT`, the output of the oldest is dropped, unless it is not acknowledged.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        retention: float,
        forget: Callable[[LoggedProcess], None],
    ) -> None:
        """
        Args:
            loop: Has the clock and the timer.
            retention: Seconds a closed process is kept.
            forget: Called with each process whose time is over.
        """
        self._loop = loop
        self._retention = retention
        self._forget = forget
        # With the time at which to forget each.
        self._closed: deque[tuple[float, LoggedProcess]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        # Times at which the forgetting was paused, and at which it last went on.
        self._paused_at: float | None = None
        self._resumed_at = -_RESUMED_TIME
        # At least the memory of all output: it becomes less without notice here, when a client
        # acknowledges or a process is forgotten.
        self._output = 0
        # Where to count it again: not at each close, if nothing can be dropped.
        self._recount_at = MAX_OUTPUT

    def add(self, process: LoggedProcess) -> None:
        """Keep a process that was closed just now."""
        self._closed.append((self._loop.time() + self._retention, process))
        # A timer that runs is for an older process, and is set again after it.
        if self._timer is None and self._paused_at is None:
            self._timer = self._loop.call_later(self._retention, self._forget_old)
        # Without a retention time, only a reader in this program can keep the log, and needs it.
        if self._retention:
            self._output += process.log.memory
            if self._output > self._recount_at:
                self._drop_output()

    def exceeds(self) -> bool:
        """Return True if the output takes too much memory, and nothing of it can be dropped."""
        if self._output > MAX_OUTPUT:
            self._drop_output()
        return self._output > MAX_OUTPUT

    def keep_no_more(self) -> None:
        """Forget each process at its close from now on: nobody will read it."""
        self._retention = 0.0

    def pause(self) -> None:
        """Keep all until `resume`; for a client that is disconnected."""
        if self._paused_at is None:
            self._paused_at = self._loop.time()
        # `resume` sets it anew, by the times that are left.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def resume(self) -> None:
        """
        Let the retention time of all go on where it was paused.

        The time does not start again: a client whose connection breaks again and again would
        keep every process that ever ended. Unacknowledged output is kept `_RESUMED_TIME` longer.
        """
        if self._paused_at is None:
            return
        now = self._loop.time()
        pause = now - self._paused_at
        self._paused_at = None
        self._resumed_at = now
        # All by the same amount, so the order by time stays.
        self._closed = deque((due + pause, process) for due, process in self._closed)
        if self._closed:
            self._timer = self._loop.call_at(self._closed[0][0], self._forget_old)

    def _forget_old(self) -> None:
        self._timer = None
        now = self._loop.time()
        protected_until = self._resumed_at + min(_RESUMED_TIME, self._retention)
        while self._closed and self._closed[0][0] <= now:
            _, process = self._closed.popleft()
            # The client may have lost this output with its connection, and is about to ask.
            if now < protected_until and process.log.has_pinned_output:
                self._closed.append((protected_until, process))
            else:
                self._forget(process)
        if self._closed:
            self._timer = self._loop.call_at(self._closed[0][0], self._forget_old)

    def _drop_output(self) -> None:
        """Drop the oldest output until a quarter of the memory is free."""
        self._output = sum(process.log.memory for _, process in self._closed)
        for _, process in self._closed:
            if self._output <= MAX_OUTPUT - MAX_OUTPUT // 4:
                break
            before = process.log.memory
            process.log.drop_output()
            self._output -= before - process.log.memory
        self._recount_at = max(MAX_OUTPUT, self._output + MAX_OUTPUT // 4)


P = TypeVar("P", bound=LoggedProcess)
R = TypeVar("R")

MakeLog = Callable[[StartParams], OutputLog]
"""Makes the log of a process that is about to be started."""


def plain_log(params: StartParams) -> OutputLog:
    """Return a log that keeps its output in memory, within the usual limits."""
    return OutputLog()


class TableSettings(NamedTuple):
    """Settings that hold for every table of a server."""

    observers: Iterable[ProcessObserver] = ()
    """Called at each start and each end."""
    make_log: MakeLog = plain_log
    """Called before each start. An error that it raises becomes the error of the start."""
    retention: float = RETENTION
    """Seconds a closed process is kept."""


class PendingStart(Generic[P]):
    """
    A start that has to wait for files, a sandbox, limits or another machine.

    Nothing of it runs before it is awaited.
    """

    def __init__(
        self,
        process_id: str,
        run: Callable[["PendingStart[P]"], Coroutine[object, None, P]],
        *,
        is_plain: bool = False,
    ) -> None:
        """
        Args:
            process_id: The client's id of the process, for the error.
            run: Performs the start; called once, with this object.
            is_plain: True if callers must see no difference to an immediate start, as when it only
                waits for files (see `ProcessTable.call_after_start`).
        """
        self._process_id = process_id
        self._run = run
        self.called_off = False
        """True after `call_off`; `check` reports it at the next step."""
        self.afterwards: list[Callable[[], None]] | None = [] if is_plain else None
        """Callbacks for its end, called in order; None if it is not plain."""
        self.task: asyncio.Task[None] | None = None
        """The task that performs it, once its connection is lost; `call_off` cancels it."""

    def call_off(self) -> None:
        """Cancel the start; at its next step it notices that and cleans up."""
        self.called_off = True
        # No client waits for its answer, so it need not reach its next step.
        if self.task is not None:
            self.task.cancel()

    def check(self) -> None:
        """
        Raise if the start was called off; call this after each wait.

        Raises:
            InvalidRequest: The start was called off.
        """
        if self.called_off:
            raise InvalidRequest(texts.start_cancelled(self._process_id))

    # Not a task: a start that its caller drops must not run, and its id must be free again.
    def __await__(self) -> Generator[object, None, P]:
        return self._run(self).__await__()


Complete = Callable[[ProcessStart, PendingStart[P]], Coroutine[Any, Any, P]]
"""Performs a start that has to wait."""


class ProcessTable(ABC):
    """
    The processes of one owner, by the owner's ids.

    A process is kept for the retention time after its close. Then its id is free.
    """

    on_this_machine = False
    """True if its pids are those of this machine, so that daemons can be found by a mark."""

    def __init__(self, settings: TableSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self._observers = Observers(settings.observers)
        self._make_log = settings.make_log
        # By the client's ids, from the start until the process is forgotten.
        self._processes: dict[str, LoggedProcess] = {}
        self._closed = ClosedProcesses(self._loop, settings.retention, self._forget)
        # Starts that wait before their process is spawned. Weak references: a start that its
        # caller drops without awaiting it frees its id.
        self._starting: WeakValueDictionary[str, PendingStart[Any]] = WeakValueDictionary()

    def __iter__(self) -> Iterator[LoggedProcess]:
        return iter(self._processes.values())

    def __len__(self) -> int:
        return len(self._processes)

    def find(self, process_id: str) -> LoggedProcess | None:
        """Return the process with that id, or None."""
        return self._processes.get(process_id)

    def get(self, process_id: str) -> LoggedProcess:
        """
        Return the process with that id.

        Raises:
            UnknownProcess: No process has that id.
            InvalidRequest: The process is still being started.
        """
        process = self._processes.get(process_id)
        if process is None:
            # The id is taken, although there is no process yet.
            if process_id in self._starting:
                raise InvalidRequest(texts.process_starting(process_id))
            raise UnknownProcess(process_id)
        return process

    def add_observer(self, observer: ProcessObserver) -> None:
        """Add an observer of all further events, those of running processes included."""
        self._observers.add(observer)

    def call_after_start(self, process_id: str, call: Callable[[], None]) -> bool:
        """
        Call back when a start that waits without the client's knowledge has succeeded or failed.

        Returns:
            False if there is no such start; then nothing will be called.
        """
        # Registered in the same step of the event loop that calls back, so never before that.
        if process_id in self._processes:
            return False
        starting = self._starting.get(process_id)
        # Without a list of callbacks, clients get the error that the process is starting.
        if starting is None or starting.afterwards is None:
            return False
        starting.afterwards.append(call)
        return True

    def keep_start(self, process_id: str, task: asyncio.Task[None]) -> None:
        """
        Note that the client of a start is gone: only `terminate` or `end` cancels its task.

        The process may run already. A client that returns finds it by its id; until then it gets
        the error that the process is starting, since its other processes must not wait for a slow
        start.
        """
        starting = self._starting.get(process_id)
        # None if it has just succeeded or failed.
        if starting is not None:
            starting.task = task
            calls, starting.afterwards = starting.afterwards or (), None
            for call in calls:
                call()

    def is_starting(self, process_id: str) -> bool:
        """Return True if a start with that id is under way and has to wait."""
        return process_id in self._starting

    def check_output(self) -> None:
        """
        Raise if no process may be started, since too much output is not acknowledged.

        Raises:
            Overloaded: The output of closed processes takes more than `MAX_OUTPUT`.
        """
        if self._closed.exceeds():
            raise Overloaded(
                f"{MAX_OUTPUT >> 20} MiB of output of closed processes are not acknowledged"
            )

    @abstractmethod
    def launch(self, params: StartParams) -> LoggedProcess | Awaitable[LoggedProcess]:
        """
        Start a process. Return an awaitable only if the start has to wait.

        A start that fails leaves no trace: the id is free again.

        Raises:
            InvalidParams: The request cannot be served.
            DuplicateProcess: The id is taken.
            SpawnFailed: The system refused.
        """

    @at_once
    def terminate(
        self,
        process_id: str,
        *,
        tree: bool = False,
        left: bool = False,
        streams: StreamsAtEnd = "close",
    ) -> bool | Coroutine[Any, Any, bool]:
        """
        Kill a process as `ExecProcess.terminate` does, or cancel its start.

        An unknown id is not an error: there is nothing to kill.
        """
        check_streams(streams)
        starting = self._starting.get(process_id)
        if starting is not None:
            starting.call_off()
            return True
        process = self._processes.get(process_id)
        return process is not None and process.terminate(tree=tree, left=left, streams=streams)

    def end(self, reason: Reason) -> None:
        """Kill every process and its group, cancel all starts, and keep no closed process."""
        # They have no readers left: without this, their output would stay for 80 seconds.
        self._closed.keep_no_more()
        # Each notices that at its next step and cleans up.
        for starting in list(self._starting.values()):
            starting.call_off()
        for process in list(self._processes.values()):
            process.kill_group(reason)

    async def wait_all_closed(self, limit: float) -> bool:
        """Wait until all processes are closed; return False after `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                # A copy: closed processes may be forgotten meanwhile.
                for process in list(self._processes.values()):
                    await process.wait()
        except TimeoutError:
            return False
        return True

    def pause_forgetting(self) -> None:
        """Keep closed processes until `resume_forgetting`; for a client that is disconnected."""
        self._closed.pause()

    def resume_forgetting(self) -> None:
        """Resume the retention times of closed processes; see `ClosedProcesses.resume`."""
        self._closed.resume()

    # -- for subclasses

    def _begin(self, params: StartParams, launch: Callable[[ProcessStart], R]) -> R:
        """Begin a start with `launch`, and report it to the observers."""
        start = ProcessStart(params)
        self._observers.preparing(start)
        try:
            return launch(start)
        except BaseException as error:
            # Observers that counted the start need its end, whatever it was.
            self._observers.failed(start, error)
            raise

    def _check_free(self, process_id: str) -> None:
        """Raise `DuplicateProcess` if an id is taken."""
        if process_id in self._processes or process_id in self._starting:
            raise DuplicateProcess(process_id)

    def _start_later(
        self, start: ProcessStart, complete: Complete[P], *, is_plain: bool
    ) -> PendingStart[P]:
        """Return a start that has to wait; `complete` performs it when it is awaited."""
        process_id = start.params.process_id

        async def run(pending: PendingStart[P]) -> P:
            try:
                return await complete(start, pending)
            except BaseException as error:
                self._observers.failed(start, error)
                raise
            finally:
                del self._starting[process_id]
                # Last: requests that waited for it now find the process, or no start.
                for call in pending.afterwards or ():
                    call()

        pending = self._starting[process_id] = PendingStart(process_id, run, is_plain=is_plain)
        return pending

    def _add(self, start: ProcessStart, process: LoggedProcess) -> None:
        """Report a process that was started."""
        # Registered before the observers are called: they may look it up by its id.
        self._processes[process.process_id] = process
        self._observers.started(start, process)

    def _process_closed(self, process: LoggedProcess) -> None:
        """Report a close, and forget the process later."""
        self._observers.closed(process)
        self._closed.add(process)

    def _forget(self, process: LoggedProcess) -> None:
        # Another process may have the id by now, if this one was closed long ago.
        if self._processes.get(process.process_id) is process:
            del self._processes[process.process_id]
            self._observers.forgotten(process)


# Checked once per server, so the cost of a runtime check does not matter.
@runtime_checkable
class OpensSessions(Protocol):
    """
    Optional fast path of a backend that is served: it has a separate table for each session.

    A server wraps every other `ExecBackend` in tables that read its event streams. A backend
    that can answer requests without a task saves that detour.
    """

    def open_session(self, settings: TableSettings) -> ProcessTable:
        """Return the empty table of a new session."""
