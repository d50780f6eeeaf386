"""The processes of a session with a recorder beside them; without one, nobody imports this."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.errors import SpawnFailed
from holdfast.events import Reason, Verdict
from holdfast.process.local import LocalProcess
from holdfast.process.output import LogListener
from holdfast.process.table import LocalProcesses, SlowStart
from holdfast.protocol.process import StartParams
from holdfast.telemetry import ProcessRecord, StartRecord, Telemetry

if TYPE_CHECKING:
    from holdfast.process.sandboxes import Sandbox

__all__ = ["WatchedProcesses"]


class WatchedProcesses(LocalProcesses):
    """Records how each start and each process ends."""

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        shell: str,
        started: Callable[[LocalProcess], None],
        retention: float,
    ) -> None:
        super().__init__(shell=shell, started=started, retention=retention)
        self._telemetry = telemetry
        # By the identity of their params: an id may be asked for twice at once.
        self._records: dict[int, StartRecord] = {}

    def launch(self, params: StartParams) -> LocalProcess | Awaitable[LocalProcess]:
        record = self._telemetry.start(params)
        self._records[id(params)] = record
        try:
            process = super().launch(params)
        finally:
            del self._records[id(params)]
        if isinstance(process, LocalProcess):
            return process
        return self._launch_later(params, record, process)

    async def _launch_later(
        self, params: StartParams, record: StartRecord, process: Awaitable[LocalProcess]
    ) -> LocalProcess:
        self._records[id(params)] = record
        try:
            return await process
        finally:
            del self._records[id(params)]

    def _launch(
        self,
        params: StartParams,
        argv: Sequence[str],
        env: Mapping[str, str],
        instead: StartParams | None = None,
    ) -> LocalProcess:
        record = self._records[id(params)]
        record.prepared("shell_snapshot")
        sandbox_type = "none" if params.sandbox is None else _SANDBOX_TYPE
        try:
            process = super()._launch(params, argv, env, instead)
        except SpawnFailed:
            record.failed(sandbox_type)
            raise
        process.log.subscribe(_Exit(record.started(sandbox_type)))
        return process

    async def _launch_enclosed(
        self,
        params: StartParams,
        argv: Sequence[str],
        env: Mapping[str, str],
        sandbox: "Sandbox",
        start: SlowStart,
    ) -> LocalProcess:
        record = self._records[id(params)]
        record.prepared("sandbox")
        try:
            process = await super()._launch_enclosed(params, argv, env, sandbox, start)
        except SpawnFailed:
            record.failed(_SANDBOX_TYPE)
            raise
        process.log.subscribe(_Exit(record.started(_SANDBOX_TYPE)))
        return process


_SANDBOX_TYPE = "linuxSeccomp"


class _Exit(LogListener):
    """Waits in the log of a process for its exit, which may come long before its close."""

    def __init__(self, record: ProcessRecord) -> None:
        self._record = record

    def exited(self, seq: int, verdict: Verdict) -> None:
        self._record.finish(_result(verdict), verdict.exit_code)


def _result(verdict: Verdict) -> str:
    if verdict.exit_code is None:
        return "unknown"
    if verdict.reason not in (Reason.EXITED, Reason.SIGNALED):
        return "terminated"
    return "success" if verdict.exit_code == 0 else "error"
