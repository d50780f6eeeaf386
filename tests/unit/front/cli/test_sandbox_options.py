"""The options that confine a command, and what is told of their work."""

import argparse

import pytest

from holdfast.events import UNKNOWN_DENIAL, Denial, DenialKind, Reason, Verdict
from holdfast.front.cli.exit_status import Ended
from holdfast.front.cli.parser import make_parser
from holdfast.front.cli.sandbox_options import explain_failure, limits_of
from holdfast.front.cli.sandbox_options_parser import count, seconds, size
from holdfast.wire.protocol.process import NetworkAttempt, ProcessLimits


def _options(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(["run", *arguments, "true"])


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("7", 7), ("7b", 7), ("1k", 1024), ("2M", 2 << 20), ("3GiB", 3 << 30), ("1tb", 1 << 40)],
)
def test_a_size_may_have_a_unit(text: str, bytes_: int) -> None:
    assert size(text) == bytes_


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5G", "M", "1 X", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected (a size|more than 0)"):
        size(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "x"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number"):
        count(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "inf", "nan", "x"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected (seconds|more than 0)"):
        seconds(text)
    assert seconds("0.5") == 0.5


def test_every_limit_has_an_option() -> None:
    options = _options(
        *("--limit-address-space", "1G", "--limit-processes", "2", "--limit-files", "30"),
        *("--limit-memory", "512M"),
        *("--limit-cpu", "4", "--limit-output", "5k", "--limit-time", "0.5"),
    )
    assert limits_of(options).on_wire() == ProcessLimits(
        memory_bytes=512 << 20,
        address_space_bytes=1 << 30,
        processes=2,
        open_files=30,
        cpu_seconds=4,
        output_bytes=5 << 10,
        wall_time_ms=500,
    )
    assert limits_of(_options()).on_wire() is None


def test_a_limit_below_the_least_is_refused() -> None:
    with pytest.raises(Ended) as end:
        limits_of(_options("--limit-files", "3"))
    assert end.value.text == "--limit-files must be at least 16"


CURL = NetworkAttempt(program="curl", family="IPv6", kind="datagram")


def _denied(denial: Denial) -> Verdict:
    return Verdict(reason=Reason.EXITED, exit_code=1, denial=denial)


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (Verdict(reason=Reason.EXITED, exit_code=1), None),
        (
            _denied(Denial(kind=DenialKind.READ_ONLY_FILE_SYSTEM, path="/etc/x")),
            "denied by the sandbox: write to /etc/x",
        ),
        (
            _denied(Denial(kind=DenialKind.READ_ONLY_FILE_SYSTEM, path="/ws/.git/index.lock")),
            "denied by the sandbox: write to /ws/.git/index.lock (the sandbox protects .git;"
            " --sandbox-write lets commits be made, see the guide `Let an agent commit`)",
        ),
        (
            _denied(Denial(kind=DenialKind.PERMISSION_DENIED, path="/root")),
            "denied by the sandbox, or by the owner and mode of the file: access to /root",
        ),
        (
            _denied(Denial(kind=DenialKind.OPERATION_NOT_PERMITTED, network=True)),
            "denied by the sandbox: the network",
        ),
        (
            _denied(Denial(kind=DenialKind.SYSTEM_CALL)),
            "denied by the sandbox: a system call",
        ),
        (
            _denied(Denial(kind=DenialKind.POLICY_DENIED, snippet="x: sandbox says no")),
            "denied by the sandbox: x: sandbox says no",
        ),
        (_denied(UNKNOWN_DENIAL), "denied by the sandbox: it does not say what"),
        (
            Verdict(reason=Reason.EXITED, exit_code=6, network_attempts=(CURL,)),
            "the sandbox has no network: curl asked for an IPv6 datagram socket",
        ),
        (Verdict(reason=Reason.EXITED, exit_code=0, network_attempts=(CURL,)), None),
        (
            Verdict(reason=Reason.LIMIT, exit_code=137, detail="wrote more than 5 bytes"),
            "ended by a limit: it wrote more than 5 bytes",
        ),
    ],
)
def test_the_work_of_a_sandbox_or_a_limit_is_told_in_a_line(
    verdict: Verdict, line: str | None
) -> None:
    assert explain_failure(verdict) == line
