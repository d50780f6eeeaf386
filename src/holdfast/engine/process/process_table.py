"""
The processes of one session, by the client's ids: found, observed and forgotten.

A table starts processes too, but how is the matter of its subclass: `ProcessRegistry` starts
them on this machine, `server.backend_processes` on any `ExecBackend`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable
from weakref import WeakValueDictionary

from holdfast.base.errors import InvalidRequest, Overloaded, UnknownProcess
from holdfast.engine.process.closed_processes import MAX_OUTPUT, RETENTION, ClosedProcesses
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.observers import Observers, ProcessObserver
from holdfast.engine.process.pending_start import PendingStart
from holdfast.engine.process.served import ServedProcess
from holdfast.events import Reason
from holdfast.wire.protocol.process import StartParams, StreamsAtEnd

__all__ = ["MakeLog", "OpensSessions", "ProcessTable", "TableSettings", "plain_log"]

# Covariant: a registry of this machine's processes is a table of any processes.
P_co = TypeVar("P_co", bound=ServedProcess, covariant=True)

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


class ProcessTable(ABC, Generic[P_co]):
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
        self._processes: dict[str, P_co] = {}
        self._closed = ClosedProcesses(self._loop, settings.retention, self._forget)
        # Starts that wait before their process is spawned. Weak references: a start that its
        # caller drops without awaiting it frees its id.
        self._starting: WeakValueDictionary[str, PendingStart[P_co]] = WeakValueDictionary()

    def __iter__(self) -> Iterator[P_co]:
        return iter(self._processes.values())

    def __len__(self) -> int:
        return len(self._processes)

    def find(self, process_id: str) -> P_co | None:
        """Return the process with that id, or None."""
        return self._processes.get(process_id)

    def get(self, process_id: str) -> P_co:
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
                raise InvalidRequest(f"process id {process_id} is starting")
            raise UnknownProcess(process_id)
        return process

    def add_observer(self, observer: ProcessObserver) -> None:
        """Add an observer of all further events, those of running processes included."""
        self._observers.add(observer)

    def call_after_start(self, process_id: str, call: Callable[[], None]) -> bool:
        """
        Call back when a start whose wait a client need not know of has succeeded or failed.

        Returns:
            False if there is no such start; then nothing will be called.
        """
        # Registered in the same step of the event loop that calls back, so never before that.
        if process_id in self._processes:
            return False
        starting = self._starting.get(process_id)
        # Without a list of callbacks, clients are told that the process is starting.
        if starting is None or starting.afterwards is None:
            return False
        starting.afterwards.append(call)
        return True

    def keep_start(self, process_id: str, task: asyncio.Task[None]) -> None:
        """
        Note that the client of a start is gone: only `terminate` or `end` cancels its task.

        The process may run already. A client that comes back finds it by its id, and is told
        until then that it is starting: its other processes must not wait for a slow start.
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
    def launch(self, params: StartParams) -> P_co | Awaitable[P_co]:
        """
        Start a process. Return an awaitable only if the start has to wait.

        A start that fails leaves no trace: the id is free again.

        Raises:
            InvalidParams: The request cannot be served.
            DuplicateProcess: The id is taken.
            SpawnFailed: The system refused.
        """

    @abstractmethod
    def terminate(
        self,
        process_id: str,
        *,
        tree: bool = False,
        left: bool = False,
        streams: StreamsAtEnd = "close",
    ) -> bool | Awaitable[bool]:
        """
        Kill a process, or cancel its start; see `ExecProcess.terminate`.

        Returns:
            True if there was a process or a start to end; False also for an unknown id.

        Raises:
            InvalidParams: `streams` is not a known value.
            OperationFailed: The system refused.
        """

    @abstractmethod
    def end(self, reason: Reason) -> None:
        """Kill every process and its group, cancel all starts, and keep no closed process."""

    async def wait_all_closed(self, limit: float) -> bool:
        """Wait until all processes are closed; return False after `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                # A copy: closed processes may be forgotten meanwhile.
                for process in list(self._processes.values()):
                    await process.wait_closed()
        except TimeoutError:
            return False
        return True

    def pause_forgetting(self) -> None:
        """Keep closed processes until `resume_forgetting`; for a client that is disconnected."""
        self._closed.pause()

    def resume_forgetting(self) -> None:
        """Let the retention time of closed processes go on; see `ClosedProcesses.resume`."""
        self._closed.resume()

    # -- for subclasses

    def _call_off_starts(self) -> None:
        """Cancel all starts; each notices at its next step, and cleans up what it has made."""
        for starting in list(self._starting.values()):
            starting.call_off()

    def _process_closed(self, process: ServedProcess) -> None:
        """Report a close, and forget the process later."""
        self._observers.closed(process)
        self._closed.add(process)

    def _forget(self, process: ServedProcess) -> None:
        # Another process may have the id by now, if this one was closed long ago.
        if self._processes.get(process.process_id) is process:
            del self._processes[process.process_id]
            self._observers.forgotten(process)


# Checked once per server, so the cost of a runtime check does not matter.
@runtime_checkable
class OpensSessions(Protocol):
    """
    Optional fast path of a backend that is served: it has a table of its own for each session.

    A server wraps every other `ExecBackend` in tables that read its event streams. A backend
    that can answer requests without a task saves that detour.
    """

    def open_session(self, settings: TableSettings) -> ProcessTable[ServedProcess]:
        """Return the empty table of a new session."""
