"""Purpose of a shell, by its arguments."""

import pytest

from holdfast.drop_in.invocation import Invocation, read_invocation


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-c", "line"], Invocation(line="line")),
        (["-lc", "line", "name", "x"], Invocation(line="line")),
        (["-c", "-l", "line"], Invocation(line="line")),
        (["-l", "-i", "-c", "line"], Invocation(line="line")),
        (["--norc", "--rcfile", "f", "-c", "line"], Invocation(line="line")),
        (["-o", "pipefail", "-c", "line"], Invocation(line="line")),
        (["-eo", "pipefail", "-c", "line"], Invocation(line="line")),
        (["+B", "-O", "extglob", "-c", "line"], Invocation(line="line")),
        (["-c", "--", "-line"], Invocation(line="-line")),
        (["-c"], Invocation(line="")),
        (["script", "-c", "x"], Invocation(file="script", arguments=("-c", "x"))),
        (["--", "script"], Invocation(file="script")),
        (["-", "script"], Invocation(file="script")),
        (["-x", "script", "a"], Invocation(file="script", arguments=("a",))),
        (["-s", "a"], Invocation()),
        (["-i"], Invocation()),
        (["-login", "-c", "line"], Invocation(line="line")),
        (["-norc", "-noprofile", "-posix", "-c", "line"], Invocation(line="line")),
        (["-rcfile", "f", "-c", "line"], Invocation(line="line")),
        (["-init-file", "f", "--login", "-c", "line"], Invocation(line="line")),
        (["-rcfile", "-c", "line"], Invocation(file="line")),
        (["-e", "-norc", "x", "line"], Invocation(line="line")),
        (["+c", "line"], Invocation(line="line")),
        (["+", "-c", "line"], Invocation(line="line")),
        (["-login"], Invocation()),
        (["-verbose", "script"], Invocation(file="script")),
        ([], Invocation()),
    ],
)
def test_arguments_are_read_as_bash_reads_them(words: list[str], expected: Invocation) -> None:
    assert read_invocation(["bash", *words]) == expected
