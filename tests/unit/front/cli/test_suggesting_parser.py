"""Mistakes in the command line, and what is said about them."""

import pytest

from holdfast.front.cli.__main__ import main
from holdfast.front.cli.parser import make_parser


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        make_parser().parse_args(words)
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["rnu", "--", "true"], "run"),
        (["fs", "sl"], "ls"),
        (["run", "--limt-time", "5", "--", "true"], "--limit-time"),
        (["run", "--sandbx=read-only", "true"], "--sandbox"),
        (["env", "add", "x", "--ulr", "ws://h:1", "--cmd", "x"], "--url"),
        (["serve", "--listne", "stdio"], "--listen"),
        (["completion", "bsh"], "bash"),
    ],
)
def test_a_typo_is_answered_with_what_is_most_like_it(
    capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    assert f"did you mean `{meant}`?" in said(capsys, *words)


def test_the_subcommand_shows_its_own_usage(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "fs", "ls", "--nonsense")
    assert text.startswith("usage: holdfast fs ls ")
    assert "unknown option --nonsense" in text


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--limit-time", "1x", "argument --limit-time: expected seconds, or a time such as"),
        ("--limit-output", "ten", "argument --limit-output: expected a size such as 10K"),
        ("--limit-cpu", "0", "argument --limit-cpu: expected more than 0 seconds"),
    ],
)
def test_a_limit_is_named_by_its_option(
    capsys: pytest.CaptureFixture[str], option: str, value: str, text: str
) -> None:
    assert text in said(capsys, "run", option, value, "true")


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--idle-exit", "soon", "expected a number of seconds, such as 600, not 'soon'"),
        ("--max-processes", "many", "expected a whole number, not 'many'"),
        ("--ws-max-clock-skew-seconds", "1.5", "expected a whole number, not '1.5'"),
    ],
)
def test_what_is_no_number_is_named(
    capsys: pytest.CaptureFixture[str], option: str, value: str, text: str
) -> None:
    assert f"argument {option}: {text}\n" in said(capsys, "serve", option, value)


@pytest.mark.parametrize(
    ("command", "known"),
    [("env", "list, show, check, add, remove"), ("sandbox", "explain")],
)
def test_a_missing_operation_is_answered_with_all_there_are(
    capsys: pytest.CaptureFixture[str], command: str, known: str
) -> None:
    assert f"OPERATION is missing; known: {known}\n" in said(capsys, command)


def test_limits_take_units() -> None:
    options = make_parser().parse_args(
        ["run", "--limit-time", "1m", "--limit-cpu", "1500ms", "--limit-output", "10K", "true"]
    )
    assert (options.limit_time, options.limit_cpu, options.limit_output) == (60.0, 2, 10_240)


def test_a_second_place_to_listen_is_kept_beside_the_first() -> None:
    options = make_parser().parse_args(["serve"])
    assert (options.listen, options.also_listen) == ("ws://127.0.0.1:0", ())
    words = ["serve", "--listen", "unix:///a", "--listen", "ws://[::1]:0", "--listen", "unix:///b"]
    options = make_parser().parse_args(words)
    assert (options.listen, options.also_listen) == ("unix:///a", ("ws://[::1]:0", "unix:///b"))


def test_the_bare_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: holdfast ")
    assert "doctor" in text
