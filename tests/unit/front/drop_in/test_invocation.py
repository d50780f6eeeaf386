"""Purpose of a shell, by its arguments."""

import pytest

from holdfast.front.drop_in.invocation import Invocation, read_invocation


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-c", "line"], Invocation(line="line")),
        (["-lc", "line", "name", "x"], Invocation(line="line", arguments=("name", "x"))),
        (["-c", "-l", "line"], Invocation(line="line")),
        (["-l", "-i", "-c", "line"], Invocation(line="line")),
        (["--norc", "--rcfile", "f", "-c", "line"], Invocation(line="line", start_file="f")),
        (["-o", "pipefail", "-c", "line"], Invocation(line="line")),
        (["-eo", "pipefail", "-c", "line"], Invocation(line="line")),
        (["+B", "-O", "extglob", "-c", "line"], Invocation(line="line")),
        (["-c", "--", "-line"], Invocation(line="-line")),
        (["-c"], Invocation(line="")),
        (["script", "-c", "x"], Invocation(file="script", arguments=("-c", "x"))),
        (["--", "script"], Invocation(file="script")),
        (["-", "script"], Invocation(file="script")),
        (["-x", "script", "a"], Invocation(file="script", arguments=("a",))),
        (["-s", "a"], Invocation(arguments=("a",))),
        (["-i"], Invocation()),
        (["-login", "-c", "line"], Invocation(line="line")),
        (["-norc", "-noprofile", "-posix", "-c", "line"], Invocation(line="line")),
        (["-rcfile", "f", "-c", "line"], Invocation(line="line", start_file="f")),
        (["-init-file", "f", "--login", "-c", "x"], Invocation(line="x", start_file="f")),
        (["-rcfile", "-c", "line"], Invocation(file="line", start_file="-c")),
        (["-e", "-norc", "x", "line"], Invocation(line="line")),
        (["+c", "line"], Invocation(line="line")),
        (["+", "-c", "line"], Invocation(line="line")),
        (["-login"], Invocation()),
        (["-verbose", "script"], Invocation(file="script")),
        ([], Invocation()),
    ],
)
def test_arguments_are_read_as_bash_reads_them(words: list[str], expected: Invocation) -> None:
    assert read_invocation(["bash", *words], "/bin/bash") == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-oextendedglob", "-c", "line", "x"], Invocation(line="line", arguments=("x",))),
        (["-b", "-c", "line"], Invocation(file="-c", arguments=("line",))),
    ],
)
def test_arguments_are_read_as_the_shell_of_the_settings_reads_them(
    words: list[str], expected: Invocation
) -> None:
    assert read_invocation(["bash", *words], "/usr/bin/zsh") == expected


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["-l", "-c", "line"], ["-c", "line"]),
        (["-ec", '"$@"', "x", "rm", "-f"], ["-c", '"$@"', "x", "rm", "-f"]),
        (["--init-file", "f", "-ic", "line"], ["--rcfile", "f", "-c", "line"]),
        (["-c", "--", "-line", "x"], ["-c", "--", "-line", "x"]),
        (["-x", "script", "-a"], ["script", "-a"]),
        (["--", "-script"], ["--", "-script"]),
        (["-i", "-s", "a"], ["-s", "a"]),
        (["-i"], []),
    ],
)
def test_all_that_a_script_may_run_is_judged(words: list[str], argv: list[str]) -> None:
    found = read_invocation(["bash", *words], "/bin/bash")
    assert found.argv("/bin/bash") == ("/bin/bash", *argv)
    assert read_invocation(found.argv("bash"), "bash") == found


def test_a_lone_line_is_judged_as_one() -> None:
    # Rules allow the commands of exactly three words.
    found = read_invocation(["bash", "-lc", "--", "-line"], "/bin/bash")
    assert found.argv("/bin/bash") == ("/bin/bash", "-c", "-line")
