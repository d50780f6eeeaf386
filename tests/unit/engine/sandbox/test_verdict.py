"""Verdict of a command, from the end of its launcher."""

import errno
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest

from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.sandbox.bubblewrap.init_channel import InitChannel
from holdfast.engine.sandbox.bubblewrap.sandboxed_child import sandboxed_verdict
from holdfast.events import DenialKind, Reason, Verdict
from holdfast.wire.protocol.process import NetworkAttempt

CURL = NetworkAttempt(program="curl", family="IPv4", kind="datagram")


class Attempts(NamedTuple):
    """Network attempts that the kernel reported."""

    made: tuple[NetworkAttempt, ...]


@pytest.fixture
def report() -> Iterator[InitChannel]:
    report = InitChannel()
    yield report
    report.close()


Outcome = Callable[[Verdict, OutputLog], Verdict]
"""Completes the verdict of a process."""


def outcome_of(report: InitChannel, attempts: Attempts | None = None) -> Outcome:
    return partial(sandboxed_verdict, report=report, attempts=attempts, reasons={}, cwd="/")


@pytest.fixture
def outcome(report: InitChannel) -> Outcome:
    report.theirs.close()  # it became the command
    return outcome_of(report)


def wrote(text: str) -> OutputLog:
    log = OutputLog()
    log.append("stderr", text.encode())
    return log


def exited(code: int) -> Verdict:
    return Verdict(reason=Reason.EXITED, exit_code=code)


def test_a_program_that_is_not_there_is_no_denial(report: InitChannel) -> None:
    report.theirs.send((-errno.ENOENT).to_bytes(4, "little", signed=True))
    log = wrote("holdfast: /srv/sandbox/prog: No such file or directory\n")

    assert outcome_of(report)(exited(127), log) == exited(127)


def test_a_program_that_may_not_be_executed_is_one(report: InitChannel) -> None:
    report.theirs.send((-errno.EACCES).to_bytes(4, "little", signed=True))

    found = outcome_of(report)(exited(126), wrote("/x: Permission denied\n"))

    assert found.denial is not None
    assert found.denial.kind is DenialKind.PERMISSION_DENIED


def test_a_command_that_speaks_of_a_missing_program_ran_all_the_same(
    outcome: Outcome,
) -> None:
    found = outcome(exited(127), wrote("sandbox/prog: No such file or directory\n"))

    assert found.denial is not None


def test_success_is_left_as_it_is(outcome: Outcome) -> None:
    assert outcome(exited(0), wrote("permission denied")) == exited(0)


def test_a_denial_is_found(outcome: Outcome) -> None:
    found = outcome(exited(1), wrote("cat: /etc/shadow: Permission denied\n"))

    assert found.denial is not None
    assert found.denial.path == "/etc/shadow"
    assert str(found) == (
        "exited with code 1, denied by its sandbox (permissionDenied: /etc/shadow)"
    )


def test_a_command_that_we_killed_was_killed_by_a_signal(outcome: Outcome) -> None:
    verdict = Verdict(reason=Reason.TERMINATED, exit_code=137)

    found = outcome(verdict, wrote("no end in sight"))

    assert found == Verdict(reason=Reason.TERMINATED, exit_code=137, signal=9)


def test_what_was_denied_to_a_command_that_we_killed_is_told(outcome: Outcome) -> None:
    verdict = Verdict(reason=Reason.TERMINATED, exit_code=137)

    found = outcome(verdict, wrote("cat: /etc/shadow: Permission denied\n"))

    assert found.reason is Reason.TERMINATED
    assert found.denial is not None
    assert found.denial.path == "/etc/shadow"


def test_a_command_that_ended_just_before_we_killed_it_keeps_its_code(
    outcome: Outcome,
) -> None:
    verdict = Verdict(reason=Reason.TERMINATED, exit_code=3)

    assert outcome(verdict, wrote("")) == verdict


def test_a_status_that_nobody_knows_is_left_as_it_is(outcome: Outcome) -> None:
    verdict = Verdict(reason=Reason.LOST, exit_code=-1)

    assert outcome(verdict, wrote("permission denied")) is verdict


def test_what_it_tried_to_reach_is_told_whatever_it_says(report: InitChannel) -> None:
    report.theirs.close()
    outcome = outcome_of(report, Attempts((CURL,)))

    found = outcome(exited(6), wrote("curl: (6) Could not resolve host: example.com\n"))

    assert found.denial is None  # by the rule of the real server, which goes by the words
    assert found.network_attempts == (CURL,)
    assert str(found) == (
        "exited with code 6, without network (curl asked for an IPv4 datagram socket)"
    )
    assert str(outcome(exited(0), wrote(""))) == "exited with code 0"


def test_a_denial_without_a_path_is_about_the_network_if_that_was_tried(
    report: InitChannel,
) -> None:
    report.theirs.close()
    outcome = outcome_of(report, Attempts((CURL,)))

    of_network = outcome(exited(1), wrote("Operation not permitted")).denial
    of_file = outcome(exited(1), wrote("cat: /etc/shadow: Permission denied\n")).denial

    assert of_network is not None
    assert of_network.network
    assert of_file is not None
    assert not of_file.network
