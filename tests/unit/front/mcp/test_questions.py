"""Questions as forms, and the decisions that answers stand for."""

from dataclasses import replace
from typing import Any

import pytest
from mcp_types import ClientCapabilities, ElicitResult

from holdfast.agent.approvals.question import DecisionKind, DeniedRun, Question, QuestionKind
from holdfast.front.mcp.questions import decision_of, elicitation, why_not_asked

QUESTION = Question(
    kind=QuestionKind.COMMAND,
    call_id="c",
    environment_id="local",
    command=("bash", "-c", "touch a"),
    cwd="/work",
    digest="d",
    reason="may I?",
    proposed_amendment=("touch",),
    leaves_sandbox=True,
    amendment_leaves_sandbox=True,
)


def form(question: Question) -> Any:
    params: Any = elicitation(question).params
    return params


def choices(question: Question) -> list[str]:
    found: list[str] = form(question).requested_schema["properties"]["decision"]["enum"]
    return found


def test_a_question_shows_the_command_its_folder_and_the_reason() -> None:
    message = form(QUESTION).message
    assert message.startswith("Run this command outside its sandbox in /work?")
    assert "bash -c 'touch a'" in message
    assert "Reason: may I?" in message
    assert form(QUESTION).meta["holdfast/approval"]["command"] == QUESTION.command_line


def test_a_rule_for_runs_outside_the_sandbox_is_offered_as_one() -> None:
    def titles(question: Question) -> list[str]:
        found: list[str] = form(question).requested_schema["properties"]["decision"]["enumNames"]
        return found

    always = "Yes, and always commands beginning with `touch`"
    assert titles(QUESTION)[2] == f"{always}, outside the sandbox"
    inside = replace(QUESTION, leaves_sandbox=False, amendment_leaves_sandbox=False)
    assert titles(inside)[2] == always


def test_nothing_in_a_command_can_hide_a_part_of_it() -> None:
    hidden = replace(QUESTION, command=("echo", "a\u202e\x1b[8m\r\n\n\n\n\necho b"))
    lines = form(hidden).message.split("\n")
    assert lines[2:5] == ["| echo 'a\\u202e\\x1b[8m\\r", "… 4 empty lines", "| echo b'"]


def test_only_what_can_be_remembered_is_offered() -> None:
    accept, session, prefix, decline = (
        "accept",
        "acceptForSession",
        "acceptWithExecpolicyAmendment",
        "decline",
    )
    assert choices(QUESTION) == [accept, session, prefix, decline]
    assert choices(replace(QUESTION, proposed_amendment=None)) == [accept, session, decline]
    typed = replace(QUESTION, kind=QuestionKind.WRITE_STDIN, proposed_amendment=None)
    assert choices(typed) == [accept, decline]
    denied = DeniedRun(what="a write", output="no", exit_code=1)
    again = replace(QUESTION, denied=denied, proposed_amendment=None)
    assert choices(again) == [accept, decline]


@pytest.mark.parametrize(
    ("action", "content", "kind"),
    [
        ("accept", {"decision": "accept"}, DecisionKind.ACCEPT),
        ("accept", {"decision": "acceptForSession"}, DecisionKind.ACCEPT_FOR_SESSION),
        ("accept", {}, DecisionKind.ACCEPT),
        ("accept", None, DecisionKind.ACCEPT),
        ("accept", {"decision": "decline"}, DecisionKind.DECLINE),
        ("accept", {"decision": "always"}, DecisionKind.DECLINE),
        ("accept", {"decision": None}, DecisionKind.DECLINE),
        ("accept", {"decision": ["accept"]}, DecisionKind.DECLINE),
        ("accept", {"decision": True}, DecisionKind.DECLINE),
        ("decline", {"decision": "accept"}, DecisionKind.DECLINE),
        ("cancel", {"decision": "accept"}, DecisionKind.CANCEL),
    ],
)
def test_an_answer_is_a_decision(action: Any, content: Any, kind: DecisionKind) -> None:
    decision = decision_of(QUESTION, ElicitResult(action=action, content=content))
    assert decision.kind is kind
    assert decision.question_id == QUESTION.id


def test_a_prefix_is_the_one_that_was_proposed() -> None:
    answer = ElicitResult(
        action="accept", content={"decision": "acceptWithExecpolicyAmendment", "prefix": "sh"}
    )
    assert decision_of(QUESTION, answer).amendment == ("touch",)
    other = replace(QUESTION, proposed_amendment=None)
    assert decision_of(other, answer).kind is DecisionKind.DECLINE


@pytest.mark.parametrize(
    ("declared", "able"),
    [
        (None, False),
        ({}, False),
        ({"elicitation": {}}, True),
        ({"elicitation": {"form": {}}}, True),
        ({"elicitation": {"form": {}, "url": {}}}, True),
        ({"elicitation": {"url": {}}}, False),
    ],
)
def test_who_can_show_a_form(declared: Any, able: bool) -> None:
    capabilities = None if declared is None else ClientCapabilities.model_validate(declared)
    assert (why_not_asked(capabilities, QUESTION) is None) is able


@pytest.mark.requirement("approvals.human.once")
def test_a_question_for_a_person_is_put_to_clients_that_ask_one() -> None:
    human = replace(QUESTION, kind=QuestionKind.HUMAN_COMMAND)
    assert choices(human) == ["accept", "decline"]
    assert form(human).meta["holdfast/approval"]["kind"] == "humanCommand"
    plain = ClientCapabilities.model_validate({"elicitation": {}})
    refusal = why_not_asked(plain, human)
    assert refusal is not None
    assert refusal.startswith("approval request failed: only a person may allow this command")
    able: Any = {"elicitation": {}, "experimental": {"requiredHumanApproval": {}}}
    assert why_not_asked(ClientCapabilities.model_validate(able), human) is None
    formless: Any = {"experimental": {"requiredHumanApproval": {}}}
    assert why_not_asked(ClientCapabilities.model_validate(formless), human) is not None
    for chosen in ("acceptForSession", "acceptWithExecpolicyAmendment"):
        answer = ElicitResult(action="accept", content={"decision": chosen})
        decision = decision_of(human, answer)
        assert decision.kind is DecisionKind.DECLINE
        assert decision.rejection == "Managed command policy requires a one-time human approval."


def test_an_unknown_kind_is_asked_about_and_not_remembered() -> None:
    unknown = replace(QUESTION, kind="laterKind")  # type: ignore[arg-type]  # as of a later version
    assert choices(unknown) == ["accept", "decline"]
    assert form(unknown).message.startswith("Run this command outside its sandbox in /work?")
