"""The dangerous list, row by row as in the contract."""

import pytest

from holdfast.agent.approvals.dangerous import Danger, danger_of
from holdfast.agent.approvals.split import split_command


def deletes_by_force(words: list[str]) -> bool:
    split = split_command(words)
    return any(danger_of(one) for one in (*split.segments, *split.literals))


def test_what_is_hidden_too_well_is_another_danger() -> None:
    assert danger_of(["sudo"] * 8 + ["rm", "-f", "x"]) is Danger.FORCED_REMOVAL
    assert danger_of(["sudo"] * 9 + ["rm", "-f", "x"]) is Danger.TOO_MANY_WRAPPERS


@pytest.mark.requirement("approvals.dangerous")
@pytest.mark.parametrize(
    "words",
    [
        ["rm", "-rf", "x"],
        ["rm", "-fr", "x"],
        ["rm", "-f", "x"],
        ["rm", "x", "-vf"],
        ["rm", "-r", "--force", "x"],
        ["/bin/rm", "-f", "x"],
        ["sudo", "rm", "-f", "x"],
        ["env", "-i", "A=b", "rm", "-f", "x"],
        ["trap", "rm -f x", "EXIT"],
        ["bash", "-c", "rm -f x"],
        ["/bin/zsh", "-lc", "(rm -f z)"],
        ["sh", "-c", "echo $(rm -f z)"],
        ["bash", "-c", "bash -c 'rm -f z'"],
        ["bash", "-c", "while true; do rm -f z; done"],
        ["sudo", "env", "A=b", "bash", "-c", "rm -f z"],
        ["sudo"] * 9 + ["ls"],
        ["bash", "-c", "sudo " * 9 + "ls"],
    ],
)
def test_dangerous_commands(words: list[str]) -> None:
    assert deletes_by_force(words)


@pytest.mark.requirement("approvals.dangerous")
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["rm"],
        ["rm", "x"],
        ["rm", "-r", "--", "-f"],
        ["rm", "--verbose", "x"],
        ["find", ".", "-delete"],
        ["echo", "rm", "-f", "x"],
        ["sudo"],
        ["env"],
        ["env", "A=b"],
        ["trap"],
        ["bash", "-c", "rm x"],
        ["bash", "script"],
        ["sudo"] * 8 + ["ls"],
    ],
)
def test_other_commands(words: list[str]) -> None:
    assert not deletes_by_force(words)
