"""The result of a command, for programs and for people."""

from typing import cast

import pytest

from holdfast.backends import ExecProcess
from holdfast.base.errors import CommandFailed
from holdfast.environments.collect.head_tail import Captured
from holdfast.environments.commands.completed import Completed
from holdfast.events import Denial, DenialKind, Reason, Verdict


def completed(
    command: str | tuple[str, ...] = "make",
    verdict: Verdict | None = None,
    *,
    stdout: bytes = b"",
    stderr: bytes = b"",
    background: bool = False,
) -> Completed:
    return Completed(
        command=command,
        verdict=verdict or Verdict(reason=Reason.EXITED, exit_code=0),
        captured_stdout=Captured(stdout),
        captured_stderr=Captured(stderr),
        background=background,
        duration=1.234,
        process=cast(ExecProcess, None),  # nobody asks it anything
    )


def test_it_can_be_read_by_a_person() -> None:
    failed = Verdict(reason=Reason.EXITED, exit_code=2)
    done = completed(("make", "a b"), failed, stdout=b"out\n", stderr=b"error\n\n")
    assert str(done) == "`make 'a b'` exited with code 2\n--- stdout\nout\n--- stderr\nerror"
    assert repr(done) == (
        "<Completed `make 'a b'` exited with code 2 after 1.23 s, 4 bytes of stdout, 7 of stderr>"
    )
    assert str(completed()) == "`make` exited with code 0"
    assert "something it started still holds its output" in str(completed(background=True))


def test_what_is_shown_of_it_is_bounded() -> None:
    done = completed("x" * 1000, stdout=b"first" + b"." * 100_000 + b"last\n")
    assert len(str(done)) < 2300
    assert "first" not in str(done)
    assert str(done).endswith("last")


def test_a_check_passes_what_is_ok_and_raises_the_rest() -> None:
    done = completed()
    assert done.check() is done
    assert done.ok
    late = completed(verdict=Verdict(reason=Reason.TIMED_OUT, exit_code=137, signal=9))
    with pytest.raises(CommandFailed, match="took too long") as caught:
        late.check()
    assert caught.value.completed is late
    assert (late.exit_code, late.reason, late.ok) == (137, Reason.TIMED_OUT, False)


def test_it_tells_what_its_sandbox_denied() -> None:
    denial = Denial(kind=DenialKind.READ_ONLY_FILE_SYSTEM, path="/etc/x")
    done = completed(verdict=Verdict(reason=Reason.EXITED, exit_code=1, denial=denial))
    assert done.denied
    assert done.denial is denial
    assert "/etc/x" in str(done)
    assert not completed().denied
    assert completed().denial is None
