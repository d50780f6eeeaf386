"""What a person is shown: nothing in a command or a patch hides a part of it."""

import io
from dataclasses import replace

import pytest

from holdfast.agent.approvals.ask import TerminalApprover
from holdfast.agent.approvals.permissions import AddedPermissions
from holdfast.agent.approvals.question import DeniedRun, PatchedFile, Question, QuestionKind
from holdfast.agent.approvals.question_text import prefix_text, question_text
from holdfast.agent.approvals.shown_text import SHOWN_CHARACTERS, SHOWN_LINES, shown_lines, visible

pytestmark = pytest.mark.requirement("approvals.question.shown")


def question(*command: str, **members: object) -> Question:
    given: dict[str, object] = {
        "kind": QuestionKind.COMMAND,
        "call_id": "c",
        "environment_id": "local",
        "command": command,
        "cwd": "/ws",
        "digest": "d",
        **members,
    }
    return Question(**given)  # type: ignore[arg-type]  # each test gives what fits


def details(asked: Question) -> list[str]:
    return question_text(asked)[1]


def test_one_line_is_shown_as_it_is_and_several_are_marked() -> None:
    assert shown_lines("ls -l") == ["ls -l"]
    assert shown_lines("") == [""]
    assert shown_lines("a\n\n\nb\n") == ["| a", "|", "|", "| b", "|"]
    forged = "ls\nReason: it is harmless\n[y]es, [n]o: y"
    assert shown_lines(forged) == ["| ls", "| Reason: it is harmless", "| [y]es, [n]o: y"]


@pytest.mark.parametrize("blank", ["", " ", "\t", " \t ", " " * 60])
def test_runs_of_empty_lines_are_shortened(blank: str) -> None:
    lines = shown_lines("echo a\n" + f"{blank}\n" * 300 + "rm -rf ~")
    assert lines == ["| echo a", "… 300 empty lines", "| rm -rf ~"]


@pytest.mark.parametrize("name", ["\u200b", "\r", "\f", "\u00a0", "\u3000", "\x85"])
def test_runs_of_equal_lines_are_shortened(name: str) -> None:
    # Each of these is the name of a program to a shell.
    lines = shown_lines(f"echo a\n{name}\n" + f"{name}\n" * 299 + "rm -rf ~")
    assert lines == ["| echo a", f"| {visible(name)}", "… 299 more lines like it", "| rm -rf ~"]
    assert shown_lines(f"echo a\n{name}") == ["| echo a", f"| {visible(name)}"]
    assert visible(name).startswith("\\")


@pytest.mark.parametrize(
    "unseen",
    [
        *("\x1b[2K", "\r", "\x08", "\x00", "\x7f", "\x9b31m", "\t", "\v", "\f", "\x85"),
        *("\u202e", "\u2066", "\u200e", "\u061c"),  # bidirectional
        *("\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad"),  # without width
        *("\u00a0", "\u2003", "\u3000", "\u2800", "\u3164", "\uffa0", "\u115f"),  # blanks
        *("\u2028", "\u2029"),  # separators of lines
        *("\u034f", "\ufe0f", "\U000e0101", "\U000e0041"),  # joiners, selectors, tags
        *("\ud800", "\ue000", "\uffff"),  # no characters
    ],
)
def test_what_cannot_be_seen_is_escaped(unseen: str) -> None:
    for text in (unseen, f"a{unseen}b", f"a{unseen}b\nc"):
        for line in shown_lines(text):
            assert "\\" in line or line == "| c"
            assert line.isprintable()
            assert line.encode().isascii()
    assert visible("größer 漢字 \N{GRINNING FACE}") == "größer 漢字 \N{GRINNING FACE}"


def test_marks_that_are_piled_up_are_escaped() -> None:
    assert visible("e\u0301 \u0e1b\u0e31\u0e49") == "e\u0301 \u0e1b\u0e31\u0e49"
    assert visible("a" + "\u0300" * 5) == "a" + "\u0300" * 3 + "\\u0300" * 2


def test_blanks_that_move_the_rest_out_of_sight_are_counted() -> None:
    assert shown_lines("ls" + " " * 300 + "; rm -rf ~") == ["ls <300 blanks> ; rm -rf ~"]
    assert shown_lines("ls" + " " * 20 + "x") == ["ls" + " " * 20 + "x"]


def test_of_a_long_text_the_missing_middle_is_said() -> None:
    lines = shown_lines("a" * 50_000 + "z")
    assert lines[0].startswith("| aaa")
    assert lines[1] == f"… {50_001 - SHOWN_CHARACTERS + 1} characters are not shown"
    assert lines[2].endswith("az")
    assert sum(map(len, lines)) < SHOWN_CHARACTERS + 100
    # Escapes count as they are shown.
    assert sum(map(len, shown_lines("\x1b" * 50_000))) < SHOWN_CHARACTERS + 100


def test_of_many_lines_the_missing_ones_are_said() -> None:
    lines = shown_lines("\n".join(str(number) for number in range(1_000)))
    assert (lines[0], lines[-1]) == ("| 0", "| 999")
    missing = 1_000 - (len(lines) - 1)
    assert f"… {missing * 3} characters in {missing} lines are not shown" in lines
    assert SHOWN_LINES - 3 < len(lines) <= SHOWN_LINES
    few = "\n".join(f"{number} {'x' * 30}" for number in range(390))
    assert shown_lines(few) == [f"| {line}" for line in few.split("\n")]


def test_empty_lines_take_no_room_from_what_is_between_them() -> None:
    empty = "\n" * 30_000
    lines = shown_lines(f"echo a{empty}rm -rf ~{empty}echo b")
    assert lines == [
        *("| echo a", "… 29999 empty lines", "| rm -rf ~", "… 29999 empty lines", "| echo b"),
    ]


def test_a_text_cannot_forge_what_is_said_about_it() -> None:
    lines = shown_lines("a\n… 5 characters are not shown\nb")
    assert lines == ["| a", "| … 5 characters are not shown", "| b"]


def test_a_command_its_ground_and_its_reason() -> None:
    asked = question(
        "bash",
        "-c",
        "echo a\n\n\n\nrm x",
        explanation="it deletes by force",
        reason="first\nsecond",
        permissions=AddedPermissions(network=True),
        leaves_sandbox=True,
        denied=DeniedRun(what="w", output="o" * 3_000, exit_code=1, network_attempts=("n",)),
    )
    heading, lines = question_text(asked)
    assert heading == "Run this command outside its sandbox in /ws?"
    assert lines[:3] == ["| bash -c 'echo a", "… 3 empty lines", "| rm x'"]
    assert "Asked because: it deletes by force" in lines
    at = lines.index("Reason:")
    assert lines[at : at + 3] == ["Reason:", "| first", "| second"]
    assert "Network: n" in lines
    assert lines[-1] == "Last 2000 characters of its output: " + "o" * 2_000
    assert question_text(question("ls", cwd="/a\n/b"))[0] == "Run this command in /a\\n/b?"


def test_a_prefix_that_would_be_allowed_is_quoted_and_bounded() -> None:
    assert prefix_text(question("ls", proposed_amendment=("git", "a b\n"))) == "git 'a b\\n'"
    long = prefix_text(question("ls", proposed_amendment=("x" * 500,)))
    assert long.endswith(" … and 300 more characters")


ALWAYS = "If always: every command that begins with `git fetch` runs"
EVERYTHING = (
    "That lets the agent do anything, if the program takes settings or code from the directory that"
    " it works in, as git, make, npm and cargo do."
)


@pytest.mark.requirement("approvals.question.always")
def test_what_a_stored_rule_means_is_said_before_it_is_chosen() -> None:
    asked = question("git", "fetch", "x", proposed_amendment=("git", "fetch"))
    assert details(asked)[-1] == f"{ALWAYS} without a question from now on."
    outside = replace(asked, leaves_sandbox=True, amendment_leaves_sandbox=True)
    assert details(outside)[-2:] == [
        f"{ALWAYS} outside its sandbox without a question from now on.",
        EVERYTHING,
    ]
    # Only what is offered is explained.
    for other in (
        replace(outside, proposed_amendment=None),
        replace(outside, permissions=AddedPermissions(network=True)),
        replace(outside, kind=QuestionKind.HUMAN_COMMAND),
    ):
        assert not [line for line in details(other) if "lways" in line or line == EVERYTHING]


@pytest.mark.requirement("approvals.question.always")
@pytest.mark.parametrize("leaves", [False, True])
async def test_a_terminal_says_the_same(leaves: bool) -> None:
    shown = io.StringIO()
    asked = question(
        *("git", "fetch"), proposed_amendment=("git", "fetch"), amendment_leaves_sandbox=leaves
    )
    await TerminalApprover(io.StringIO("n\n"), shown).ask(asked)
    before, _, choices = shown.getvalue().rpartition("\n")
    assert f"  {ALWAYS}" in before
    assert (f"  {EVERYTHING}" in before) is leaves
    assert ("[a]lways for `git fetch`, outside its sandbox" in choices) is leaves


async def test_a_terminal_marks_the_same_lines() -> None:
    shown = io.StringIO()
    await TerminalApprover(io.StringIO("n\n"), shown).ask(question("sh", "-c", "a\n\n\n\nb"))
    assert "\n  | sh -c 'a\n  … 3 empty lines\n  | b'\n" in shown.getvalue()


def test_files_outside_come_first_and_whole() -> None:
    files = (
        PatchedFile(kind="update", path="/etc/a", hunks="@@\n-x\n+y\u202e", outside=True),
        PatchedFile(kind="delete", path="/etc/b\n", leads_to="/c", outside=True),
        PatchedFile(kind="add", path="/ws/in", hunks="", cut=5),
        PatchedFile(kind="delete", path="/ws/gone"),
    )
    asked = question(kind=QuestionKind.FILE_CHANGE, files=files, leaves_sandbox=True)
    assert question_text(asked) == (
        "Change these files outside its sandbox?",
        [
            "update /etc/a",
            *("| @@", "| -x", "| +y\\u202e"),
            "delete /etc/b\\n (a link to /c)",
            "and 2 more inside",
        ],
    )


def test_files_inside_are_shown_as_far_as_they_fit() -> None:
    small = PatchedFile(kind="add", path="/ws/a", hunks="+1", move_to="/ws/b")
    large = PatchedFile(kind="add", path="/ws/l", hunks="\n".join(["+x", "+y"] * 500), cut=7)
    unshown = PatchedFile(kind="add", path="/ws/u", cut=9)
    asked = question(kind=QuestionKind.FILE_CHANGE, files=(small, large, small))
    assert details(asked) == ["add /ws/a to /ws/b", "| +1", "and 2 more inside"]
    lines = details(question(kind=QuestionKind.FILE_CHANGE, files=(large,)))
    assert lines[0] == "add /ws/l"
    assert any(line.endswith("lines are not shown") for line in lines[1:-1])
    assert lines[-1] == "… 7 characters are not shown"
    lines = details(question(kind=QuestionKind.FILE_CHANGE, files=(small, unshown)))
    assert lines == ["add /ws/a to /ws/b", "| +1", "and 1 more inside"]


def test_empty_lines_of_a_hunk_are_counted() -> None:
    padded = PatchedFile(
        kind="add", path="/etc/a", outside=True, hunks="+a\n" + "+\n" * 900 + "+evil"
    )
    lines = details(question(kind=QuestionKind.FILE_CHANGE, files=(padded,)))
    assert lines == ["add /etc/a", "| +a", "| +", "… 899 more lines like it", "| +evil"]
