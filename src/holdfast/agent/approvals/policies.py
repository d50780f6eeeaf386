"""
Approval policies: which questions about commands may be asked.

The names are fixed: `on-request`, `never`, `granular` and, for untrusted projects, `untrusted`.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from holdfast.base.errors import InvalidParams

__all__ = [
    "NEVER",
    "ON_REQUEST",
    "UNTRUSTED",
    "AnyPolicy",
    "ApprovalPolicy",
    "Granular",
    "PolicyKind",
    "PromptKind",
    "as_policy",
    "parse_policy",
]

UNTRUSTED_REMOVED = 'approval_policy = "untrusted" is no longer supported; remove this setting'


class PolicyKind(enum.StrEnum):
    """The four policies, by their names in settings."""

    ON_REQUEST = "on-request"
    """Run in the sandbox without asking; ask for escalation, prompt rules and danger."""
    NEVER = "never"
    """Refuse instead of asking."""
    GRANULAR = "granular"
    """
    Like on-request, but each kind of question can be disabled, and denials are asked about.
    """
    UNTRUSTED = "untrusted"
    """Ask about every command that no rule allows."""


class PromptKind(enum.StrEnum):
    """Kinds of questions in a granular policy, by the names of its members."""

    SANDBOX = "sandbox_approval"
    RULES = "rules"
    MCP = "mcp_elicitations"
    SKILLS = "skill_approval"
    PERMISSIONS = "request_permissions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Granular:
    """The members of a granular policy: True permits asking, False refuses."""

    sandbox_approval: bool
    rules: bool
    mcp_elicitations: bool
    skill_approval: bool = False
    request_permissions: bool = False


_REQUIRED = ("sandbox_approval", "rules", "mcp_elicitations")
_MEMBERS = tuple(field.name for field in fields(Granular))
# The order in which members are shown.
_SHOWN = (
    "sandbox_approval",
    "rules",
    "skill_approval",
    "request_permissions",
    "mcp_elicitations",
)


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """An approval policy."""

    kind: PolicyKind
    granular: Granular | None = None
    """The members; set if and only if the policy is granular."""

    def __post_init__(self) -> None:
        if (self.kind is PolicyKind.GRANULAR) != (self.granular is not None):
            raise InvalidParams("a granular policy needs its members, the others have none")

    def may_ask(self, kind: PromptKind) -> bool:
        """Return True if questions of this kind may be asked."""
        if self.granular is not None:
            allowed: bool = getattr(self.granular, kind.value)
            return allowed
        return self.kind is not PolicyKind.NEVER

    @property
    def asks_after_denial(self) -> bool:
        """True if the policy asks after a denial by the sandbox; on-request does not [7]."""
        if self.granular is not None:
            return self.granular.sandbox_approval
        return self.kind is PolicyKind.UNTRUSTED

    @property
    def debug(self) -> str:
        """The form for refusals."""
        if self.granular is None:
            return _DEBUG[self.kind]
        shown = (f"{name}: {str(getattr(self.granular, name)).lower()}" for name in _SHOWN)
        return f"Granular(GranularApprovalConfig {{ {', '.join(shown)} }})"

    def to_json(self) -> str | dict[str, dict[str, bool]]:
        """Return the policy in the form of settings."""
        if self.granular is None:
            return self.kind.value
        return {"granular": {name: getattr(self.granular, name) for name in _MEMBERS}}


_DEBUG = {
    PolicyKind.ON_REQUEST: "OnRequest",
    PolicyKind.NEVER: "Never",
    PolicyKind.UNTRUSTED: "UnlessTrusted",
}

ON_REQUEST: Final = ApprovalPolicy(PolicyKind.ON_REQUEST)
NEVER: Final = ApprovalPolicy(PolicyKind.NEVER)
UNTRUSTED: Final = ApprovalPolicy(PolicyKind.UNTRUSTED)
"""Not a user setting: `parse_policy` refuses its name, but a program may use it."""

AnyPolicy = str | Mapping[str, object] | Granular | ApprovalPolicy
"""A policy by its name, as the object `{"granular": {…}}`, or the policy itself."""

_NAMES = {
    "on-request": ON_REQUEST,
    # An older name for this policy.
    "on-failure": ON_REQUEST,
    "never": NEVER,
}


def as_policy(value: AnyPolicy) -> ApprovalPolicy:
    """
    Return the policy for a name, an object or a policy.

    Raises:
        InvalidParams: The policy is invalid; the text says why.
        TypeError: The value is of another type.
    """
    if isinstance(value, ApprovalPolicy):
        return value
    if isinstance(value, Granular):
        return ApprovalPolicy(PolicyKind.GRANULAR, value)
    return parse_policy(value)


def parse_policy(value: object) -> ApprovalPolicy:
    """
    Return the policy of a setting.

    Args:
        value: `on-request`, `on-failure` (the same), `never`, or `{"granular": {…}}`.

    Raises:
        InvalidParams: The policy is unknown, or a member is missing, unknown or not a boolean.
        TypeError: The value is neither a string nor an object.
    """
    if isinstance(value, str):
        if value == PolicyKind.UNTRUSTED:
            raise InvalidParams(UNTRUSTED_REMOVED)
        policy = _NAMES.get(value)
        if policy is None:
            raise InvalidParams(
                f"unknown approval policy `{value}`, expected `on-request`, `never` or an object"
                " with `granular`"
            )
        return policy
    if not isinstance(value, Mapping):
        raise TypeError(f"approval policy is {value!r}, it must be a name or an object")
    if list(value) != ["granular"]:
        raise InvalidParams("an approval policy that is an object has one member, `granular`")
    members = value["granular"]
    if not isinstance(members, Mapping):
        raise InvalidParams("`granular` must be an object")
    return ApprovalPolicy(PolicyKind.GRANULAR, _granular(members))


def _granular(members: Mapping[object, object]) -> Granular:
    for name in _REQUIRED:
        if name not in members:
            raise InvalidParams(f"`granular`: missing field `{name}`")
    given: dict[str, bool] = {}
    for key, member in members.items():
        if not isinstance(key, str) or key not in _MEMBERS:
            expected = ", ".join(f"`{known}`" for known in _MEMBERS)
            raise InvalidParams(f"`granular`: unknown field `{key}`, expected one of {expected}")
        if not isinstance(member, bool):
            raise InvalidParams(f"`granular.{key}` is {member!r}, it must be true or false")
        given[key] = member
    return Granular(**given)
