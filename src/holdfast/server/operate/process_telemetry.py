"""Reports processes to telemetry."""

from weakref import WeakKeyDictionary

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.events import Reason, Verdict
from holdfast.telemetry import ProcessRecord, StartRecord, Telemetry

__all__ = ["ProcessRecorder"]


class ProcessRecorder(ProcessObserver):
    """Records the starts and exits of all sessions of a server."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        # Weak keys, so that the record of a start that never runs is dropped with it.
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
        # A request refused before the spawn is not recorded; see `StartRecord`.
        if isinstance(error, SpawnFailed):
            record.failed(start.sandbox_type)

    def exited(self, process: LoggedProcess, verdict: Verdict) -> None:
        self._running.pop(process).finish(_result(verdict), verdict.exit_code)


def _result(verdict: Verdict) -> str:
    if verdict.exit_code is None:
        return "unknown"
    # For all other reasons, this server killed the process.
    if verdict.reason not in (Reason.EXITED, Reason.SIGNALED):
        return "terminated"
    return "success" if verdict.exit_code == 0 else "error"
