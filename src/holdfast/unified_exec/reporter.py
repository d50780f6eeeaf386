"""Makes the result of a call, and lets go of the command if that has ended."""

import secrets
from collections.abc import Iterable

from holdfast.events import WaitingFor
from holdfast.unified_exec.arguments.tool_arguments import ExecArguments, WriteArguments
from holdfast.unified_exec.errors import ProcessFailed, UnknownProcessId
from holdfast.unified_exec.options import Options
from holdfast.unified_exec.output.call_output import CallOutput
from holdfast.unified_exec.result import ExecResult
from holdfast.unified_exec.sessions.owner import HeldSession, SessionOwner
from holdfast.unified_exec.sessions.session import CommandSession
from holdfast.unified_exec.sessions.store import CAPACITY, CROWDED
from holdfast.unified_exec.text.truncate import used_policy

__all__ = ["Reporter"]

_INPUT_NOTES = {
    WaitingFor.LINE: "The program waits for a line of input.",
    WaitingFor.PASSWORD: "The program waits for a password, or another line it does not show.",
    WaitingFor.KEY: "The program waits for a key, or for a line that it edits itself.",
}


class Reporter:
    """Reports the commands of one set of tools."""

    def __init__(self, owner: SessionOwner, options: Options) -> None:
        self._owner = owner
        self._options = options

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
            raise ProcessFailed(session.failure)
        if held.cleaned:
            raise UnknownProcessId(session.session_id)
        exit_code = session.exit_code
        left = False
        if exit_code is not None and not session.killed:
            left = await self._owner.end_what_was_left(held)
        # Before the notes, so that the result names the sessions and counts those that are left.
        gone = (*pruned, *self._owner.prune(coming=0))
        captured = session.take_output()
        selected = None if output is None else output.selected()
        notes = self._notes(session)
        budget = used_policy(arguments.max_output_tokens, self._options.model_policy).budget
        if self._options.extras and selected is None and captured.size > budget:
            # A model does not see the ids of its calls.
            notes = (*notes, f'read_output with call_id "{call_id}" shows what is cut.')
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
            notes=notes,
            max_output_tokens=arguments.max_output_tokens,
            model_policy=self._options.model_policy,
        )
        held.announcer.output_lost = False
        if exit_code is not None:
            self._owner.release(held)
        return result

    def _notes(self, session: CommandSession) -> tuple[str, ...]:
        notes = []
        if session.waiting_for is not None:
            notes.append(_INPUT_NOTES[session.waiting_for])
        count = len(self._owner.store)
        if count >= CROWDED:
            notes.append(
                f"{count} of at most {CAPACITY} sessions are open; the one used longest ago is"
                " ended to make room."
            )
        return tuple(notes)
