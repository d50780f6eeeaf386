"""Builds the result of a call with its notes, and releases the command if it has ended."""

import errno
import posixpath
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments, WriteArguments
from holdfast.agent.unified_exec.hooks import StartRequest
from holdfast.agent.unified_exec.options import Options
from holdfast.agent.unified_exec.output.call_output import CallOutput
from holdfast.agent.unified_exec.result import ExecResult
from holdfast.agent.unified_exec.sessions.command_session import CommandSession
from holdfast.agent.unified_exec.sessions.owner import CAPACITY, CROWDED, HeldSession, SessionOwner
from holdfast.agent.unified_exec.text.truncate import used_policy
from holdfast.agent.unified_exec.tool_errors import CreateProcess, ProcessFailed, UnknownProcessId
from holdfast.base.errors import ConnectionLost, HoldfastError, RemoteError, ServerGone, SpawnFailed
from holdfast.base.late_import import late_module
from holdfast.environments.environment import Environment
from holdfast.environments.notes import Advice, Note, NoteKind, verdict_notes
from holdfast.events import Denial, WaitingFor
from holdfast.wire.protocol.sandbox import ManagedProfile, SandboxContext

if TYPE_CHECKING:
    from holdfast.agent.approvals import policies, write_access
else:
    # Only needed for denials and approvals.
    policies = late_module("holdfast.agent.approvals.policies")
    write_access = late_module("holdfast.agent.approvals.write_access")

__all__ = ["Reporter", "error_notes", "file_note"]

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
        Return the result of a call, and release a command that has ended.

        Raises:
            ProcessFailed: The process was lost.
            UnknownProcessId: All sessions were ended meanwhile.
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
            left = await self._owner.end_leftovers(held)
        # Before the notes, so that the result names ended sessions and counts the remaining ones.
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


_INPUT = {
    WaitingFor.LINE: "The program waits for a line of input.",
    WaitingFor.PASSWORD: "The program waits for a password, or another line it does not show.",
    WaitingFor.KEY: "The program waits for a key, or for a line that it edits itself.",
}


class NoteWriter:
    """Writes the notes about the commands of one set of tools."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._advice = _advice(options)

    def of_command(
        self, session: CommandSession, request: StartRequest, environment: Environment
    ) -> Iterator[Note]:
        """Yield the notes about a command: what it waits for, or how it ended."""
        if session.running and not environment.is_connected:
            text = (
                "The connection to the server is lost for now, so what the command does is not"
                " known; look for its output again."
            )
            yield Note(NoteKind.CONNECTION_LOST, text)
        if request.cwd_missing:
            yield Note(NoteKind.DIRECTORY, _home_instead(session.cwd))
        if session.waiting_for is not None:
            yield Note(NoteKind.INPUT, _INPUT[session.waiting_for])
        if session.killed:
            yield Note(NoteKind.KILLED, "The command was killed on request.")
        elif session.verdict is not None:
            denial = session.verdict.denial
            yield from verdict_notes(
                session.verdict,
                advice=self._advice,
                offline=_is_offline(request.sandbox),
                writable=None if denial is None else _writable(denial, request),
            )

    def of_output(self, size: int, call_id: str, max_output_tokens: int | None) -> Iterator[Note]:
        """
        Yield a note if the output is truncated.

        Args:
            size: Bytes of the call's whole output.
            call_id: The id of the call, which the model does not know.
            max_output_tokens: The budget requested by the call.
        """
        if size <= used_policy(max_output_tokens, self._options.model_policy).budget:
            return
        if self._options.extras:
            text = f'read_output with call_id "{call_id}" shows what is cut.'
        else:
            text = "The middle of the output is cut; write it to a file to see all of it."
        yield Note(NoteKind.CUT, text)

    def of_crowd(self, count: int, pruned: tuple[int, ...]) -> Iterator[Note]:
        """Yield the notes about the number of sessions, and about those ended to make room."""
        if pruned:
            ended = ", ".join(map(str, pruned))
            yield Note(NoteKind.SESSIONS, f"Session {ended} was ended to make room for this one.")
        if count >= CROWDED:
            text = (
                f"{count} of at most {CAPACITY} sessions are open; the one used longest ago is"
                " ended to make room."
            )
            yield Note(NoteKind.SESSIONS, text)


def error_notes(error: HoldfastError) -> tuple[Note, ...]:
    """Return the notes about a failed call, from its error and the causes of that."""
    starting = isinstance(error, CreateProcess)
    cause: BaseException | None = error
    while cause is not None:
        note = _connection_note(cause) or (_directory_note(cause) if starting else None)
        if note is not None:
            return (note,)
        cause = cause.__cause__
    return ()


async def file_note(
    error: HoldfastError, environment: Environment, path: str, options: Options, *, writing: bool
) -> Note | None:
    """
    Return the note about a failed access to a file, if the sandbox may be the cause.

    Args:
        error: The error of the access.
        environment: The environment of the file, with its sandbox.
        path: The path as the caller wrote it.
        options: The options of the tools, which determine the advice.
        writing: True for a write.
    """
    if error.errno not in _REFUSED:
        return None
    sandbox = await environment.sandbox_context(options.sandbox)
    if sandbox is None:
        return None
    known = f"The sandbox may have denied access to `{path}`"
    if writing:
        uri = await environment.uri(path)
        writable = _may_write(sandbox, posixpath.normpath(uri.shown))
        if writable:
            return None
        if writable is False:
            known = f"The sandbox does not let commands write `{path}`"
    return Note(NoteKind.DENIED, f"{known}{_advice(options).files}.")


# Errors of the kernel for a denied access.
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def _connection_note(error: BaseException) -> Note | None:
    if isinstance(error, ServerGone):
        text = "The server stopped, and its commands ended with it; start them again."
        return Note(NoteKind.SERVER_STOPPED, text)
    if isinstance(error, ConnectionLost):
        text = (
            "The connection to the server is lost, and so are its commands; start them again when"
            " it is back."
        )
        return Note(NoteKind.CONNECTION_LOST, text)
    return None


def _directory_note(error: BaseException) -> Note | None:
    if isinstance(error, SpawnFailed) and error.path is not None and error.errno in _DIRECTORY:
        text = f"The working directory `{error.path}` {_DIRECTORY[error.errno]}; {_ANOTHER}."
        return Note(NoteKind.DIRECTORY, text)
    if isinstance(error, RemoteError) and error.message.endswith("(os error 2)"):
        # Other servers do not say more: the shell could also be missing.
        return Note(NoteKind.DIRECTORY, f"The working directory may not exist; {_ANOTHER}.")
    return None


_ANOTHER = "give another `workdir`, or create it first"

_DIRECTORY = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "is not a directory",
    errno.EACCES: "cannot be entered",
}


def _home_instead(cwd: str) -> str:
    return (
        f"The working directory `{cwd}` does not exist, so the command runs in the home directory;"
        f" {_ANOTHER}."
    )


def _is_offline(sandbox: SandboxContext | None) -> bool:
    if sandbox is None or not isinstance(sandbox.permissions, ManagedProfile):
        return False
    return sandbox.permissions.network == "restricted"


def _writable(denial: Denial, request: StartRequest) -> bool | None:
    """Return whether the sandbox of a command permits writing the path of a denial, if known."""
    if denial.path is None or request.sandbox is None:
        return None
    # A guess: a script may have changed its directory.
    path = posixpath.normpath(posixpath.join(request.cwd.shown, denial.path))
    return _may_write(request.sandbox, path)


def _may_write(sandbox: SandboxContext, path: str) -> bool | None:
    try:
        return write_access.write_access(sandbox).may_write(path)
    except HoldfastError:
        # Paths of another operating system, or that can only be resolved where the command runs.
        return None


def _advice(options: Options) -> Advice:
    """Return how a model can get access that the sandbox denies."""
    approvals = options.approvals
    if (
        approvals is None
        or approvals.approver is None
        or not policies.as_policy(approvals.policy).may_ask(policies.PromptKind.SANDBOX)
    ):
        refusal = "; no call can ask for it, "
        return Advice(
            files=f"{refusal}{options.write_advice}", network=f"{refusal}only the user can allow it"
        )
    how = "with_additional_permissions" if approvals.additional_permissions else "require_escalated"
    ask = f"; to ask for it, call `exec_command` with `sandbox_permissions: {how}`"
    return Advice(files=ask, network=ask)
