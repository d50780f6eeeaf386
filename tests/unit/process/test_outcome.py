"""What the end of a launcher says about the command."""

import pytest

from holdfast.events import DenialKind, Reason, Verdict
from holdfast.process.outcome import SandboxedOutcome
from holdfast.process.output import OutputLog
from holdfast.protocol.process import OutputStream

outcome = SandboxedOutcome("/x/prog")


def wrote(*texts: str, stream: OutputStream = "stderr") -> OutputLog:
    log = OutputLog()
    for text in texts:
        log.append(stream, text.encode())
    return log


def exited(code: int) -> Verdict:
    return Verdict(reason=Reason.EXITED, exit_code=code)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_program_that_is_not_there_is_127_and_no_denial(end: str) -> None:
    log = wrote(f"bwrap: execvp /x/prog: No such file or directory{end}")

    assert outcome(exited(1), log) == exited(127)


def test_the_launcher_may_say_so_in_pieces() -> None:
    log = wrote("bwrap: ", "execvp /x/prog", ": No such file or directory", "\n")

    assert outcome(exited(1), log) == exited(127)


def test_a_program_that_cannot_be_executed_is_126_and_a_denial() -> None:
    found = outcome(exited(1), wrote("bwrap: execvp /x/prog: Permission denied\n"))

    assert found.exit_code == 126
    assert found.denial is not None
    assert found.denial.kind is DenialKind.PERMISSION_DENIED


@pytest.mark.parametrize(
    "texts",
    [
        ["bwrap: execvp /another: No such file or directory\n"],
        ["before\n", "bwrap: execvp /x/prog: No such file or directory\n"],
        ["bwrap: execvp /x/prog: No such file or directory\n", "after\n"],
        ["bwrap: execvp /x/prog: " + "x" * 200],
        [],
    ],
)
def test_what_a_command_wrote_itself_is_not_mistaken(texts: list[str]) -> None:
    assert outcome(exited(1), wrote(*texts)).exit_code == 1


def test_a_command_may_fail_with_those_words_and_another_code() -> None:
    log = wrote("bwrap: execvp /x/prog: No such file or directory\n")

    assert outcome(exited(5), log).exit_code == 5


def test_success_is_left_as_it_is() -> None:
    assert outcome(exited(0), wrote("permission denied")) == exited(0)


def test_a_denial_is_found() -> None:
    found = outcome(exited(1), wrote("cat: /etc/shadow: Permission denied\n"))

    assert found.denial is not None
    assert found.denial.path == "/etc/shadow"
    assert str(found) == (
        "exited with code 1, denied by its sandbox (permissionDenied: /etc/shadow)"
    )


def test_a_command_that_we_killed_was_killed_by_a_signal() -> None:
    verdict = Verdict(reason=Reason.TERMINATED, exit_code=137)

    found = outcome(verdict, wrote("no end in sight"))

    assert found == Verdict(reason=Reason.TERMINATED, exit_code=137, signal=9)


def test_what_was_denied_to_a_command_that_we_killed_is_told() -> None:
    verdict = Verdict(reason=Reason.TERMINATED, exit_code=137)

    found = outcome(verdict, wrote("cat: /etc/shadow: Permission denied\n"))

    assert found.reason is Reason.TERMINATED
    assert found.denial is not None
    assert found.denial.path == "/etc/shadow"


def test_a_command_that_ended_just_before_we_killed_it_keeps_its_code() -> None:
    verdict = Verdict(reason=Reason.TERMINATED, exit_code=3)

    assert outcome(verdict, wrote()) == verdict
