"""
Records the commands of one session in the log and in the audit log.

Variables, input and output are never recorded. Of a verdict only the fixed words are recorded,
not the texts that were found in the output.
"""

import logging
from time import monotonic
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.events import Verdict
from holdfast.log_event import LogEvent, clip, inform, path_text
from holdfast.process.admission import is_sandboxed
from holdfast.process.observers import ProcessObserver, ProcessStart
from holdfast.process.served import ServedProcess
from holdfast.protocol.process import StartParams
from holdfast.protocol.sandbox import ExternalProfile, ManagedProfile
from holdfast.server.sessions import Session, short_session

if TYPE_CHECKING:
    from holdfast.server.audit import AuditLog

__all__ = ["SessionJournal"]

logger = logging.getLogger(__name__)


class SessionJournal(ProcessObserver):
    """Observer that records each start and each exit of one session's processes."""

    def __init__(self, session: Session, audit: "AuditLog | None") -> None:
        self._session = session
        self._audit = audit
        self._short_id = short_session(session.id)

    def started(self, start: ProcessStart, process: ServedProcess) -> None:
        # Checked first, since this is on the path of every start.
        informs = logger.isEnabledFor(logging.INFO)
        if self._audit is None and not informs:
            return
        params = start.params
        here = self._session.processes.on_this_machine
        sandbox = _sandbox(params, process, on_this_machine=here)
        if informs:
            inform(
                logger,
                LogEvent(
                    "process started",
                    process=clip(params.process_id),
                    program=clip(params.argv[0]),
                    cwd=path_text(params.cwd, 256),
                    sandbox=sandbox,
                    pid=process.pid,
                    session=self._short_id,
                    principal=self._session.principal,
                ),
            )
        if self._audit is not None:
            self._write_command(self._audit, params, pid=process.pid, sandbox=sandbox)

    def failed(self, start: ProcessStart, error: BaseException) -> None:
        params = start.params
        reason = clip(str(error)) if isinstance(error, HoldfastError) else type(error).__name__
        program = clip(params.argv[0]) if params.argv else ""
        logger.info(
            LogEvent(
                "process not started",
                process=clip(params.process_id),
                program=program,
                cwd=path_text(params.cwd, 256),
                reason=reason,
                session=self._short_id,
                principal=self._session.principal,
            )
        )
        if self._audit is not None:
            self._write_command(self._audit, params, error=reason)

    def exited(self, process: ServedProcess, verdict: Verdict) -> None:
        informs = logger.isEnabledFor(logging.INFO)
        if self._audit is None and not informs:
            return
        duration = round(monotonic() - process.started, 3)
        written = process.log.total_bytes
        limit = None if verdict.limit is None else verdict.limit.value
        denial = None if verdict.denial is None else verdict.denial.kind.value
        if informs:
            inform(
                logger,
                LogEvent(
                    "process ended",
                    process=clip(process.process_id),
                    program=clip(process.argv[0]),
                    verdict=verdict.reason.value,
                    exit_code=verdict.exit_code,
                    signal=verdict.signal,
                    limit=limit,
                    denied=denial,
                    seconds=duration,
                    output_bytes=written,
                    pid=process.pid,
                    session=self._short_id,
                ),
            )
        if self._audit is None:
            return
        name = clip(process.process_id)
        # One line for each attempt, before the line of the exit that ends the story.
        for attempt in verdict.network_attempts:
            self._audit.write(
                "network",
                principal=self._session.principal,
                session=self._short_id,
                decision="denied",
                process=name,
                pid=process.pid,
                program=attempt.program,
                family=attempt.family,
                kind=attempt.kind,
            )
        self._audit.write(
            "exit",
            principal=self._session.principal,
            session=self._short_id,
            process=name,
            pid=process.pid,
            verdict=verdict.reason.value,
            exitCode=verdict.exit_code,
            signal=verdict.signal,
            limit=limit,
            denied=denial,
            seconds=duration,
            outputBytes=written,
        )

    def _write_command(
        self,
        audit: "AuditLog",
        params: StartParams,
        *,
        pid: int | None = None,
        sandbox: str | None = None,
        error: str | None = None,
    ) -> None:
        argv, size, count = audit.bounded(params.argv)
        audit.write(
            "command",
            size,
            principal=self._session.principal,
            session=self._short_id,
            process=clip(params.process_id),
            pid=pid,
            argv=argv,
            argvCount=count,
            arg0=None if params.arg0 is None else clip(params.arg0),
            cwd=path_text(params.cwd),
            tty=params.tty,
            sandbox=sandbox,
            network=_network(params),
            error=error,
        )


def _sandbox(params: StartParams, process: ServedProcess, *, on_this_machine: bool) -> str:
    """Return the isolation of a process: `none`, its level, `refused` or `unknown`."""
    if not is_sandboxed(params):
        return "none"
    if process.enforcement is not None:
        return process.enforcement.rung
    # A sandbox that cannot be built is a process that only prints the reason; see `admission`.
    # Another backend need not tell what it enforces.
    return "refused" if on_this_machine else "unknown"


def _network(params: StartParams) -> str:
    """Return the network access that the profile of a command gives."""
    profile = None if params.sandbox is None else params.sandbox.permissions
    return (
        profile.network if isinstance(profile, ManagedProfile | ExternalProfile) else "unrestricted"
    )
