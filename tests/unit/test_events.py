"""The verdict about an end, in words."""

import pytest

from holdfast.events import Reason, Verdict


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (Verdict(reason=Reason.EXITED, exit_code=3), "exited with code 3"),
        (Verdict(reason=Reason.SIGNALED, exit_code=137, signal=9), "killed by SIGKILL"),
        (Verdict(reason=Reason.SIGNALED, exit_code=168, signal=40), "killed by signal 40"),
        (Verdict(reason=Reason.TERMINATED, exit_code=137, signal=9), "terminated on request"),
        (Verdict(reason=Reason.TIMED_OUT, exit_code=137), "took too long and was terminated"),
        (Verdict(reason=Reason.TIMED_OUT, detail="took too long"), "took too long"),
        (Verdict(reason=Reason.SESSION_EXPIRED), "terminated because its session expired"),
        (Verdict(reason=Reason.SERVER_STOPPING), "terminated because the server stopped"),
        (Verdict(reason=Reason.SPAWN_FAILED, detail="No such file"), "No such file"),
        (Verdict(reason=Reason.LOST), "lost"),
    ],
    ids=lambda value: str(value),
)
def test_a_verdict_can_be_read_by_a_person(verdict: Verdict, text: str) -> None:
    assert str(verdict) == text


def test_only_an_exit_of_its_own_with_status_0_is_ok() -> None:
    assert Verdict(reason=Reason.EXITED, exit_code=0).ok
    assert not Verdict(reason=Reason.EXITED, exit_code=1).ok
    assert not Verdict(reason=Reason.TERMINATED, exit_code=0).ok
