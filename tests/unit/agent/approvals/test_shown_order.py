"""The order in which a display draws what is shown, by a separate reading of Unicode's rules."""

import io
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.approvals.ask import TerminalApprover
from holdfast.agent.approvals.question import DeniedRun, PatchedFile, Question, QuestionKind
from holdfast.agent.approvals.question_text import prefix_text, question_text
from holdfast.agent.approvals.shown_text import SHOWN_CHARACTERS, shown_lines, visible
from holdfast.front.mcp.questions import elicitation

pytestmark = pytest.mark.requirement("approvals.question.order")

ALEF, BET, MEEM = "\u05d0", "\u05d1", "\u0645"
ARABIC_ONE = "\u0661"

STRONG = {"L": "L", "R": "R", "AL": "R"}


def levels(line: str, base: int) -> list[int]:
    """Return the embedding levels of a line without controls (UAX #9, W1 to I2, without N0)."""
    side = "R" if base else "L"
    kinds = [unicodedata.bidirectional(letter) for letter in line]
    strong, before = side, side
    for at, kind in enumerate(kinds):
        if kind == "NSM":  # W1
            kinds[at] = kind = before
        before = kind
        if kind in STRONG:
            strong = kind
        elif kind == "EN" and strong == "AL":  # W2
            kinds[at] = "AN"
    kinds = ["R" if kind == "AL" else kind for kind in kinds]  # W3
    for at in range(1, len(kinds) - 1):  # W4
        around = {kinds[at - 1], kinds[at + 1]}
        if (kinds[at] == "ES" and around == {"EN"}) or (
            kinds[at] == "CS" and around in ({"EN"}, {"AN"})
        ):
            (kinds[at],) = around
    joined = re.compile("t*et*")  # W5
    letters = "".join({"ET": "t", "EN": "e"}.get(kind, "-") for kind in kinds)
    for found in joined.finditer(letters):
        kinds[found.start() : found.end()] = ["EN"] * (found.end() - found.start())
    strong = side
    for at, kind in enumerate(kinds):  # W6, W7
        strong = kind if kind in ("L", "R") else strong
        if kind == "EN" and strong == "L":
            kinds[at] = "L"
        elif kind not in ("L", "R", "EN", "AN"):
            kinds[at] = "N"
    for found in re.finditer("N+", "".join("N" if kind == "N" else "-" for kind in kinds)):
        left = kinds[found.start() - 1] if found.start() else side
        right = kinds[found.end()] if found.end() < len(kinds) else side
        sides = {"L" if kind == "L" else "R" for kind in (left, right)}
        new = sides.pop() if len(sides) == 1 else side  # N1, N2
        kinds[found.start() : found.end()] = [new] * (found.end() - found.start())
    rises = {"L": (0, 1), "R": (1, 0), "AN": (2, 1), "EN": (2, 1)}  # I1, I2
    return [base + rises[kind][base] for kind in kinds]


def drawn(line: str, base: int) -> list[int]:
    """Return the positions in the line of what is drawn, from left to right (L2)."""
    found = levels(line, base)
    order = list(range(len(line)))
    for level in range(max(found, default=0), 0, -1):
        start = 0
        while start < len(order):
            if found[order[start]] < level:
                start += 1
                continue
            end = start
            while end < len(order) and found[order[end]] >= level:
                end += 1
            order[start:end] = order[start:end][::-1]
            start = end
    return order


def direction(line: str) -> int:
    """Return the direction that a display takes from the first letter (P2, P3)."""
    sides = (unicodedata.bidirectional(letter) for letter in line)
    return next((int(side != "L") for side in sides if side in STRONG), 0)


WORD = re.compile("(?:[\u0590-\u05ff\u0620-\u065f][\u0300-\u036f]*)+|.", re.DOTALL)


def is_in_order(line: str) -> bool:
    """Return True if the words of a line are drawn in their order, whatever their letters are."""
    word_at = [
        number for number, found in enumerate(WORD.finditer(line)) for _ in range(len(found[0]))
    ]
    return all(
        [word_at[at] for at in drawn(line, base)] == word_at for base in {0, direction(line)}
    )


def test_the_reading_of_the_rules_sees_the_attack() -> None:
    line = f"a {ALEF} && {BET}"
    assert "".join(line[at] for at in drawn(line, 0)) == f"a {BET} && {ALEF}"
    assert not is_in_order(line)
    assert is_in_order(f"cat {ALEF}{BET}.txt")


COMMANDS = [
    f"echo {ALEF} && {BET}",
    f"mv {ALEF} {BET}",
    f"echo {MEEM}; {MEEM}",
    f"rm -rf /{ALEF}/{BET}",
    f"{ALEF} rm x",
    f"echo {ALEF} 12 {BET}",
    f"head -n {ALEF}1",
    f"echo {ARABIC_ONE}+{ARABIC_ONE}",
    f"echo '{ALEF}' > '{BET}'",
    f"echo {ALEF}\u0301 | {BET}",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_letters_that_could_change_the_order_are_escaped(command: str) -> None:
    (line,) = shown_lines(command)
    assert line.isascii() or "\u0301" in line
    assert visible(command) == line
    first, second = shown_lines(f"ls\n{command}")
    assert (first, second) == ("| ls", f"| {line}")


@pytest.mark.parametrize(
    "command",
    [
        f"cat {ALEF}{BET}.txt",
        f"cat {ALEF} && ls {BET}",
        f"git commit -m {MEEM}{MEEM}",
        f"a {ALEF}\u0301{BET} b",
        "größer 漢字",
    ],
)
def test_single_words_can_be_read(command: str) -> None:
    assert shown_lines(command) == [command]


SCRIPT = st.text(f"aZ 19&|;'\"()<>./-+,:$%\t{ALEF}{BET}{MEEM}{ARABIC_ONE}\u0301漢", max_size=30)


@given(SCRIPT)
def test_every_line_is_drawn_in_its_order(text: str) -> None:
    for line in (visible(text), *shown_lines(text), *shown_lines(f"a\n{text}")):
        assert is_in_order(line), line


@given(st.lists(SCRIPT, min_size=1))
def test_long_texts_too(parts: list[str]) -> None:
    for line in shown_lines("a ".join(parts), most=20):
        assert is_in_order(line), line


def test_all_letters_from_the_right_are_known() -> None:
    letters = map(chr, range(sys.maxunicode + 1))
    kinds = ("R", "AL", "AN")
    found = [one for one in letters if unicodedata.bidirectional(one) in kinds]
    assert len(found) > 1_000
    assert [one for one in found if not visible(f"{one} {one}").isascii()] == []


def test_a_text_of_nothing_else_is_cut_as_it_is_shown() -> None:
    lines = shown_lines(f"{ALEF} " * 100_000)
    assert sum(map(len, lines)) < SHOWN_CHARACTERS + 100


def question(*command: str, **members: object) -> Question:
    given_: dict[str, object] = {
        "kind": QuestionKind.COMMAND,
        "call_id": "c",
        "environment_id": "local",
        "command": command,
        "cwd": "/ws",
        "digest": "d",
        **members,
    }
    return Question(**given_)  # type: ignore[arg-type]  # each test gives what fits


MIXED = f"{ALEF}/{BET}"
ESCAPED = "\\u05d0/\\u05d1"


async def test_all_of_a_question_is_in_order() -> None:
    asked = question(
        *("ls", MIXED),
        cwd=f"/ws/{MIXED}",
        explanation=f"`rm {MIXED}` deletes",
        proposed_amendment=("ls", MIXED),
        denied=DeniedRun(what=f"/ws/{MIXED}", output="", exit_code=1, network_attempts=(MIXED,)),
    )
    heading, details = question_text(asked)
    assert prefix_text(asked).count(ESCAPED) == 1
    assert heading == f"Run this command in /ws/{ESCAPED}?"
    text = "\n".join(details)
    assert (text.count(ESCAPED), text.count(ALEF)) == (5, 0)
    shown = io.StringIO()
    await TerminalApprover(io.StringIO("n\n"), shown).ask(asked)
    assert ALEF not in shown.getvalue()
    form = elicitation(asked).params
    assert ALEF not in form.message
    files = (PatchedFile(kind="update", path=f"/{MIXED}", move_to=MIXED, leads_to=MIXED),)
    (line,) = question_text(question(kind=QuestionKind.FILE_CHANGE, files=files))[1]
    assert line == f"update /{ESCAPED} to {ESCAPED} (a link to {ESCAPED})"


def test_prose_is_left_to_its_language() -> None:
    files = (PatchedFile(kind="update", path="/a", hunks=f"+{MIXED}"),)
    asked = question("ls", reason=MIXED, denied=DeniedRun(what="w", output=MIXED, exit_code=1))
    assert [line for line in question_text(asked)[1] if ALEF in line] == [
        f"Reason: {MIXED}",
        f"Output: {MIXED}",
    ]
    patch = question(kind=QuestionKind.FILE_CHANGE, files=files)
    assert f"| +{MIXED}" in question_text(patch)[1]
