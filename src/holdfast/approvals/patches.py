"""
Approval of patches: what the sandbox lets be written is not asked about, all else is.

An answer for the session is kept for each file, so the next patch to the same files is not
asked about.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.approvals.cache import CommandKey
from holdfast.approvals.clearance import (
    CallCancelled,
    CommandDeclined,
    CommandRefused,
    EscalationRefused,
)
from holdfast.approvals.decide import SandboxPermissions, escalation_refusal
from holdfast.approvals.flow import ApprovalFlow
from holdfast.approvals.permissions import escalated_context, is_restricted
from holdfast.approvals.policies import PolicyKind, PromptKind
from holdfast.approvals.question import (
    REJECTED,
    DecisionKind,
    PatchedFile,
    Question,
    QuestionKind,
)
from holdfast.approvals.write_access import WriteAccess
from holdfast.protocol.sandbox import SandboxContext

__all__ = ["PatchToWrite", "admit_patch", "refuse_escalation"]

OUTSIDE = "writing outside of the project; rejected by user approval settings"
READ_ONLY = "writing is blocked by read-only sandbox; rejected by user approval settings"

# Characters of a patch that a question shows: the first ones.
_SHOWN_PATCH = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchToWrite:
    """A patch that fits its files and waits to be written."""

    call_id: str
    environment_id: str
    cwd: str
    patch: str
    """Its text."""
    files: tuple[PatchedFile, ...]
    paths: tuple[str, ...]
    """All paths that are written or removed: as named, and with links resolved."""
    sandbox: SandboxContext | None
    access: WriteAccess
    """The paths that the sandbox allows to be written."""
    justification: str | None = None


def refuse_escalation(flow: ApprovalFlow, permissions: SandboxPermissions | None) -> None:
    """
    Refuse a call that asks for more permissions than its policy lets anybody ask for.

    Raises:
        EscalationRefused: It may not.
    """
    if permissions in (None, "use_default"):
        return
    refusal = escalation_refusal(flow.policy)
    if refusal is not None:
        raise EscalationRefused(refusal)


async def admit_patch(flow: ApprovalFlow, request: PatchToWrite) -> SandboxContext | None:
    """
    Decide about a patch, ask if need be, and return the sandbox to write it in.

    Raises:
        CommandRefused: It may not be written, or somebody declined it.
        CallCancelled: Somebody was asked and cancelled the call.
    """
    allowed = all(map(request.access.may_write, request.paths))
    if allowed and flow.policy.kind is not PolicyKind.UNTRUSTED:
        return request.sandbox
    if not flow.policy.may_ask(PromptKind.SANDBOX):
        raise CommandRefused(OUTSIDE if request.access.writes_anything else READ_ONLY)
    keys = [_key(request, path) for path in request.paths]
    if not flow.cache.holds(*keys):
        await _ask(flow, request, keys, leaves_sandbox=not allowed)
    if allowed or not is_restricted(request.sandbox):
        return request.sandbox
    return escalated_context(request.sandbox)


async def _ask(
    flow: ApprovalFlow,
    request: PatchToWrite,
    keys: Sequence[CommandKey],
    *,
    leaves_sandbox: bool,
) -> None:
    digest = hashlib.sha256(
        "\0".join((request.patch, request.environment_id, *request.paths)).encode()
    )
    question = Question(
        kind=QuestionKind.FILE_CHANGE,
        call_id=request.call_id,
        environment_id=request.environment_id,
        argv=(),
        command="apply_patch",
        cwd=request.cwd,
        digest=digest.hexdigest(),
        reason=request.justification,
        script=request.patch[:_SHOWN_PATCH],
        leaves_sandbox=leaves_sandbox,
        files=request.files,
    )
    decision = await flow.ask(question)
    if decision.kind is DecisionKind.CANCEL:
        raise CallCancelled(REJECTED)
    if not decision.accepts:
        raise CommandDeclined(decision.rejection or REJECTED)
    if decision.kind is DecisionKind.ACCEPT_FOR_SESSION:
        for key in keys:
            flow.cache.add(key)


def _key(request: PatchToWrite, path: str) -> CommandKey:
    return CommandKey(
        environment_id=request.environment_id,
        executable="apply_patch",
        command=(path,),
        cwd="",
        tty=False,
        sandbox_permissions="use_default",
    )
