"""
Records the commands of one session in the log and in the audit log.

Variables, input and output are never recorded. Of a verdict only the fixed words are recorded,
not the texts that were found in the output.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import HoldfastError
from holdfast.engine.process.admission import is_sandboxed
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.events import Verdict
from holdfast.server.operate.audit_lines import CommandLine, DenialLine, ExitLine, bounded
from holdfast.server.sessions import Session, short_session
from holdfast.wire.log_event import LogEvent, clip, inform, path_text
from holdfast.wire.protocol.process import StartParams
from holdfast.wire.protocol.sandbox import ExternalProfile, ManagedProfile

if TYPE_CHECKING:
    from holdfast.server.operate.audit import AuditLog

__all__ = ["SessionJournal"]

logger = logging.getLogger(__name__)


class SessionJournal(ProcessObserver):
    """Observer that records each start and each exit of one session's processes."""

    def __init__(self, session: Session, audit: "AuditLog | None") -> None:
        self._session = session
        self._audit = audit
        self._short_id = short_session(session.id)
        # Records to make in the next round of the event loop, each with its arguments.
        self._noted: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def started(self, start: ProcessStart, process: LoggedProcess) -> None:
        if self._is_wanted():
            self._note(self._record_start, time(), start.params, process)

    def failed(self, start: ProcessStart, error: BaseException) -> None:
        reason = clip(str(error)) if isinstance(error, HoldfastError) else type(error).__name__
        self._note(self._record_failure, time(), start.params, reason)

    def exited(self, process: LoggedProcess, verdict: Verdict) -> None:
        if self._is_wanted():
            seconds = monotonic() - process.started
            self._note(
                self._record_exit, time(), process, verdict, seconds, process.log.total_bytes
            )

    def _is_wanted(self) -> bool:
        return self._audit is not None or logger.isEnabledFor(logging.INFO)

    def _note(self, record: Callable[..., None], *arguments: object) -> None:
        """
        Call `record` soon.

        Right after the start of a process nothing is in the processor's caches. Of a burst of
        starts the records are made together, in a third of the time.
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
                # One odd record must not cost those behind it.
                logger.exception("a command could not be recorded")

    def _record_start(self, at: float, params: StartParams, process: LoggedProcess) -> None:
        here = self._session.processes.on_this_machine
        line, size = self._command_line(
            params, pid=process.pid, sandbox=_sandbox(params, process, on_this_machine=here)
        )
        if logger.isEnabledFor(logging.INFO):
            inform(logger, _StartEvent(line), at)
        if self._audit is not None:
            self._audit.write(line, size, at=at)

    def _record_failure(self, at: float, params: StartParams, reason: str) -> None:
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
            self._audit.write(*self._command_line(params, error=reason), at=at)

    def _record_exit(
        self, at: float, process: LoggedProcess, verdict: Verdict, seconds: float, output: int
    ) -> None:
        name = clip(process.process_id)
        line = ExitLine(
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
        if logger.isEnabledFor(logging.INFO):
            inform(logger, _ExitEvent(line, clip(process.argv[0])), at)
        if self._audit is None:
            return
        # One line for each attempt, before the line of the exit that ends the story.
        for attempt in verdict.network_attempts:
            self._audit.write(
                DenialLine(
                    principal=self._session.principal,
                    session=self._short_id,
                    decision="denied",
                    process=name,
                    pid=process.pid,
                    program=attempt.program,
                    family=attempt.family,
                    kind=attempt.kind,
                ),
                at=at,
            )
        self._audit.write(line, at=at)

    def _command_line(
        self,
        params: StartParams,
        *,
        pid: int | None = None,
        sandbox: str | None = None,
        error: str | None = None,
    ) -> tuple[CommandLine, int]:
        """Return the line about a start, and the characters of its arguments."""
        argv, size, count = bounded(params.argv)
        line = CommandLine(
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
        return line, size


# The event loop only makes the lines. The thread that writes the log asks for their fields.


class _StartEvent(LogEvent):
    """The message about a start."""

    __slots__ = ("_line",)

    def __init__(self, line: CommandLine) -> None:
        self.text = "process started"
        self._line = line

    @property
    def fields(self) -> dict[str, str | int | float | None]:
        line = self._line
        return {
            "process": line.process,
            "program": clip(line.argv[0]),
            "cwd": clip(line.cwd),
            "sandbox": line.sandbox,
            "pid": line.pid,
            "session": line.session,
            "principal": line.principal,
        }


class _ExitEvent(LogEvent):
    """The message about an exit."""

    __slots__ = ("_line", "_program")

    def __init__(self, line: ExitLine, program: str) -> None:
        self.text = "process ended"
        self._line = line
        self._program = program

    @property
    def fields(self) -> dict[str, str | int | float | None]:
        line = self._line
        return {
            "process": line.process,
            "program": self._program,
            "verdict": line.verdict,
            "exit_code": line.exit_code,
            "signal": line.signal,
            "limit": line.limit,
            "denied": line.denied,
            "seconds": line.seconds,
            "output_bytes": line.output_bytes,
            "pid": line.pid,
            "session": line.session,
        }


def _sandbox(params: StartParams, process: LoggedProcess, *, on_this_machine: bool) -> str:
    """Return the isolation of a process: `none`, its level, `refused` or `unknown`."""
    if not is_sandboxed(params):
        return "none"
    if process.enforcement is not None:
        return process.enforcement.isolation
    # A sandbox that cannot be built is a process that only prints the reason; see `admission`.
    # Another backend need not tell what it enforces.
    return "refused" if on_this_machine else "unknown"


def _network(params: StartParams) -> str:
    """Return the network access that the profile of a command gives."""
    if params.sandbox is None:
        return "unrestricted"
    profile = params.sandbox.permissions
    return (
        profile.network if isinstance(profile, ManagedProfile | ExternalProfile) else "unrestricted"
    )
