"""Makes the result of a call, and lets go of the command if that has ended."""

import secrets
from collections.abc import Iterable

from holdfast.notes import Note, NoteKind
from holdfast.unified_exec.arguments.tool_arguments import ExecArguments, WriteArguments
from holdfast.unified_exec.errors import ProcessFailed, UnknownProcessId
from holdfast.unified_exec.exec_notes import NoteWriter
from holdfast.unified_exec.options import Options
from holdfast.unified_exec.output.call_output import CallOutput
from holdfast.unified_exec.result import ExecResult
from holdfast.unified_exec.sessions.owner import HeldSession, SessionOwner

__all__ = ["Reporter"]

_LEFT = Note(
    NoteKind.LEFT_BEHIND,
    "What the command left in the background was ended with it; keep the command itself running"
    " to keep a session.",
)
_LOST = Note(NoteKind.OUTPUT_LOST, "Some output is missing: its server keeps it no longer.")


class Reporter:
    """Reports the commands of one set of tools."""

    def __init__(self, owner: SessionOwner, options: Options) -> None:
        self._owner = owner
        self._options = options
        self._notes = NoteWriter(options)

    async def report(
        self,
        held: HeldSession,
        call_id: str,
        wall_time: float,
        arguments: ExecArguments | WriteArguments,
        *,
        output: CallOutput | None,
        pruned: Iterable[int] = (),
    ) -> ExecResult:
        """
        Return the result of a call, and let go of a command that has ended.

        Raises:
            ProcessFailed: It cannot be followed any more.
            UnknownProcessId: All sessions were cleaned meanwhile.
        """
        session = held.session
        if session.failure is not None:
            self._owner.release(held)
            raise ProcessFailed(session.failure) from session.failure_cause
        if held.cleaned:
            raise UnknownProcessId(session.session_id)
        exit_code = session.exit_code
        left = False
        if exit_code is not None and not session.killed:
            left = await self._owner.end_what_was_left(held)
        # Before the notes, so that the result names the sessions and counts those that are left.
        gone = (*pruned, *self._owner.prune(coming=0))
        captured = session.output.report()
        selected = None if output is None else output.selected()
        notes = [*self._notes.of_command(session, held.attempt.request, held.environment)]
        if left:
            notes.append(_LEFT)
        if held.announcer.output_lost:
            notes.append(_LOST)
        if selected is None:
            notes += self._notes.of_output(captured.size, call_id, arguments.max_output_tokens)
        notes += self._notes.of_crowd(len(self._owner.store), gone)
        result = ExecResult(
            call_id=call_id,
            chunk_id=secrets.token_hex(3),
            wall_time=wall_time,
            captured=captured,
            exit_code=exit_code,
            session_id=session.session_id if exit_code is None else None,
            command=session.argv,
            verdict=session.verdict,
            killed=session.killed,
            left_behind=left,
            output_lost=held.announcer.output_lost,
            pruned_sessions=gone,
            selected=selected,
            ended_by=None if output is None else output.ended_by,
            pattern_given_up=output is not None and output.pattern_given_up,
            waiting_for=session.waiting_for,
            notes=tuple(notes),
            show_notes=self._options.notes,
            max_output_tokens=arguments.max_output_tokens,
            model_policy=self._options.model_policy,
        )
        held.announcer.output_lost = False
        if exit_code is not None:
            self._owner.release(held)
        return result
