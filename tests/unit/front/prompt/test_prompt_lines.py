"""Lines that a person types at the prompt of `holdfast shell`."""

import pytest

from holdfast.front.prompt.prompt_lines import HELP, LineError, TypedLine, completions, parse_line


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("", TypedLine("")),
        ("   ", TypedLine("")),
        ("echo :list", TypedLine("run", "echo :list")),
        ("  make test ", TypedLine("run", "make test")),
        (":run  make", TypedLine("run", "make")),
        (":tty vim a  b", TypedLine("tty", "vim a  b")),
        (":list", TypedLine("list")),
        (":l", TypedLine("list")),
        (" exit ", TypedLine("quit")),
        ("exit 3", TypedLine("run", "exit 3")),
        (":k all", TypedLine("kill", "all")),
        (":send 12  two blanks", TypedLine("send", "12  two blanks")),
    ],
)
def test_a_line_is_a_command_of_the_prompt_or_one_to_run(typed: str, line: TypedLine) -> None:
    assert parse_line(typed) == line


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (":", "there is no `:`"),
        (":nothing", "there is no `:nothing`"),
        (":t", "`:t` may be :tty, :text"),
    ],
)
def test_what_makes_no_sense_is_named(typed: str, said: str) -> None:
    with pytest.raises(LineError, match=said):
        parse_line(typed)


def test_too_many_words_are_refused_with_what_it_takes() -> None:
    with pytest.raises(LineError, match=r":poll takes \[ID\] \[SECONDS\]"):
        parse_line(":poll 1 2 3").words(2)


def test_commands_and_numbers_are_completed() -> None:
    assert completions(":ki", []) == [":kill"]
    assert len(completions(":", [])) == len(HELP)
    assert completions(":kill ", [7, 71]) == ["7", "71", "all"]
    assert completions(":attach 7", [7, 8]) == ["7"]
    assert completions(":list ", [7]) == []
    assert completions("ls ", [7]) == []
