"""
Notes on the end of a command: one sentence each on what happened and what to do about it.

A note states what is known from the verdict and the sandbox. A guess from the output of a command
is phrased as a possibility.
"""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.events import Denial, DenialKind, Reason, Verdict
from holdfast.wire.protocol.limits import LimitKind, limit_of

__all__ = ["NO_ADVICE", "Advice", "Note", "NoteKind", "verdict_notes"]

# Maximum characters of a path or program in a note; both may come from output.
_LONGEST_NAME = 200


class NoteKind(StrEnum):
    """Subject of a note."""

    DENIED = "denied"
    """The sandbox denied access to a file, or a system call."""
    NETWORK = "network"
    """The command asked for a network that its sandbox does not have."""
    LIMIT = "limit"
    """The command reached one of its limits, or its timeout."""
    SERVER_STOPPED = "serverStopped"
    """The server stopped and ended the command."""
    CONNECTION_LOST = "connectionLost"
    """The connection to the server was lost, or could not be made."""
    DIRECTORY = "directory"
    """The working directory does not exist, or cannot be entered."""
    CUT = "cut"
    """Some of the output is not shown."""
    OUTPUT_LOST = "outputLost"
    """Some of the output was not kept."""
    INPUT = "input"
    """The command is waiting for input."""
    KILLED = "killed"
    """The command was killed on request."""
    LEFT_BEHIND = "leftBehind"
    """Processes that the command left behind were ended."""
    SESSIONS = "sessions"
    """There are many sessions, or one was ended to make room."""


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on a result."""

    kind: NoteKind
    text: str
    """One sentence, for a model or a person."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on getting what a sandbox denied; each text ends a sentence after a semicolon."""

    files: str = ""
    network: str = ""


NO_ADVICE = Advice()


def verdict_notes(
    verdict: Verdict,
    *,
    advice: Advice = NO_ADVICE,
    offline: bool = False,
    writable: bool | None = None,
) -> tuple[Note, ...]:
    """
    Return the notes on the end of a command.

    Args:
        verdict: The end.
        advice: How to get what a sandbox denied.
        offline: True if its sandbox is known to have no network.
        writable: Whether its sandbox allows writes to the path of the denial; None if unknown.
    """
    found = []
    ended = _ended(verdict)
    if ended is not None:
        found.append(ended)
    denial = verdict.denial
    if verdict.network_attempts or (denial is not None and denial.network):
        found.append(_no_network(verdict, advice, offline=offline))
    if denial is not None and not denial.network:
        denied = _denied(denial, advice, writable=writable)
        if denied is not None:
            found.append(denied)
    return tuple(found)


def _ended(verdict: Verdict) -> Note | None:
    """Return the note on why a command ended, unless it ended by itself or on request."""
    match verdict.reason:
        case Reason.LIMIT:
            return Note(NoteKind.LIMIT, _limit(verdict))
        case Reason.TIMED_OUT:
            text = f"The command {verdict}; give it more time, or less to do."
            return Note(NoteKind.LIMIT, text)
        case Reason.SERVER_STOPPING:
            text = "The server stopped and ended the command; start it again when it is back."
            return Note(NoteKind.SERVER_STOPPED, text)
        case Reason.SESSION_EXPIRED:
            text = (
                "The connection to the server was lost for so long that the server ended the"
                " command; start it again."
            )
            return Note(NoteKind.CONNECTION_LOST, text)
        case _:
            return None


def _limit(verdict: Verdict) -> str:
    kind = verdict.limit
    # The kernel reports these only to the program, so its output is the only evidence.
    guessed = kind is not None and kind is not LimitKind.OTHER and bool(limit_of(kind).messages)
    if verdict.detail is None:
        met = "met one of its limits"
    elif guessed:
        met = f"probably {verdict.detail}"
    else:
        met = f"{verdict.detail}, which is its limit, and was ended"
    return f"The command {met}; give it less to do at a time, or let the user raise the limit."


def _no_network(verdict: Verdict, advice: Advice, *, offline: bool) -> Note:
    if verdict.network_attempts:
        program = _clean(verdict.network_attempts[0].program) or "the command"
        known = f"The sandbox has no network, and {program} asked for it"
    elif offline:
        known = "The sandbox has no network, which the command seems to need"
    else:
        known = "The sandbox may have denied the network"
    return Note(NoteKind.NETWORK, f"{known}{advice.network}.")


def _denied(denial: Denial, advice: Advice, *, writable: bool | None) -> Note | None:
    """Return the note on a denial; None if the sandbox is known not to be its cause."""
    path = _clean(denial.path)
    match denial.kind:
        case DenialKind.SYSTEM_CALL:
            known = "The sandbox ended the command for a system call that it does not allow"
            return Note(NoteKind.DENIED, f"{known}.")
        case DenialKind.UNKNOWN:
            known = "The server reports that the sandbox denied something"
        case DenialKind.READ_ONLY_FILE_SYSTEM if path and (denial.reason or writable is False):
            # Both the kernel, in the program's words, and the sandbox say so.
            known = f"The sandbox does not let commands write `{path}`"
        case DenialKind.PERMISSION_DENIED | DenialKind.OPERATION_NOT_PERMITTED if (
            writable and denial.reason is None
        ):
            # The mode or owner of the file is the cause.
            return None
        case _:
            about = f"access to `{path}`" if path else "something"
            known = f"The sandbox may have denied {about}"
    if denial.reason is not None:
        known += f" ({denial.reason})"
    hint = "" if denial.hint is None else f"; {denial.hint}"
    return Note(NoteKind.DENIED, f"{known}{advice.files}{hint}.")


def _clean(text: str | None) -> str | None:
    """Return a name from the output of a command, or None if it would garble a sentence."""
    fits = text and len(text) <= _LONGEST_NAME and text.isprintable() and "`" not in text
    return text if fits else None
