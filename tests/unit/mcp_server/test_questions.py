"""Questions as forms, and the decisions that answers stand for."""

from dataclasses import replace
from typing import Any

import pytest
from mcp_types import ClientCapabilities, ElicitResult

from holdfast.approvals.question import DecisionKind, DeniedRun, Question, QuestionKind
from holdfast.mcp_server.questions import can_ask, decision_of, elicitation

QUESTION = Question(
    kind=QuestionKind.COMMAND,
    call_id="c",
    environment_id="local",
    argv=("bash", "-c", "touch a"),
    command="bash -c 'touch a'",
    cwd="/work",
    digest="d",
    reason="may I?",
    proposed_amendment=("touch",),
    leaves_sandbox=True,
)


def form(question: Question) -> Any:
    params: Any = elicitation(question).params
    return params


def choices(question: Question) -> list[str]:
    found: list[str] = form(question).requested_schema["properties"]["decision"]["enum"]
    return found


def test_a_question_shows_the_command_its_folder_and_the_reason() -> None:
    message = form(QUESTION).message
    assert message.startswith("Run this command outside of its sandbox in /work?")
    assert "bash -c 'touch a'" in message
    assert "Reason: may I?" in message
    assert form(QUESTION).meta["holdfast/approval"]["command"] == QUESTION.command


def test_nothing_in_a_command_can_hide_a_part_of_it() -> None:
    hidden = replace(QUESTION, command="echo a\u202e\x1b[8m\r\necho b")
    message = form(hidden).message
    assert "echo a\\u202e\\x1b[8m\\r\necho b" in message


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
    assert can_ask(capabilities) is able
