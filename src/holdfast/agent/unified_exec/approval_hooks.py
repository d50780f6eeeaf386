"""
Approvals as hooks of the tools, which decide about every start and denial, and some input.

Other hooks still run, before the decision. A command that they change afterwards is refused.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from holdfast.agent.approvals.approval_options import Approvals
from holdfast.agent.approvals.flow import ApprovalFlow
from holdfast.agent.approvals.patches import PatchToWrite, admit_patch, refuse_escalation
from holdfast.agent.approvals.permissions import AddedPermissions, with_permissions
from holdfast.agent.approvals.question import DeniedRun, GrantScope, PatchedFile
from holdfast.agent.approvals.start_permission import (
    CallCancelled,
    Clearance,
    CommandDeclined,
    CommandRefused,
    CommandRequest,
    EscalationRefused,
    InputRefused,
    InputToSend,
)
from holdfast.agent.approvals.write_access import WriteAccess, write_access
from holdfast.agent.patching.commit import PatchSandboxes
from holdfast.agent.patching.parse import hunk_text
from holdfast.agent.patching.plan import PatchPlan
from holdfast.agent.patching.report import PATCH_DECLINED
from holdfast.agent.unified_exec.hooks import (
    Attempt,
    DeniedAttempt,
    Hooks,
    InputRequest,
    PatchRequest,
    StartRequest,
    end_attempt,
)
from holdfast.agent.unified_exec.text.answer import aborted_exec_text, aborted_write_text
from holdfast.agent.unified_exec.tool_errors import (
    CallInterrupted,
    CallRefused,
    CreateProcess,
    rejected_text,
)
from holdfast.agent.unified_exec.tool_starter import POLICY
from holdfast.agent.unified_exec.waiting.clock import GRACE
from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidParams, Refused
from holdfast.engine.process.variables import child_environment
from holdfast.wire.protocol.fs import CanonicalizeParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["ApprovalHooks"]

# Most characters at the end of the output to show in a question after a denial.
_SHOWN_OUTPUT = 16_384


class ApprovalHooks(Hooks):
    """Hooks that decide about the commands of one set of tools."""

    def __init__(
        self,
        approvals: Approvals,
        *,
        paused: Callable[[], AbstractContextManager[None]],
        inner: Hooks,
    ) -> None:
        """
        Args:
            approvals: The configuration.
            paused: Stops the clocks of calls while an approver is asked.
            inner: Other hooks of the tools.
        """
        self.flow = ApprovalFlow(approvals, paused=paused)
        self._inner = inner
        # With a window no longer than the grace, later denials are not asked about.
        window = approvals.retry_window
        self.late_denials = window is None or window > GRACE

    async def before_start(self, request: StartRequest) -> StartRequest:
        """Return the command with the approved sandbox."""
        # The other hooks go first: the decision is about what would actually run.
        request = await self._inner.before_start(request)
        began = time.monotonic()
        arguments = request.arguments
        wanted = CommandRequest(
            call_id=request.call_id,
            environment_id=request.environment_id,
            argv=request.argv,
            cwd=request.cwd.shown,
            tty=request.tty,
            sandbox=request.sandbox,
            script=request.script,
            shell=request.shell,
            variables=_variables(request),
            permissions=arguments.sandbox_permissions,
            added=request.added,
            justification=arguments.justification,
            prefix_rule=arguments.prefix_rule,
        )
        try:
            clearance = await self.flow.admit(wanted)
        except CommandRefused as error:
            # Listeners are notified of a command that a person declined, but not of one that a
            # rule forbids.
            declined = isinstance(error, CommandDeclined)
            raise CreateProcess(rejected_text(str(error)), declined=declined) from error
        except EscalationRefused as error:
            raise CallRefused(str(error)) from error
        except CallCancelled as error:
            raise _interrupted(began) from error
        return _cleared(request, clearance)

    async def before_patch(self, request: PatchRequest) -> PatchSandboxes:
        """Ask about a patch that writes files its sandbox would deny."""
        inner = await self._inner.before_patch(request)
        sandbox = inner.usual if isinstance(inner, PatchSandboxes) else inner
        began = time.monotonic()
        command = request.command
        try:
            refuse_escalation(self.flow, command.arguments.sandbox_permissions)
            sandbox = with_permissions(sandbox, self.flow.granted(command.environment_id))
            access = await _real_access(request, write_access(sandbox, tmpdir=request.tmpdir))
            wider = await admit_patch(
                self.flow,
                PatchToWrite(
                    call_id=command.call_id,
                    environment_id=command.environment_id,
                    cwd=request.cwd.shown,
                    patch=request.text,
                    files=partial(_patched_files, request.plan, access),
                    paths=tuple(path.native for path in request.plan.touched),
                    sandbox=sandbox,
                    access=access,
                    justification=command.arguments.justification,
                ),
            )
            beyond = _beyond(request.plan, access)
            return PatchSandboxes(usual=sandbox, wider=wider, beyond=beyond)
        except CommandDeclined as error:
            raise CallRefused(PATCH_DECLINED) from error
        except CommandRefused as error:
            raise CallRefused(f"{texts.PATCH_REJECTED}{error}") from error
        except (EscalationRefused, InvalidParams) as error:
            raise CallRefused(str(error)) from error
        except CallCancelled as error:
            raise _interrupted(began) from error

    async def after_denial(self, denied: DeniedAttempt) -> StartRequest | None:
        """Return the command without its sandbox if an approver permits a second attempt."""
        request, verdict = denied.request, denied.verdict
        if request.clearance is None:
            return await self._inner.after_denial(denied)
        began = time.monotonic()
        run = DeniedRun(
            what=str(verdict.denial),
            # The end, where errors usually are.
            output=denied.message[-_SHOWN_OUTPUT:],
            exit_code=verdict.exit_code,
            network_attempts=tuple(map(str, verdict.network_attempts)),
        )
        try:
            clearance = await self.flow.after_denial(request.clearance, run, seconds=denied.seconds)
        except CallCancelled as error:
            raise _interrupted(began) from error
        if clearance is None:
            # A replacement from other hooks is only started if it was cleared.
            return await self._inner.after_denial(denied)
        return _cleared(request, clearance)

    async def before_input(self, request: InputRequest) -> None:
        """Ask about input for a terminal outside the sandbox."""
        await self._inner.before_input(request)
        started = request.started
        # A command on pipes takes no input; its interrupt is a signal.
        if not started.left_sandbox or not started.tty:
            return
        began = time.monotonic()
        given = InputToSend(
            call_id=request.call_id,
            environment_id=started.environment_id,
            session_id=started.session_id,
            chars=request.chars,
            cwd=started.cwd.shown,
        )
        try:
            await self.flow.admit_input(given)
        except InputRefused as error:
            raise CallRefused(f"{texts.WRITE_REJECTED}{error}") from error
        except CallCancelled as error:
            text = aborted_write_text(time.monotonic() - began)
            raise CallInterrupted(text) from error

    async def request_permissions(
        self,
        wanted: AddedPermissions,
        *,
        call_id: str,
        environment_id: str,
        cwd: str,
        sandbox: SandboxContext | None,
        reason: str | None,
    ) -> tuple[AddedPermissions, GrantScope]:
        """
        Ask for permissions for later commands.

        Raises:
            CallRefused: The request is not allowed.
            CallInterrupted: The approver cancelled the call.
        """
        began = time.monotonic()
        try:
            return await self.flow.request_permissions(
                wanted,
                call_id=call_id,
                environment_id=environment_id,
                cwd=cwd,
                sandbox=sandbox,
                reason=reason,
            )
        except EscalationRefused as error:
            raise CallRefused(str(error)) from error
        except CallCancelled as error:
            raise _interrupted(began) from error

    async def attempt_begins(self, request: StartRequest) -> Attempt:
        """Check that the command about to start is the one decided about."""
        attempt = await self._inner.attempt_begins(request)
        try:
            self._verify(attempt.request)
        except BaseException:
            end_attempt(self._inner, attempt)
            raise
        return attempt

    def _verify(self, request: StartRequest) -> None:
        if request.clearance is None:
            raise CreateProcess(rejected_text("the command was not approved"))
        try:
            self.flow.verify(
                request.clearance,
                request.argv,
                environment_id=request.environment_id,
                cwd=request.cwd.shown,
                tty=request.tty,
                sandbox=request.sandbox,
            )
        except CommandRefused as error:
            raise CreateProcess(rejected_text(str(error))) from error

    def attempt_ended(self, attempt: Attempt) -> None:
        """Notify the other hooks."""
        self._inner.attempt_ended(attempt)


def _variables(request: StartRequest) -> Mapping[str, str] | None:
    """Return the variables of a local command, or None."""
    if not request.is_local:
        return None
    return child_environment(request.env, POLICY, None, os.environ)


def _cleared(request: StartRequest, clearance: Clearance) -> StartRequest:
    """Return a command with the decision applied."""
    program = clearance.program
    return replace(
        request,
        argv=clearance.argv,
        arg0=None if program is None else program.arg0,
        env=request.env if program is None else {**request.env, **program.env},
        sandbox=clearance.sandbox,
        clearance=clearance,
    )


async def _real_access(request: PatchRequest, access: WriteAccess) -> WriteAccess:
    """Return the access with resolved paths added, since the paths of a patch are resolved."""
    same = []
    for path, allowed in access.rules or ():
        if allowed != "write":
            continue
        try:
            real = await request.files.canonicalize(CanonicalizeParams(PathUri.from_path(path)))
        except Refused:
            # A missing path cannot be resolved.
            continue
        if real.native != path:
            same.append((path, real.native))
    return access.also(same)


def _beyond(plan: PatchPlan, access: WriteAccess) -> frozenset[PathUri]:
    """Return the real paths of a patch that its sandbox would deny."""
    paths = [write.real for write in plan.writes] + [removal.real for removal in plan.removals]
    return frozenset(path for path in paths if not access.may_write(path.native))


def _patched_files(plan: PatchPlan, access: WriteAccess) -> tuple[PatchedFile, ...]:
    files = []
    for change in plan.changes:
        target = change.move_to or change.path
        files.append(
            PatchedFile(
                kind=change.kind,
                path=change.path.native,
                move_to=None if change.move_to is None else target.native,
                leads_to=None if change.real == target else change.real.native,
                replaces=change.replaces,
                outside=not all(access.may_write(path.native) for path in change.touches),
                hunks=hunk_text(change.hunk),
            )
        )
    return tuple(files)


def _interrupted(began: float) -> CallInterrupted:
    """Return the error of a command whose approval request was cancelled."""
    return CallInterrupted(aborted_exec_text(time.monotonic() - began))
