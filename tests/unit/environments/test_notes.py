"""Notes on the end of a command: what is known is said, what is guessed is called possible."""

import signal

import pytest

from holdfast.environments.notes import Advice, NoteKind, verdict_notes
from holdfast.events import UNKNOWN_DENIAL, Denial, DenialKind, LimitKind, Reason, Verdict
from holdfast.wire.protocol.process import NetworkAttempt

pytestmark = pytest.mark.requirement("tools.notes")

READ_ONLY = DenialKind.READ_ONLY_FILE_SYSTEM
REFUSED = DenialKind.PERMISSION_DENIED
TRIED = NetworkAttempt(program="curl", family="IPv4", kind="stream")


def failed(denial: Denial | None = None, *tried: NetworkAttempt) -> Verdict:
    return Verdict(reason=Reason.EXITED, exit_code=1, denial=denial, network_attempts=tried)


def ended(reason: Reason, **more: object) -> Verdict:
    return Verdict(reason=reason, exit_code=137, signal=signal.SIGKILL, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "kind", "beginning"),
    [
        (
            ended(Reason.LIMIT, limit=LimitKind.WALL_TIME, detail="ran for more than 3 seconds"),
            NoteKind.LIMIT,
            "The command ran for more than 3 seconds, which is its limit, and was ended; ",
        ),
        (
            # Only the program knows, so it is a guess.
            ended(Reason.LIMIT, limit=LimitKind.OPEN_FILES, detail="ran into its limit of 16"),
            NoteKind.LIMIT,
            "The command probably ran into its limit of 16; ",
        ),
        (
            ended(Reason.LIMIT, limit=LimitKind.OTHER),
            NoteKind.LIMIT,
            "The command met one of its limits",
        ),
        (ended(Reason.TIMED_OUT), NoteKind.LIMIT, "The command took too long and was terminated; "),
        (ended(Reason.SERVER_STOPPING), NoteKind.SERVER_STOPPED, "The server stopped and ended"),
        (ended(Reason.SESSION_EXPIRED), NoteKind.CONNECTION_LOST, "The connection to the server"),
        (failed(None, TRIED), NoteKind.NETWORK, "The sandbox has no network, and curl asked"),
        (
            failed(Denial(kind=REFUSED, network=True)),
            NoteKind.NETWORK,
            "The sandbox may have denied the network",
        ),
        (failed(UNKNOWN_DENIAL), NoteKind.DENIED, "The server reports that the sandbox denied"),
        (
            failed(Denial(kind=DenialKind.SYSTEM_CALL)),
            NoteKind.DENIED,
            "The sandbox ended the command for a system call",
        ),
        (
            failed(Denial(kind=READ_ONLY, path="/x")),
            NoteKind.DENIED,
            "The sandbox may have denied access to `/x`",
        ),
        (failed(Denial(kind=REFUSED)), NoteKind.DENIED, "The sandbox may have denied something"),
    ],
)
def test_one_sentence_for_each_cause(verdict: Verdict, kind: NoteKind, beginning: str) -> None:
    (note,) = verdict_notes(verdict)
    assert note.kind is kind
    assert str(note).startswith(beginning)
    assert str(note).endswith(".")
    assert ".\n" not in str(note)


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(reason=Reason.EXITED, exit_code=0),
        failed(),
        ended(Reason.SIGNALED),
        ended(Reason.TERMINATED),
    ],
)
def test_an_ordinary_end_has_no_note(verdict: Verdict) -> None:
    assert verdict_notes(verdict) == ()


def test_the_profile_turns_a_guess_into_knowledge() -> None:
    read_only = failed(Denial(kind=READ_ONLY, path="/x", reason="it is the code of the server"))
    (note,) = verdict_notes(read_only, writable=True, advice=Advice(files="; ask for it"))
    assert note.text == (
        "The sandbox does not let commands write `/x` (it is the code of the server); ask for it."
    )
    (note,) = verdict_notes(failed(Denial(kind=READ_ONLY, path="/x")), writable=False)
    assert note.text == "The sandbox does not let commands write `/x`."
    # Where the sandbox lets it write, the mode of the file was the cause.
    assert verdict_notes(failed(Denial(kind=REFUSED, path="/x")), writable=True) == ()
    (note,) = verdict_notes(failed(Denial(kind=REFUSED, network=True)), offline=True)
    assert note.text == "The sandbox has no network, which the command seems to need."


@pytest.mark.parametrize("path", ["x\ry", "a`b", "\x1b[2J", "x" * 201])
def test_a_name_that_would_garble_the_sentence_is_left_out(path: str) -> None:
    (note,) = verdict_notes(failed(Denial(kind=READ_ONLY, path=path)))
    assert note.text == "The sandbox may have denied something."


def test_a_note_on_a_repository_has_the_hint_of_the_denial() -> None:
    (note,) = verdict_notes(failed(Denial(kind=READ_ONLY, path=".git/index.lock")), writable=False)
    assert note.text.startswith("The sandbox does not let commands write `.git/index.lock`; ")
    assert "--sandbox-write" in note.text
