"""The state between two rounds: only what this server made, for this client and this question."""

import random
import string
import time
from types import SimpleNamespace
from typing import Any, cast

import mcp_types as types
import pytest

from holdfast.agent.approvals.question import Question, QuestionKind
from holdfast.front.mcp.rounds import BadState, Rounds, answer_of
from holdfast.front.mcp.tool_calls import ToolCall

ARGUMENTS = {"cmd": "touch a", "login": False}
LETTERS = string.ascii_letters + string.digits + "-_.=+/ \n\0é"


def question() -> Question:
    return Question(
        kind=QuestionKind.COMMAND,
        call_id="c",
        environment_id="local",
        command=("sh", "-c", "touch a"),
        cwd="/",
        digest="d" * 64,
    )


def params(
    state: str | None = None,
    *,
    name: str = "exec_command",
    arguments: dict[str, Any] | None = None,
    answers: dict[str, Any] | None = None,
) -> types.CallToolRequestParams:
    return types.CallToolRequestParams(
        name=name,
        arguments=ARGUMENTS if arguments is None else arguments,
        request_state=state,
        input_responses=answers,
    )


def sealed(given: Rounds, asked: Question) -> str:
    call = cast("ToolCall", SimpleNamespace(id="call_1"))
    state = given.required("me", params(), call, asked).request_state
    assert state is not None
    return state


def test_a_state_is_opened_by_whom_it_was_made_for() -> None:
    given, asked = Rounds(), question()
    found = given.open("me", params(sealed(given, asked)))
    assert found is not None
    assert (found.call_id, found.question_id, found.digest) == ("call_1", asked.id, asked.digest)
    assert found.same_arguments


def test_the_first_round_has_no_state() -> None:
    assert Rounds().open("me", params()) is None


@pytest.mark.requirement("security.mcp.rounds")
def test_changed_arguments_are_noticed() -> None:
    given = Rounds()
    state = sealed(given, question())
    for changed in (
        {"cmd": "touch b", "login": False},
        {"cmd": "touch a"},
        {},
        {"cmd": ["touch a"]},
    ):
        found = given.open("me", params(state, arguments=changed))
        assert found is not None
        assert not found.same_arguments
    reordered = given.open("me", params(state, arguments=dict(reversed(ARGUMENTS.items()))))
    assert reordered is not None
    assert reordered.same_arguments


@pytest.mark.requirement("security.mcp.rounds")
@pytest.mark.parametrize("key", ["you", "", "me "])
def test_the_state_of_another_client_is_refused(key: str) -> None:
    given = Rounds()
    with pytest.raises(BadState, match="nothing was run"):
        given.open(key, params(sealed(given, question())))


@pytest.mark.requirement("security.mcp.rounds")
def test_the_state_of_another_tool_or_server_is_refused() -> None:
    given = Rounds()
    state = sealed(given, question())
    with pytest.raises(BadState):
        given.open("me", params(state, name="write_stdin"))
    with pytest.raises(BadState):
        Rounds().open("me", params(state))


def test_an_old_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Rounds(limit=60)
    state = sealed(given, question())
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(BadState):
        given.open("me", params(state))


def mutated(state: str, chance: random.Random) -> str:
    """A state that somebody has tampered with."""
    at = chance.randrange(len(state))
    match chance.randrange(5):
        case 0:
            return state[:at] + chance.choice(LETTERS) + state[at + 1 :]
        case 1:
            return state[:at] + state[at + 1 :]
        case 2:
            return state[:at] + chance.choice(LETTERS) + state[at:]
        case 3:
            return state[:at]
        case _:
            other = chance.randrange(len(state))
            low, high = min(at, other), max(at, other)
            return state[:low] + state[high:] + state[low:high]


@pytest.mark.requirement("security.mcp.rounds")
@pytest.mark.parametrize(
    "count", [3_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(300)])]
)
def test_mutations_are_refused(count: int) -> None:
    given = Rounds()
    states = [sealed(given, question()) for _ in range(8)]
    chance = random.Random(count)
    refused = 0
    while refused < count:
        changed = mutated(chance.choice(states), chance)
        if changed in states:
            continue
        with pytest.raises(BadState):
            given.open("me", params(changed))
        refused += 1


def test_an_answer_of_another_kind_is_none() -> None:
    assert answer_of(params()) is None
    assert answer_of(params(answers={"other": types.ElicitResult(action="accept")})) is None
    accepted = types.ElicitResult(action="accept")
    assert answer_of(params(answers={"approval": accepted})) == accepted
