"""Options for approvals: the policy, the rules and the approver."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.agent.approvals.ask import AnyApprover, as_approver
from holdfast.agent.approvals.policies import AnyPolicy, as_policy
from holdfast.agent.approvals.rules import RuleSet
from holdfast.base.dialect import limits
from holdfast.base.errors import InvalidParams

__all__ = ["ASK_LIMIT", "Approvals"]

ASK_LIMIT = 3_600.0
"""Default timeout of a question in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approvals:
    """
    Options for approvals, for one set of tools.

    Raises:
        InvalidParams: A value is invalid; the text names it.
        TypeError: A value has the wrong type.
    """

    policy: AnyPolicy = "on-request"
    """Determines which questions may be asked."""
    rules: RuleSet = field(default_factory=RuleSet)
    """Rules that allow commands, ask about them or forbid them; see `load_rules`."""
    approver: AnyApprover | None = None
    """The person or program to ask; without one, every question is declined."""
    home: Path | None = None
    """The directory for accepted amendments, which are stored in its `rules/default.rules`."""
    additional_permissions: bool = False
    """If True, calls may request `with_additional_permissions`."""
    permission_requests: bool = False
    """If True, the model has the tool `request_permissions`."""
    rules_leave_sandbox: bool = False
    """
    If True, commands that rules allow run without a sandbox.

    Otherwise only those of rules with `sandbox="none"` do.
    """
    unreadable_runs: bool = False
    """
    If True, a script with a syntax error runs, and the shell reports the error.

    Otherwise it is refused with the error and its position. If an error is only possible, the
    approver is asked.
    """
    retry_window: float | None = None
    """
    Seconds after its start in which a denied command may be asked about; None for as long as its
    first call waits.
    """
    reask: bool = True
    """If False, a denied command that was approved before runs again without a question."""
    retry_on_request: bool = False
    """If True, the policy on-request also asks after a denial."""
    broader_amendments: bool = False
    """If True, an answer may store a broader prefix than the question proposed."""
    ask_limit: float | None = ASK_LIMIT
    """Seconds until an unanswered question counts as declined; None for no limit."""

    def __post_init__(self) -> None:
        as_policy(self.policy)
        if not isinstance(self.rules, RuleSet):
            raise TypeError(f"rules is {self.rules!r}, it must be a RuleSet; see load_rules")
        if self.approver is not None:
            as_approver(self.approver)
        if self.home is not None and not isinstance(self.home, Path):
            raise TypeError(f"home is {self.home!r}, it must be a Path")
        for name in ("retry_window", "ask_limit"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise InvalidParams(f"{name} is {value!r}, it must be in seconds")

    @classmethod
    def like_codex(
        cls,
        *,
        policy: AnyPolicy = "on-request",
        rules: RuleSet | None = None,
        approver: AnyApprover | None = None,
        home: Path | None = None,
    ) -> "Approvals":
        """Return options with which rules and retries work as in other programs."""
        return cls(
            policy=policy,
            rules=RuleSet() if rules is None else rules,
            approver=approver,
            home=home,
            rules_leave_sandbox=True,
            unreadable_runs=True,
            retry_window=limits.TOOL_GRACE,
            reask=False,
            broader_amendments=True,
        )
