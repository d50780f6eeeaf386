"""
Approvals: decide whether a command may run, needs a question, or is refused.

The package handles commands, rules and approvers. It does not start commands: the tools of
`unified_exec` and `command_exec` do that, according to the decision.
"""

from typing import TYPE_CHECKING

from holdfast.base.late_import import late_names

if TYPE_CHECKING:
    from holdfast.agent.approvals.approval_options import Approvals
    from holdfast.agent.approvals.ask import (
        REVIEW_LIMIT,
        AnyApprover,
        ApprovalChain,
        Approver,
        CallbackApprover,
        QuestionAnswered,
        QuestionQueue,
        Reviewer,
        TerminalApprover,
    )
    from holdfast.agent.approvals.decide import Cause, Judgement, SegmentRuling, decide
    from holdfast.agent.approvals.flow import ApprovalFlow
    from holdfast.agent.approvals.layers import load_rules
    from holdfast.agent.approvals.permissions import AddedPermissions
    from holdfast.agent.approvals.policies import (
        NEVER,
        ON_REQUEST,
        UNTRUSTED,
        ApprovalPolicy,
        Granular,
        PolicyKind,
        PromptKind,
        parse_policy,
    )
    from holdfast.agent.approvals.question import (
        Decision,
        DecisionKind,
        DeniedRun,
        Question,
        QuestionKind,
    )
    from holdfast.agent.approvals.rules import PrefixRule, RuleMatch, RuleSet, Ruling
    from holdfast.agent.approvals.start_permission import (
        CallCancelled,
        Clearance,
        CommandDeclined,
        CommandRefused,
        CommandRequest,
        EscalationRefused,
        InputRefused,
        InputToSend,
        judge,
    )

__all__ = [
    "NEVER",
    "ON_REQUEST",
    "REVIEW_LIMIT",
    "UNTRUSTED",
    "AddedPermissions",
    "AnyApprover",
    "ApprovalChain",
    "ApprovalFlow",
    "ApprovalPolicy",
    "Approvals",
    "Approver",
    "CallCancelled",
    "CallbackApprover",
    "Cause",
    "Clearance",
    "CommandDeclined",
    "CommandRefused",
    "CommandRequest",
    "Decision",
    "DecisionKind",
    "DeniedRun",
    "EscalationRefused",
    "Granular",
    "InputRefused",
    "InputToSend",
    "Judgement",
    "PolicyKind",
    "PrefixRule",
    "PromptKind",
    "Question",
    "QuestionAnswered",
    "QuestionKind",
    "QuestionQueue",
    "Reviewer",
    "RuleMatch",
    "RuleSet",
    "Ruling",
    "SegmentRuling",
    "TerminalApprover",
    "decide",
    "judge",
    "load_rules",
    "parse_policy",
]

# Imported on use, so that programs without approvals do not pay for them.
_HOMES = {
    "holdfast.agent.approvals.ask": (
        "REVIEW_LIMIT",
        "AnyApprover",
        "ApprovalChain",
        "Approver",
        "CallbackApprover",
        "QuestionAnswered",
        "QuestionQueue",
        "Reviewer",
        "TerminalApprover",
    ),
    "holdfast.agent.approvals.start_permission": (
        "CallCancelled",
        "Clearance",
        "CommandDeclined",
        "CommandRefused",
        "CommandRequest",
        "EscalationRefused",
        "InputRefused",
        "InputToSend",
        "judge",
    ),
    "holdfast.agent.approvals.decide": (
        "Cause",
        "Judgement",
        "SegmentRuling",
        "decide",
    ),
    "holdfast.agent.approvals.flow": ("ApprovalFlow",),
    "holdfast.agent.approvals.layers": ("load_rules",),
    "holdfast.agent.approvals.approval_options": ("Approvals",),
    "holdfast.agent.approvals.permissions": ("AddedPermissions",),
    "holdfast.agent.approvals.policies": (
        "NEVER",
        "ON_REQUEST",
        "UNTRUSTED",
        "Granular",
        "ApprovalPolicy",
        "PolicyKind",
        "PromptKind",
        "parse_policy",
    ),
    "holdfast.agent.approvals.question": (
        "Decision",
        "DecisionKind",
        "DeniedRun",
        "Question",
        "QuestionKind",
    ),
    "holdfast.agent.approvals.rules": (
        "PrefixRule",
        "RuleMatch",
        "RuleSet",
        "Ruling",
    ),
}

__getattr__ = late_names(
    globals(), {name: f"{home}:{name}" for home, names in _HOMES.items() for name in names}
)


def __dir__() -> list[str]:
    return __all__
