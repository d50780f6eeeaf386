"""
Questions as clients show them: the text, the form, and the decision that a form stands for.

Knows neither connections nor calls. The members of `holdfast/approval` are those of Codex's
`item/commandExecution/requestApproval`, for clients that want to show more than a text.
"""

from typing import Final

from mcp_types import (
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
)

from holdfast.approvals.question import Decision, DecisionKind, Question, QuestionKind
from holdfast.approvals.question_text import question_text, visible

__all__ = ["APPROVAL_META", "CANNOT_ASK", "can_ask", "decision_of", "elicitation"]

APPROVAL_META: Final = "holdfast/approval"
"""The member of `_meta` that has the question in full."""

CANNOT_ASK: Final = (
    "this client cannot be asked (it does not offer elicitation), as if `holdfast mcp` ran with"
    " `--ask-for-approval never`; `--rules FILE` allows single commands, `--sandbox` sets what"
    " all of them may do"
)

_TITLES: Final = {
    DecisionKind.ACCEPT: "Yes, this time",
    DecisionKind.ACCEPT_FOR_SESSION: "Yes, and the same again in this session",
    DecisionKind.ACCEPT_WITH_AMENDMENT: "Yes, and always commands that begin with `{prefix}`",
    DecisionKind.DECLINE: "No",
}


def can_ask(capabilities: ClientCapabilities | None) -> bool:
    """Return True if the client can show a form; one that names no mode can."""
    offered = None if capabilities is None else capabilities.elicitation
    return offered is not None and (offered.form is not None or offered.url is None)


def elicitation(question: Question) -> ElicitRequest:
    """Return the request that puts a question to a person."""
    choices = _choices(question)
    prefix = visible(" ".join(question.proposed_amendment or ()))
    schema = {
        "type": "object",
        "properties": {
            "decision": {
                "type": "string",
                "title": "Decision",
                "enum": [kind.value for kind in choices],
                "enumNames": [_TITLES[kind].format(prefix=prefix) for kind in choices],
                "default": DecisionKind.ACCEPT.value,
            }
        },
    }
    params = ElicitRequestFormParams.model_validate(
        {
            "message": _message(question),
            "requestedSchema": schema,
            "_meta": {APPROVAL_META: question.to_json()},
        }
    )
    return ElicitRequest(params=params)


def decision_of(question: Question, answer: ElicitResult) -> Decision:
    """
    Return the decision that an answer stands for.

    Whoever accepts without a choice says yes to this one time. What was not offered is no.
    """
    if answer.action == "cancel":
        return Decision(DecisionKind.CANCEL, question_id=question.id)
    if answer.action == "decline":
        return Decision(DecisionKind.DECLINE, question_id=question.id)
    chosen = (answer.content or {}).get("decision", DecisionKind.ACCEPT.value)
    if chosen not in [kind.value for kind in _choices(question)]:
        refusal = f"the answer to the question was {chosen!r}, which was not offered"
        return Decision(DecisionKind.DECLINE, rejection=refusal, question_id=question.id)
    if chosen == DecisionKind.ACCEPT_WITH_AMENDMENT:
        return Decision(
            DecisionKind.ACCEPT_WITH_AMENDMENT,
            amendment=question.proposed_amendment,
            question_id=question.id,
        )
    return Decision.parse(chosen, question_id=question.id)


def _choices(question: Question) -> list[DecisionKind]:
    """Return what a person may choose; to cancel is the client's own button."""
    choices = [DecisionKind.ACCEPT]
    remembered = question.kind in (QuestionKind.COMMAND, QuestionKind.FILE_CHANGE)
    if remembered and question.denied is None:
        choices.append(DecisionKind.ACCEPT_FOR_SESSION)
    if question.proposed_amendment is not None and not question.permissions:
        choices.append(DecisionKind.ACCEPT_WITH_AMENDMENT)
    return [*choices, DecisionKind.DECLINE]


def _message(question: Question) -> str:
    # Commands of several lines stay so: a form is no terminal.
    heading, details = question_text(question, keep="\n\t")
    return "\n".join([heading, "", *details])
