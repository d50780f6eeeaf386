"""
Approval of patches: only asks about writes that the sandbox would deny.

An answer for the session is remembered for each file, so that the next patch to the same files
needs no question.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.agent.approvals.approval_cache import CommandKey
from holdfast.agent.approvals.decide import SandboxPermissions, escalation_refusal
from holdfast.agent.approvals.flow import ApprovalFlow
from holdfast.agent.approvals.permissions import escalated_context, is_restricted
from holdfast.agent.approvals.policies import PolicyKind, PromptKind
from holdfast.agent.approvals.question import (
    REJECTED,
    DecisionKind,
    PatchedFile,
    Question,
    QuestionKind,
)
from holdfast.agent.approvals.question_text import file_lines
from holdfast.agent.approvals.shown_text import SHOWN_CHARACTERS, SHOWN_LINES, fits
from holdfast.agent.approvals.start_permission import (
    CallCancelled,
    CommandDeclined,
    CommandRefused,
    EscalationRefused,
)
from holdfast.agent.approvals.write_access import WriteAccess
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["PatchToWrite", "admit_patch", "refuse_escalation"]

OUTSIDE = "writing outside of the project; rejected by user approval settings"
READ_ONLY = "writing is blocked by read-only sandbox; rejected by user approval settings"

_OUTSIDE = "it writes what its sandbox does not let it write"
_EVERY = "the policy asks about every patch"

# Length above which a patch is analysed in a thread.
_LONG = 4 * SHOWN_CHARACTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchToWrite:
    """A patch that matches its files and is about to be written."""

    call_id: str
    environment_id: str
    cwd: str
    patch: str
    """The text of the patch."""
    files: Callable[[], tuple[PatchedFile, ...]]
    """Returns its changes, in order; may be slow for a large patch."""
    paths: tuple[str, ...]
    """All paths to write or remove: as named, and with links resolved."""
    sandbox: SandboxContext | None
    access: WriteAccess
    """The paths that the sandbox permits writing."""
    justification: str | None = None


def refuse_escalation(flow: ApprovalFlow, permissions: SandboxPermissions | None) -> None:
    """
    Refuse a call that requests more permissions if the policy does not permit asking for them.

    Raises:
        EscalationRefused: The policy does not permit it.
    """
    if permissions in (None, "use_default"):
        return
    refusal = escalation_refusal(flow.policy)
    if refusal is not None:
        raise EscalationRefused(refusal)


async def admit_patch(flow: ApprovalFlow, request: PatchToWrite) -> SandboxContext | None:
    """
    Decide about a patch, ask if necessary, and return the sandbox for paths outside the usual one.

    All other paths are written in the usual sandbox, since a question only counts them.

    Raises:
        CommandRefused: The patch is not permitted, changes more outside the sandbox than a
            question can show, or was declined.
        CallCancelled: The approver cancelled the call.
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
    if len(request.patch) <= _LONG:
        files = _shown(request.files())
    else:
        files = await asyncio.to_thread(lambda: _shown(request.files()))
    digest = hashlib.sha256(
        "\0".join((request.patch, request.environment_id, *request.paths)).encode()
    )
    question = Question(
        kind=QuestionKind.FILE_CHANGE,
        call_id=request.call_id,
        environment_id=request.environment_id,
        command=(),
        cwd=request.cwd,
        digest=digest.hexdigest(),
        reason=request.justification,
        explanation=_OUTSIDE if leaves_sandbox else _EVERY,
        leaves_sandbox=leaves_sandbox,
        files=files,
    )
    decision = await flow.ask(question)
    if decision.kind is DecisionKind.CANCEL:
        raise CallCancelled(REJECTED)
    if not decision.accepts:
        raise CommandDeclined(decision.rejection or REJECTED)
    if decision.kind is DecisionKind.ACCEPT_FOR_SESSION:
        for key in keys:
            flow.cache.add(key)


def _shown(files: Sequence[PatchedFile]) -> tuple[PatchedFile, ...]:
    """
    Return files for a question: those outside the sandbox first, and complete.

    Raises:
        CommandRefused: Files outside do not fit, so they cannot be approved.
    """
    outside = [file for file in files if file.outside]
    # Compare unescaped lengths first, to avoid escaping texts that are far too long.
    long = sum(len(file.hunks) for file in outside) > _LONG
    if long or not fits([line for file in outside for line in file_lines(file)]):
        raise CommandRefused(_too_large(len(outside)))
    # If there are files outside, those inside are only counted.
    room = 0 if outside else SHOWN_CHARACTERS
    inside = []
    for file in files:
        if not file.outside:
            kept = file.hunks[:room]
            room -= len(kept)
            inside.append(replace(file, hunks=kept, cut=len(file.hunks) - len(kept)))
    return (*outside, *inside)


def _too_large(files: int) -> str:
    what = "a file" if files == 1 else f"{files} files"
    return (
        f"it changes {what} outside the sandbox by more than a question can show"
        f" ({SHOWN_LINES} lines, {SHOWN_CHARACTERS} characters); split it into smaller patches, and"
        " keep files inside the sandbox in another one"
    )


def _key(request: PatchToWrite, path: str) -> CommandKey:
    return CommandKey(
        environment_id=request.environment_id,
        executable="apply_patch",
        command=(path,),
        cwd="",
        tty=False,
        sandbox_permissions="use_default",
    )
