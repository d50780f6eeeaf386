"""
Records the commands of one session in the log and in the audit log.

Variables, input and output are never recorded. Of a verdict, only fixed terms are recorded, not
text from the output.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic, time
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.engine.process.admission import is_sandboxed
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.events import Verdict
from holdfast.server.operate.records import (
    CommandRecord,
    DenialRecord,
    ExitRecord,
    Records,
    bounded,
)
from holdfast.server.sessions import Session, short_session
from holdfast.wire.log_event import clip, path_text
from holdfast.wire.protocol.process import StartParams
from holdfast.wire.protocol.sandbox import ExternalProfile, ManagedProfile

__all__ = ["SessionJournal"]

logger = logging.getLogger(__name__)


class SessionJournal(ProcessObserver):
    """Records the starts and exits of the processes of a session."""

    def __init__(self, session: Session, records: Records) -> None:
        self._session = session
        self._records = records
        self._short_id = short_session(session.id)
        # Records to write in the next iteration of the event loop, with their arguments.
        self._noted: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def started(self, start: ProcessStart, process: LoggedProcess) -> None:
        if self._records.are_wanted:
            self._note(self._record_start, time(), start.params, process)

    def failed(self, start: ProcessStart, error: BaseException) -> None:
        reason = clip(str(error)) if isinstance(error, HoldfastError) else type(error).__name__
        self._note(self._record_failure, time(), start.params, reason)

    def exited(self, process: LoggedProcess, verdict: Verdict) -> None:
        if self._records.are_wanted:
            seconds = monotonic() - process.started
            self._note(
                self._record_exit, time(), process, verdict, seconds, process.log.total_bytes
            )

    def _note(self, record: Callable[..., None], *arguments: object) -> None:
        """
        Call `record` in the next iteration of the event loop.

        Just after the start of a process the CPU caches are cold. Making the records of a burst
        of starts together takes a third of the time.
        """
        if not self._noted:
            asyncio.get_running_loop().call_soon(self._record_noted)
        self._noted.append((record, arguments))

    def _record_noted(self) -> None:
        noted, self._noted = self._noted, []
        for record, arguments in noted:
            try:
                record(*arguments)
            except Exception:
                # A faulty record must not prevent those after it.
                logger.exception("a command could not be recorded")

    def _record_start(self, at: float, params: StartParams, process: LoggedProcess) -> None:
        here = self._session.processes.on_this_machine
        isolation = _sandbox(params, process, on_this_machine=here)
        self._record_command(at, params, pid=process.pid, sandbox=isolation)

    def _record_failure(self, at: float, params: StartParams, reason: str) -> None:
        self._record_command(at, params, error=reason)

    def _record_exit(
        self, at: float, process: LoggedProcess, verdict: Verdict, seconds: float, output: int
    ) -> None:
        name = clip(process.process_id)
        # One record per attempt, before that of the exit.
        for attempt in verdict.network_attempts:
            denial = DenialRecord(
                principal=self._session.principal,
                session=self._short_id,
                decision="denied",
                process=name,
                pid=process.pid,
                program=attempt.program,
                family=attempt.family,
                kind=attempt.kind,
            )
            self._records.add(denial, at=at)
        record = ExitRecord(
            principal=self._session.principal,
            session=self._short_id,
            process=name,
            pid=process.pid,
            verdict=verdict.reason,
            exit_code=verdict.exit_code,
            signal=verdict.signal,
            limit=verdict.limit,
            denied=None if verdict.denial is None else verdict.denial.kind,
            seconds=round(seconds, 3),
            output_bytes=output,
        )
        self._records.add(record, at=at, program=clip(process.argv[0]))

    def _record_command(
        self,
        at: float,
        params: StartParams,
        *,
        pid: int | None = None,
        sandbox: str | None = None,
        error: str | None = None,
    ) -> None:
        argv, size, count = bounded(params.argv)
        record = CommandRecord(
            principal=self._session.principal,
            session=self._short_id,
            process=clip(params.process_id),
            pid=pid,
            argv=argv,
            argv_count=count,
            arg0=None if params.arg0 is None else clip(params.arg0),
            cwd=path_text(params.cwd),
            tty=params.tty,
            sandbox=sandbox,
            network=_network(params),
            error=error,
        )
        self._records.add(record, at=at, size=size)


def _sandbox(params: StartParams, process: LoggedProcess, *, on_this_machine: bool) -> str:
    """Return the isolation of a process: `none`, its level, `refused` or `unknown`."""
    if not is_sandboxed(params):
        return "none"
    if process.enforcement is not None:
        return process.enforcement.isolation
    # If its sandbox cannot be built, the process only prints the reason; see `admission`. Another
    # backend need not report what it enforces.
    return "refused" if on_this_machine else "unknown"


def _network(params: StartParams) -> str:
    """Return the network access that a command's profile grants."""
    if params.sandbox is None:
        return "unrestricted"
    profile = params.sandbox.permissions
    return (
        profile.network if isinstance(profile, ManagedProfile | ExternalProfile) else "unrestricted"
    )
