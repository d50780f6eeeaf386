"""Policies: how they are written, and what they may ask about."""

import pytest

from holdfast.agent.approvals.decide import escalation_refusal, policy_refusal
from holdfast.agent.approvals.policies import (
    NEVER,
    ON_REQUEST,
    UNTRUSTED,
    ApprovalPolicy,
    Granular,
    PolicyKind,
    PromptKind,
    as_policy,
    parse_policy,
)
from holdfast.base.errors import InvalidParams

MEMBERS = {"sandbox_approval": True, "rules": False, "mcp_elicitations": True}


@pytest.mark.requirement("approvals.policies")
def test_names_and_objects() -> None:
    assert parse_policy("on-request") is ON_REQUEST
    assert parse_policy("on-failure") is ON_REQUEST
    assert parse_policy("never") is NEVER
    policy = parse_policy({"granular": MEMBERS})
    assert policy.granular == Granular(sandbox_approval=True, rules=False, mcp_elicitations=True)
    assert parse_policy(policy.to_json()) == policy
    assert as_policy(policy) is policy
    assert policy.granular is not None
    assert as_policy(policy.granular) == policy


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("untrusted", 'approval_policy = "untrusted" is no longer supported; remove this setting'),
        ("Never", "unknown approval policy `Never`"),
        ("granular", "unknown approval policy `granular`"),
        ({}, "one member"),
        ({"granular": MEMBERS, "never": True}, "one member"),
        ({"granular": True}, "`granular` must be an object"),
        ({"granular": {"rules": True}}, "missing field `sandbox_approval`"),
        ({"granular": {**MEMBERS, "colour": True}}, "unknown field `colour`"),
        ({"granular": {**MEMBERS, "rules": "yes"}}, "`granular.rules` is 'yes'"),
    ],
)
@pytest.mark.requirement("approvals.policies.errors")
def test_errors_name_what_is_wrong(value: object, text: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        parse_policy(value)
    assert text in str(caught.value)


def test_what_is_no_policy_at_all() -> None:
    with pytest.raises(TypeError, match="approval policy is 5"):
        parse_policy(5)
    with pytest.raises(InvalidParams):
        ApprovalPolicy(PolicyKind.GRANULAR)


@pytest.mark.requirement("approvals.policies.may-ask")
def test_who_may_be_asked() -> None:
    granular = parse_policy({"granular": MEMBERS})
    for kind in PromptKind:
        assert ON_REQUEST.may_ask(kind)
        assert UNTRUSTED.may_ask(kind)
        assert not NEVER.may_ask(kind)
    assert granular.may_ask(PromptKind.SANDBOX)
    assert not granular.may_ask(PromptKind.RULES)
    assert not granular.may_ask(PromptKind.PERMISSIONS)
    assert policy_refusal(ON_REQUEST, PromptKind.RULES) is None
    assert policy_refusal(NEVER, PromptKind.RULES) == (
        "approval required by policy, but AskForApproval is set to Never"
    )
    assert policy_refusal(granular, PromptKind.RULES) == (
        "approval required by policy rule, but AskForApproval::Granular.rules is false"
    )
    closed = as_policy(Granular(sandbox_approval=False, rules=True, mcp_elicitations=False))
    assert policy_refusal(closed, PromptKind.SANDBOX) == (
        "approval required by policy, but AskForApproval::Granular.sandbox_approval is false"
    )
    assert escalation_refusal(NEVER) == (
        "approval policy is Never; reject command — you cannot ask for escalated permissions if"
        " the approval policy is Never"
    )
    assert escalation_refusal(granular) is None


@pytest.mark.requirement("approvals.flow.retry")
def test_who_is_asked_after_a_denial() -> None:
    assert parse_policy({"granular": MEMBERS}).asks_after_denial
    assert UNTRUSTED.asks_after_denial
    assert not ON_REQUEST.asks_after_denial
    assert not NEVER.asks_after_denial
