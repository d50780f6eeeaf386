"""Notes on the calls of a model: how a command stands, and what to do about a failure."""

import errno
import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.errors import ConnectionLost, HoldfastError, RemoteError, ServerGone, SpawnFailed
from holdfast.events import Denial, Verdict, WaitingFor
from holdfast.late_import import late_module
from holdfast.notes import Advice, Note, NoteKind, verdict_notes
from holdfast.protocol.sandbox import ManagedProfile, SandboxContext
from holdfast.unified_exec.hooks import StartRequest
from holdfast.unified_exec.options import Options
from holdfast.unified_exec.sessions.session import CommandSession
from holdfast.unified_exec.sessions.store import CAPACITY, CROWDED
from holdfast.unified_exec.text.truncate import used_policy

if TYPE_CHECKING:
    from holdfast.approvals import policies, write_access
else:
    # Only denials, and tools with approvals, need these.
    policies = late_module("holdfast.approvals.policies")
    write_access = late_module("holdfast.approvals.write_access")

__all__ = ["NoteWriter", "error_notes"]

_INPUT = {
    WaitingFor.LINE: "The program waits for a line of input.",
    WaitingFor.PASSWORD: "The program waits for a password, or another line it does not show.",
    WaitingFor.KEY: "The program waits for a key, or for a line that it edits itself.",
}


class NoteWriter:
    """Writes the notes on the commands of one set of tools."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._advice = _advice(options)

    def of_command(self, session: CommandSession, request: StartRequest) -> Iterator[Note]:
        """Yield the notes on a command: what it waits for, or how it ended."""
        if request.cwd_missing:
            yield Note(NoteKind.DIRECTORY, _home_instead(session.cwd))
        if session.waiting_for is not None:
            yield Note(NoteKind.INPUT, _INPUT[session.waiting_for])
        if session.killed:
            yield Note(NoteKind.KILLED, "The command was killed on request.")
        elif session.verdict is not None:
            yield from self._of_end(session.verdict, request)

    def _of_end(self, verdict: Verdict, request: StartRequest) -> tuple[Note, ...]:
        writable = None
        if verdict.denial is not None:
            writable = _writable(verdict.denial, request)
        return verdict_notes(
            verdict, advice=self._advice, offline=_is_offline(request.sandbox), writable=writable
        )

    def of_output(self, size: int, call_id: str, max_output_tokens: int | None) -> Iterator[Note]:
        """
        Yield a note if output is cut.

        Args:
            size: Bytes of the whole output of the call.
            call_id: The id of the call, which models do not see.
            max_output_tokens: The budget that the call asked for.
        """
        if size <= used_policy(max_output_tokens, self._options.model_policy).budget:
            return
        if self._options.extras:
            text = f'read_output with call_id "{call_id}" shows what is cut.'
        else:
            text = "The middle of the output is cut; write it to a file to see all of it."
        yield Note(NoteKind.CUT, text)

    def of_crowd(self, count: int, pruned: tuple[int, ...]) -> Iterator[Note]:
        """Yield the notes on the number of sessions, and on those that had to go."""
        if pruned:
            ended = ", ".join(map(str, pruned))
            yield Note(NoteKind.SESSIONS, f"Session {ended} was ended to make room for this one.")
        if count >= CROWDED:
            text = (
                f"{count} of at most {CAPACITY} sessions are open; the one used longest ago is"
                " ended to make room."
            )
            yield Note(NoteKind.SESSIONS, text)


def error_notes(error: BaseException) -> tuple[Note, ...]:
    """Return the notes on a call that failed, from the errors behind it."""
    cause: BaseException | None = error
    while cause is not None:
        note = _error_note(cause)
        if note is not None:
            return (note,)
        cause = cause.__cause__
    return ()


def _error_note(error: BaseException) -> Note | None:
    if isinstance(error, ServerGone):
        text = "The server stopped, and its commands ended with it; start them again."
        return Note(NoteKind.SERVER_STOPPED, text)
    if isinstance(error, ConnectionLost):
        text = (
            "The connection to the server is lost, and so are its commands; start them again when"
            " it is back."
        )
        return Note(NoteKind.CONNECTION_LOST, text)
    if isinstance(error, SpawnFailed) and error.path is not None and error.errno in _DIRECTORY:
        text = f"The working directory `{error.path}` {_DIRECTORY[error.errno]}; {_ANOTHER}."
        return Note(NoteKind.DIRECTORY, text)
    if isinstance(error, RemoteError) and error.message.endswith("(os error 2)"):
        # All that a server of another kind says: the shell may be missing as well.
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
        f"The working directory `{cwd}` does not exist, so the command ran in the home directory;"
        f" {_ANOTHER}."
    )


def _is_offline(sandbox: SandboxContext | None) -> bool:
    if sandbox is None or not isinstance(sandbox.permissions, ManagedProfile):
        return False
    return sandbox.permissions.network == "restricted"


def _writable(denial: Denial, request: StartRequest) -> bool | None:
    """Return whether the sandbox of a command lets the path of a denial be written."""
    if denial.path is None:
        return None
    try:
        # A script may have changed its directory; then this is another path, and a guess.
        path = posixpath.normpath(posixpath.join(request.cwd.native, denial.path))
        return write_access.write_access(request.sandbox).may_write(path)
    except HoldfastError:
        # Paths of another operating system, or known only where the command runs.
        return None


def _advice(options: Options) -> Advice:
    """Return how a model gets what the sandbox denies."""
    approvals = options.approvals
    asked = approvals is not None and approvals.approver is not None
    if approvals is None or not asked:
        return _NOT_ASKED
    if not policies.as_policy(approvals.policy).may_ask(policies.PromptKind.SANDBOX):
        return _NOT_ASKED
    how = "with_additional_permissions" if approvals.additional_permissions else "require_escalated"
    ask = f"; to ask for it, run it again with `sandbox_permissions: {how}` and a `justification`"
    return Advice(files=ask, network=ask)


_NOT_ASKED = Advice(
    files="; no call can ask for it, only the user can allow it",
    network="; no call can ask for it, only the user can allow it",
)
