"""
The approval of one command: decide, ask, choose its sandbox, and ask again after a denial.

It does not know about tools or processes. The tools that start commands obtain a `Clearance`, check
it with `verify` directly before the start, and call `after_denial` if the sandbox denied something.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from holdfast.agent.approvals.amendments import amendment_rule, answered_prefix, store_rule
from holdfast.agent.approvals.approval_cache import CommandKey, SessionCache
from holdfast.agent.approvals.approval_options import Approvals
from holdfast.agent.approvals.ask import Approver, as_approver, ask_bounded
from holdfast.agent.approvals.decide import Judgement, escalation_refusal, policy_refusal
from holdfast.agent.approvals.explain_decision import ground
from holdfast.agent.approvals.permissions import (
    NO_PERMISSIONS,
    AddedPermissions,
    denies_paths,
    escalated_context,
    is_restricted,
    with_permissions,
)
from holdfast.agent.approvals.policies import PromptKind, as_policy
from holdfast.agent.approvals.question import (
    ONCE_ONLY,
    REJECTED,
    Decision,
    DecisionKind,
    DeniedRun,
    GrantScope,
    Question,
    QuestionKind,
)
from holdfast.agent.approvals.real_program import RealProgram, StaysInside
from holdfast.agent.approvals.rules import Ruling
from holdfast.agent.approvals.split.simple_command import Split
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
    key_of,
    program_outside,
)
from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidParams, OperationFailed
from holdfast.engine.process.start_threads import call_in_daemon
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["ApprovalFlow"]

logger = logging.getLogger(__name__)

_DENIED = "its sandbox denied it something"

# Length above which a command is analysed in a thread.
_LONG_COMMAND = 4_096


class ApprovalFlow:
    """Approvals of one conversation: its rules, accepted commands and granted permissions."""

    def __init__(
        self,
        approvals: Approvals,
        *,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """
        Args:
            approvals: The options.
            paused: Stops the clocks of calls while an approver is asked.
        """
        self.approvals = approvals
        self.policy = as_policy(approvals.policy)
        self.rules = approvals.rules
        """The rules, including amendments accepted so far."""
        self.cache = SessionCache()
        self._approver: Approver | None = None
        if approvals.approver is not None:
            self._approver = as_approver(approvals.approver)
        self._paused = paused
        self._grants: dict[GrantScope, dict[str, AddedPermissions]] = {"turn": {}, "session": {}}
        # All permissions that any command had beyond its sandbox, by environment: written files
        # remain when the permissions end.
        self._opened: dict[str, AddedPermissions] = {}

    # -- before the start

    async def admit(self, request: CommandRequest) -> Clearance:
        """
        Decide about a command, and ask if necessary.

        Raises:
            EscalationRefused: The requested permissions are not allowed.
            CommandRefused: The command may not run.
            CallCancelled: The approver cancelled the call.
        """
        # Permissions granted in advance apply before the decision.
        granted = self.granted(request.environment_id)
        try:
            context = with_permissions(request.sandbox, granted)
            # Before the decision: a request that may not be asked about is refused immediately.
            request = self._checked(request, granted)
            wider = with_permissions(context, request.added or NO_PERMISSIONS)
        except InvalidParams as error:
            raise EscalationRefused(str(error)) from error
        split, judgement = await self._judge(request)
        program = None
        leaves = judgement.outside_sandbox and is_restricted(context)
        if leaves and not self.approvals.rules_leave_sandbox:
            try:
                program = await self._real_program(request, split)
            except StaysInside as error:
                split, judgement = await self._judge(request, held=str(error))
        if judgement.ruling is Ruling.FORBIDDEN:
            raise CommandRefused(judgement.reason or "blocked by policy")
        # Identifies the command for "accept for the session"; the digest later proves what was
        # approved.
        key = key_of(request, split)
        clearance = Clearance(
            request=request,
            judgement=judgement,
            key=key,
            digest=key.digest(*(request.argv if program is None else program.argv)),
            sandbox=context,
        )
        if judgement.ruling is Ruling.ALLOW:
            # Never leave a profile that denies paths: this would also lift its prohibitions.
            if judgement.outside_sandbox and not denies_paths(context):
                free = clearance.outside(None, was_restricted=is_restricted(context))
                return replace(free, program=program)
            return clearance
        escalated = request.permissions == "require_escalated" and is_restricted(context)
        human = judgement.ruling is Ruling.PROMPT_USER
        # Ask again about a command accepted for the session only if a person must allow it.
        if human or not self.cache.holds(key):
            question = self._question(clearance, leaves_sandbox=escalated)
            await self._decide(question, clearance, escalated=escalated)
        clearance = replace(clearance, approved=True)
        if escalated:
            return clearance.outside(escalated_context(context), was_restricted=True)
        if request.permissions == "with_additional_permissions":
            self._open(request.environment_id, request.added or NO_PERMISSIONS)
            return replace(clearance, sandbox=wider)
        return clearance

    async def _real_program(self, request: CommandRequest, split: Split) -> RealProgram:
        """
        Return what to execute for a command that a rule permits to run outside its sandbox.

        Raises:
            StaysInside: It has to stay in its sandbox.
        """
        opened = self._opened.get(request.environment_id, NO_PERMISSIONS)
        try:
            # A directory in `PATH` may be on a mount that does not respond.
            return await call_in_daemon(
                partial(program_outside, request, split, self.rules, opened=opened)
            )
        except TimeoutError as error:
            raise StaysInside("the search for its program takes too long") from error

    def _open(self, environment_id: str, added: AddedPermissions) -> None:
        """Remember what commands of an environment were able to write."""
        opened = self._opened.get(environment_id, NO_PERMISSIONS)
        self._opened[environment_id] = opened.union(added)

    async def _judge(
        self, request: CommandRequest, *, held: str | None = None
    ) -> tuple[Split, Judgement]:
        judged = partial(
            judge,
            request,
            policy=self.policy,
            rules=self.rules,
            rules_leave_sandbox=self.approvals.rules_leave_sandbox,
            unreadable_runs=self.approvals.unreadable_runs,
            held=held,
        )
        # A thread costs more than analysing a short command.
        if sum(map(len, request.argv)) <= _LONG_COMMAND:
            return judged()
        # A megabyte takes a while, in which other calls continue.
        return await asyncio.to_thread(judged)

    def _checked(self, request: CommandRequest, granted: AddedPermissions) -> CommandRequest:
        """
        Return a request whose additional permissions may be asked about.

        Raises:
            EscalationRefused: The policy or the options do not permit it.
        """
        wish = request.permissions or "use_default"
        # Listing permissions counts as requesting them.
        if request.added is not None and wish == "use_default":
            wish = "with_additional_permissions"
        if wish == "use_default":
            return replace(request, permissions=wish, added=None)
        refusal = escalation_refusal(self.policy)
        if refusal is not None:
            raise EscalationRefused(refusal)
        if wish == "require_escalated":
            return replace(request, permissions=wish, added=None)
        if not self.approvals.additional_permissions:
            raise EscalationRefused(texts.PERMISSIONS_OFF)
        if not request.added:
            raise EscalationRefused(texts.PERMISSIONS_MISSING)
        if request.added.limited_to(granted) == request.added:
            # Granted in advance: there is nothing left to ask for.
            return replace(request, permissions="use_default", added=None)
        return replace(request, permissions=wish)

    def verify(
        self,
        clearance: Clearance,
        argv: tuple[str, ...],
        *,
        environment_id: str,
        cwd: str,
        tty: bool,
        sandbox: SandboxContext | None,
    ) -> None:
        """
        Check that the command about to start is the one that was cleared.

        Args:
            clearance: The result of `admit` or `after_denial`.
            argv: The command that is about to start.
            environment_id: Its environment.
            cwd: Its directory.
            tty: True if it gets a terminal.
            sandbox: Its sandbox.

        Raises:
            CommandRefused: It differs from what was cleared.
        """
        # Hooks may have changed the request after it was approved.
        key = replace(clearance.key, environment_id=environment_id, cwd=cwd, tty=tty)
        if key.digest(*argv) != clearance.digest or sandbox != clearance.sandbox:
            raise CommandRefused("the command changed after it was approved")

    # -- after a denial

    async def after_denial(
        self, clearance: Clearance, denied: DeniedRun, *, seconds: float
    ) -> Clearance | None:
        """
        Ask whether a command may run again without its sandbox.

        Args:
            clearance: The clearance of the denied run.
            denied: The denied run.
            seconds: The time from its start to its end.

        Returns:
            None to keep the result of the first run.

        Raises:
            CallCancelled: The approver cancelled the call.
        """
        approvals = self.approvals
        # Without a sandbox, no sandbox denied anything; denied paths must stay denied.
        if clearance.sandbox is None or denies_paths(clearance.sandbox):
            return None
        if not self._may_ask_after_denial:
            return None
        # A command that ran for a long time may have had effects and should not be repeated.
        if approvals.retry_window is not None and seconds > approvals.retry_window:
            return None
        again = clearance.outside(None, was_restricted=True)
        human = clearance.judgement.ruling is Ruling.PROMPT_USER
        # The approver has just approved this command.
        if clearance.approved and not approvals.reask and not human:
            return again
        question = replace(
            self._question(clearance, leaves_sandbox=True),
            reason=texts.RETRY_OUTSIDE,
            explanation=_DENIED,
            denied=denied,
            proposed_amendment=clearance.judgement.retry_amendment,
            digest=clearance.key.digest(*clearance.request.argv, "again"),
        )
        try:
            await self._decide(question, None, escalated=True)
        # After a refusal, the first output is the result.
        except CommandRefused:
            return None
        return replace(again, approved=True)

    @property
    def _may_ask_after_denial(self) -> bool:
        if self.policy.asks_after_denial:
            return True
        return self.approvals.retry_on_request and self.policy.may_ask(PromptKind.SANDBOX)

    # -- input

    async def admit_input(self, given: InputToSend) -> None:
        """
        Ask whether input may be sent to a command outside the sandbox.

        Raises:
            InputRefused: The input is refused.
            CallCancelled: The approver cancelled the call.
        """
        refusal = policy_refusal(self.policy, PromptKind.SANDBOX)
        if refusal is not None:
            raise InputRefused(refusal)
        # The question shows the input as a command.
        argv = ("write_stdin", "--session-id", str(given.session_id), given.chars)
        key = CommandKey(
            environment_id=given.environment_id,
            executable=argv[0],
            command=argv,
            cwd=given.cwd,
            tty=True,
            sandbox_permissions="use_default",
        )
        question = Question(
            kind=QuestionKind.WRITE_STDIN,
            call_id=given.call_id,
            environment_id=given.environment_id,
            command=argv,
            cwd=given.cwd,
            tty=True,
            digest=key.digest(given.call_id),
            reason=texts.INPUT_OUTSIDE,
            explanation="the terminal was started outside the sandbox",
            leaves_sandbox=True,
        )
        decision = await self._ask_or_cancel(question)
        if not decision.accepts:
            raise InputRefused(decision.rejection or REJECTED)

    # -- permissions in advance

    def granted(self, environment_id: str) -> AddedPermissions:
        """Return the permissions currently granted to commands of an environment."""
        turn = self._grants["turn"].get(environment_id, NO_PERMISSIONS)
        session = self._grants["session"].get(environment_id, NO_PERMISSIONS)
        return turn.union(session)

    def end_turn(self) -> None:
        """Revoke the permissions granted for one turn of the model."""
        self._grants["turn"].clear()

    async def request_permissions(
        self,
        wanted: AddedPermissions,
        *,
        call_id: str,
        environment_id: str,
        cwd: str,
        sandbox: SandboxContext | None,
        reason: str | None = None,
    ) -> tuple[AddedPermissions, GrantScope]:
        """
        Ask for permissions for later commands.

        Returns:
            The granted permissions, possibly none and never more than requested, and their
            duration.

        Raises:
            EscalationRefused: The request is not allowed.
            CallCancelled: The approver cancelled the call.
        """
        if not self.policy.may_ask(PromptKind.PERMISSIONS):
            raise EscalationRefused(texts.PERMISSIONS_REFUSED)
        if not wanted:
            raise EscalationRefused("give at least one of `network` and `file_system`")
        try:
            # Only a check: do not ask for permissions that cannot be granted.
            with_permissions(sandbox, wanted)
        except InvalidParams as error:
            raise EscalationRefused(str(error)) from error
        key = CommandKey(
            environment_id=environment_id,
            executable="request_permissions",
            command=(),
            cwd=cwd,
            tty=False,
            sandbox_permissions="with_additional_permissions",
            permissions=wanted,
        )
        question = Question(
            kind=QuestionKind.PERMISSIONS,
            call_id=call_id,
            environment_id=environment_id,
            command=(),
            cwd=cwd,
            digest=key.digest(call_id),
            reason=reason,
            explanation="it asks for more than the sandbox gives to later commands",
            permissions=wanted,
        )
        decision = await self._ask_or_cancel(question)
        if not decision.accepts:
            return NO_PERMISSIONS, "turn"
        # An answer can grant less than requested, but not more.
        given = wanted if decision.granted is None else decision.granted.limited_to(wanted)
        grants = self._grants[decision.scope]
        grants[environment_id] = grants.get(environment_id, NO_PERMISSIONS).union(given)
        self._open(environment_id, given)
        return given, decision.scope

    # -- questions

    def _question(self, clearance: Clearance, *, leaves_sandbox: bool) -> Question:
        request, judgement = clearance.request, clearance.judgement
        human = judgement.ruling is Ruling.PROMPT_USER
        return Question(
            kind=QuestionKind.HUMAN_COMMAND if human else QuestionKind.COMMAND,
            call_id=request.call_id,
            environment_id=request.environment_id,
            command=request.argv,
            cwd=request.cwd,
            tty=request.tty,
            digest=clearance.digest,
            reason=judgement.reason or request.justification,
            cause=judgement.cause.value,
            explanation=ground(judgement),
            script=request.script,
            proposed_amendment=judgement.amendment,
            leaves_sandbox=leaves_sandbox,
            amendment_leaves_sandbox=leaves_sandbox
            or (self.approvals.rules_leave_sandbox and is_restricted(clearance.sandbox)),
            permissions=request.added or NO_PERMISSIONS,
        )

    async def ask(self, question: Question) -> Decision:
        """
        Ask the approver; without an approver, the question is declined.

        Raises:
            CommandRefused: A person must answer, but the approver cannot reach one.
        """
        human = question.kind is QuestionKind.HUMAN_COMMAND
        if human and not getattr(self._approver, "required_human_approval", False):
            raise CommandRefused(texts.NO_PERSON)
        # Without an approver, every question is declined.
        if self._approver is None:
            return Decision(DecisionKind.DECLINE)
        # The time for thinking does not count towards the call's limit.
        with self._paused():
            return await ask_bounded(self._approver, question, limit=self.approvals.ask_limit)

    async def _ask_or_cancel(self, question: Question) -> Decision:
        """
        Ask a question whose answer may cancel the call.

        Raises:
            CallCancelled: The approver cancelled the call.
        """
        decision = await self.ask(question)
        if decision.kind is DecisionKind.CANCEL:
            raise CallCancelled(REJECTED)
        return decision

    async def _decide(
        self, question: Question, clearance: Clearance | None, *, escalated: bool
    ) -> None:
        """
        Ask about a command, and apply the effects of the answer other than running it.

        Args:
            question: The question.
            clearance: Remembered for the session if the answer says so; None to ask every time.
            escalated: True if the command would run without its sandbox.

        Raises:
            CommandRefused: The command was declined.
            CallCancelled: The approver cancelled the call.
        """
        decision = await self._ask_or_cancel(question)
        once = (DecisionKind.ACCEPT, DecisionKind.DECLINE)
        if question.kind is QuestionKind.HUMAN_COMMAND and decision.kind not in once:
            raise CommandRefused(ONCE_ONLY)
        match decision.kind:
            case DecisionKind.DECLINE:
                raise CommandDeclined(decision.rejection or REJECTED)
            case DecisionKind.NETWORK_AMENDMENT:
                raise CommandRefused("the answer is about the network, the question is not")
            case DecisionKind.ACCEPT:
                return
            case DecisionKind.ACCEPT_WITH_AMENDMENT:
                await self._amend(question, decision, escalated=escalated)
            case DecisionKind.ACCEPT_FOR_SESSION:
                # A question after a denial is asked every time.
                if clearance is not None:
                    self.cache.add(clearance.key)

    async def _amend(self, question: Question, decision: Decision, *, escalated: bool) -> None:
        """
        Allow a prefix from now on, in memory and in the file of amendments.

        Raises:
            CommandRefused: The prefix is broader than the proposed one.
        """
        # A decision of this kind always has a prefix.
        assert decision.amendment is not None
        approvals = self.approvals
        try:
            prefix = answered_prefix(
                question.proposed_amendment,
                decision.amendment,
                broader=approvals.broader_amendments,
            )
        except InvalidParams as error:
            raise CommandRefused(str(error)) from error
        # Accepted for a run without a sandbox, which also applies to later runs.
        outside = escalated and not approvals.rules_leave_sandbox
        self.rules = self.rules.with_rule(amendment_rule(prefix, outside_sandbox=outside))
        # Without a home, the rule applies until the end of the conversation.
        if approvals.home is None:
            return
        try:
            await asyncio.to_thread(store_rule, approvals.home, prefix, outside_sandbox=outside)
        except (OperationFailed, InvalidParams):
            # Accepted for this run in any case; the rule applies until the end of the conversation.
            logger.exception("an accepted rule could not be stored")
