"""Observer of processes that reports to telemetry."""

from weakref import WeakKeyDictionary

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.events import Reason, Verdict
from holdfast.telemetry import ProcessRecord, StartRecord, Telemetry

__all__ = ["ProcessRecorder"]


class ProcessRecorder(ProcessObserver):
    """Recorder of all starts and exits, for all sessions of a server."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        # Weak keys: a start that is dropped before it runs takes its record along.
        self._starts: WeakKeyDictionary[ProcessStart, StartRecord] = WeakKeyDictionary()
        self._running: dict[LoggedProcess, ProcessRecord] = {}

    def preparing(self, start: ProcessStart) -> None:
        self._starts[start] = self._telemetry.start(start.params)

    def prepared(self, start: ProcessStart) -> None:
        self._starts[start].prepared(start.preparation)

    def started(self, start: ProcessStart, process: LoggedProcess) -> None:
        record = self._starts.pop(start)
        self._running[process] = record.started(process.sandbox_type)

    def failed(self, start: ProcessStart, error: BaseException) -> None:
        record = self._starts.pop(start)
        # A request that was refused before the spawn is not recorded (`StartRecord`).
        if isinstance(error, SpawnFailed):
            record.failed(start.sandbox_type)

    def exited(self, process: LoggedProcess, verdict: Verdict) -> None:
        self._running.pop(process).finish(_result(verdict), verdict.exit_code)


def _result(verdict: Verdict) -> str:
    if verdict.exit_code is None:
        return "unknown"
    # All other reasons are kills by this server.
    if verdict.reason not in (Reason.EXITED, Reason.SIGNALED):
        return "terminated"
    return "success" if verdict.exit_code == 0 else "error"
