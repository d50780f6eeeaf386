"""
Questions for clients: text, form, and the decision for a completed form.

Independent of connections and calls. The members of `holdfast/approval` are those of
`item/commandExecution/requestApproval`, for clients that show more than text.
"""

from typing import Final

from mcp_types import (
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
)

from holdfast.agent.approvals.question import (
    ONCE_ONLY,
    Decision,
    DecisionKind,
    Question,
    QuestionKind,
)
from holdfast.agent.approvals.question_text import prefix_text, question_text
from holdfast.base.dialect import texts

__all__ = [
    "APPROVAL_META",
    "HUMAN_APPROVAL",
    "decision_of",
    "elicitation",
    "why_not_answered",
    "why_not_asked",
]

APPROVAL_META: Final = "holdfast/approval"
"""Member of `_meta` with the complete question."""

HUMAN_APPROVAL: Final = "requiredHumanApproval"
"""Experimental capability of a client that asks a human about a `humanCommand`."""

_CANNOT_ASK: Final = (
    "this client cannot be asked (it does not offer elicitation), as if `holdfast mcp` ran with"
    " `--ask-for-approval never`; `--rules FILE` allows single commands, `--sandbox` sets what"
    " all of them may do"
)

_CANNOT_ASK_PERSON: Final = (
    f"{texts.NO_PERSON}: only a person may allow this command, and this client does not say that it"
    f" asks one (experimental capability `{HUMAN_APPROVAL}`)"
)

_TITLES: Final = {
    DecisionKind.ACCEPT: "Yes, this time",
    DecisionKind.ACCEPT_FOR_SESSION: "Yes, and the same again in this session",
    DecisionKind.ACCEPT_WITH_AMENDMENT: "Yes, and always commands beginning with `{prefix}`{where}",
    DecisionKind.DECLINE: "No",
}


# Answers that apply to more than this call.
_LONGER: Final = (DecisionKind.ACCEPT_FOR_SESSION, DecisionKind.ACCEPT_WITH_AMENDMENT)


def why_not_asked(capabilities: ClientCapabilities | None, question: Question) -> str | None:
    """Return the refusal for a client that cannot be asked a question, or None."""
    offered = None if capabilities is None else capabilities.elicitation
    # A client that names no mode supports forms.
    if offered is None or (offered.form is None and offered.url is not None):
        return _CANNOT_ASK
    return why_not_answered(capabilities, question)


def why_not_answered(capabilities: ClientCapabilities | None, question: Question) -> str | None:
    """Return the refusal for a client whose answer to a question is not acceptable, or None."""
    offered = None if capabilities is None else capabilities.experimental
    if question.kind is QuestionKind.HUMAN_COMMAND and HUMAN_APPROVAL not in (offered or {}):
        return _CANNOT_ASK_PERSON
    return None


def elicitation(question: Question) -> ElicitRequest:
    """Return the request that asks the user a question."""
    choices = _choices(question)
    prefix = prefix_text(question)
    where = ", outside the sandbox" if question.amendment_leaves_sandbox else ""
    schema = {
        "type": "object",
        "properties": {
            "decision": {
                "type": "string",
                "title": "Decision",
                "enum": [kind.value for kind in choices],
                "enumNames": [_TITLES[kind].format(prefix=prefix, where=where) for kind in choices],
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
    Return the decision for an answer.

    Accepting without a choice approves this call only. A choice that was not offered declines.
    """
    if answer.action == "cancel":
        return Decision(DecisionKind.CANCEL, question_id=question.id)
    if answer.action == "decline":
        return Decision(DecisionKind.DECLINE, question_id=question.id)
    chosen = (answer.content or {}).get("decision", DecisionKind.ACCEPT.value)
    if chosen not in [kind.value for kind in _choices(question)]:
        refusal = f"the answer to the question was {chosen!r}, which was not offered"
        if question.kind is QuestionKind.HUMAN_COMMAND and chosen in _LONGER:
            refusal = ONCE_ONLY
        return Decision(DecisionKind.DECLINE, rejection=refusal, question_id=question.id)
    if chosen == DecisionKind.ACCEPT_WITH_AMENDMENT:
        return Decision(
            DecisionKind.ACCEPT_WITH_AMENDMENT,
            amendment=question.proposed_amendment,
            question_id=question.id,
        )
    return Decision.parse(chosen, question_id=question.id)


def _choices(question: Question) -> list[DecisionKind]:
    """Return the user's choices, without cancel, for which clients have a button."""
    choices = [DecisionKind.ACCEPT]
    if question.is_rememberable:
        choices.append(DecisionKind.ACCEPT_FOR_SESSION)
    if question.is_amendable:
        choices.append(DecisionKind.ACCEPT_WITH_AMENDMENT)
    return [*choices, DecisionKind.DECLINE]


def _message(question: Question) -> str:
    heading, details = question_text(question)
    return "\n".join([heading, "", *details])
