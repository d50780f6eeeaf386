"""
The flow of one command: decide, ask, choose its sandbox, and after a denial ask again.

It knows neither tools nor processes. Whoever starts commands asks for a `Clearance`, checks it
once more with `verify` directly before the start, and comes back if the sandbox denied
something.
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

# Characters of a command above which it is looked through in a thread.
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
            approvals: The choices.
            paused: Stops the clocks of calls while somebody is asked.
        """
        self.approvals = approvals
        self.policy = as_policy(approvals.policy)
        self.rules = approvals.rules
        """The rules, with the amendments that were accepted meanwhile."""
        self.cache = SessionCache()
        self._approver: Approver | None = None
        if approvals.approver is not None:
            self._approver = as_approver(approvals.approver)
        self._paused = paused
        self._grants: dict[GrantScope, dict[str, AddedPermissions]] = {"turn": {}, "session": {}}
        # All permissions that any command had beyond its sandbox, by environment: what it wrote
        # there stays when they end.
        self._opened: dict[str, AddedPermissions] = {}

    # -- before the start

    async def admit(self, request: CommandRequest) -> Clearance:
        """
        Decide about a command and ask if need be.

        Raises:
            EscalationRefused: It may not ask for what it asks for.
            CommandRefused: It may not run.
            CallCancelled: Somebody was asked and cancelled the call.
        """
        # Permissions granted ahead apply before anything is decided.
        granted = self.granted(request.environment_id)
        try:
            context = with_permissions(request.sandbox, granted)
            # Before the decision: a wish that may not be put to anybody is refused at once.
            request = self._checked_wish(request, granted)
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
        # Identifies the command for "accept for the session", and its digest proves later what was
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
            # A profile that denies paths is never left: its prohibitions would be lifted as well.
            if judgement.outside_sandbox and not denies_paths(context):
                free = clearance.outside(None, was_restricted=is_restricted(context))
                return replace(free, program=program)
            return clearance
        escalated = request.permissions == "require_escalated" and is_restricted(context)
        human = judgement.ruling is Ruling.PROMPT_USER
        # Accepted for the session before: not asked again, unless only a person may allow it.
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
        Return what to execute for a command that a rule lets out of its sandbox.

        Raises:
            StaysInside: It has to stay in its sandbox.
        """
        opened = self._opened.get(request.environment_id, NO_PERMISSIONS)
        try:
            # A directory of `PATH` may be on a mount that does not answer.
            return await call_in_daemon(
                partial(program_outside, request, split, self.rules, opened=opened)
            )
        except TimeoutError as error:
            raise StaysInside("the search for its program takes too long") from error

    def _open(self, environment_id: str, added: AddedPermissions) -> None:
        """Remember what commands of an environment could write at some time."""
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
        # A thread costs more than the analysis of a short command.
        if sum(map(len, request.argv)) <= _LONG_COMMAND:
            return judged()
        # A megabyte takes a moment, in which other calls go on.
        return await asyncio.to_thread(judged)

    def _checked_wish(self, request: CommandRequest, granted: AddedPermissions) -> CommandRequest:
        """
        Return a request whose wish for more permissions may be put to somebody.

        Raises:
            EscalationRefused: It may not.
        """
        wish = request.permissions or "use_default"
        # Naming permissions is taken as asking for them.
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
            # It was granted ahead: nothing is left to ask for.
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
        Check once more that what is about to start is what was cleared.

        Args:
            clearance: What `admit` or `after_denial` returned.
            argv: The command that is about to start, and where, as are the others.
            environment_id: Its environment.
            cwd: Its directory.
            tty: True if it gets a terminal.
            sandbox: Its sandbox.

        Raises:
            CommandRefused: It is something else.
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
            clearance: The one of the run that was denied something.
            denied: What happened.
            seconds: The time from its start to its end.

        Returns:
            None to leave it at that: the first output counts.

        Raises:
            CallCancelled: Somebody was asked and cancelled the call.
        """
        approvals = self.approvals
        # Without a sandbox nothing was denied by one; denied paths must stay denied.
        if clearance.sandbox is None or denies_paths(clearance.sandbox):
            return None
        if not self._may_ask_after_denial:
            return None
        # A command that ran for long may have had effects, and should not be repeated.
        if approvals.retry_window is not None and seconds > approvals.retry_window:
            return None
        again = clearance.outside(None, was_restricted=True)
        human = clearance.judgement.ruling is Ruling.PROMPT_USER
        # Somebody has approved this very command a moment ago.
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
        # A refusal leaves the first output as the result.
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
        Ask whether input may be sent to a command outside of the sandbox.

        Raises:
            InputRefused: It may not.
            CallCancelled: Somebody was asked and cancelled the call.
        """
        refusal = policy_refusal(self.policy, PromptKind.SANDBOX)
        if refusal is not None:
            raise InputRefused(refusal)
        # The question shows the input in the form of a command.
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

    # -- permissions ahead of commands

    def granted(self, environment_id: str) -> AddedPermissions:
        """Return the permissions that commands of an environment have for the time being."""
        turn = self._grants["turn"].get(environment_id, NO_PERMISSIONS)
        session = self._grants["session"].get(environment_id, NO_PERMISSIONS)
        return turn.union(session)

    def end_turn(self) -> None:
        """Forget the permissions that were granted for one turn of the model."""
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
        Ask for permissions that later commands are to have.

        Returns:
            What was granted, which may be nothing, and for how long. It is never more than
            what was asked for.

        Raises:
            EscalationRefused: It may not be asked for.
            CallCancelled: Somebody was asked and cancelled the call.
        """
        if not self.policy.may_ask(PromptKind.PERMISSIONS):
            raise EscalationRefused(texts.PERMISSIONS_REFUSED)
        if not wanted:
            raise EscalationRefused("give at least one of `network` and `file_system`")
        try:
            # Only a check: a wish that cannot be granted is not put to anybody.
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
        # An answer can grant less, never more.
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
        Put a question to the approver; without one it is declined.

        Raises:
            CommandRefused: It is one for a person, and the approver does not reach any.
        """
        human = question.kind is QuestionKind.HUMAN_COMMAND
        if human and not getattr(self._approver, "required_human_approval", False):
            raise CommandRefused(texts.NO_PERSON)
        # Nobody to ask means no.
        if self._approver is None:
            return Decision(DecisionKind.DECLINE)
        # The time in which a person thinks does not count against the call.
        with self._paused():
            return await ask_bounded(self._approver, question, limit=self.approvals.ask_limit)

    async def _ask_or_cancel(self, question: Question) -> Decision:
        """
        Put a question whose answer may cancel the call.

        Raises:
            CallCancelled: The call is cancelled.
        """
        decision = await self.ask(question)
        if decision.kind is DecisionKind.CANCEL:
            raise CallCancelled(REJECTED)
        return decision

    async def _decide(
        self, question: Question, clearance: Clearance | None, *, escalated: bool
    ) -> None:
        """
        Put a question about a command, and do what the answer says besides running it.

        Args:
            question: What is asked.
            clearance: What is remembered for the session if the answer says so; None for
                a question that is to be asked every time.
            escalated: True if the command would run without its sandbox.

        Raises:
            CommandRefused: The answer is no.
            CallCancelled: The call is cancelled.
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
            CommandRefused: The prefix is broader than what was proposed.
        """
        # A decision of this kind always has one.
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
        # Accepted for a run without a sandbox, so later runs are without one, too.
        outside = escalated and not approvals.rules_leave_sandbox
        self.rules = self.rules.with_rule(amendment_rule(prefix, outside_sandbox=outside))
        # Without a home the rule holds until the end of the conversation.
        if approvals.home is None:
            return
        try:
            await asyncio.to_thread(store_rule, approvals.home, prefix, outside_sandbox=outside)
        except (OperationFailed, InvalidParams):
            # It was accepted for this time at any rate, and counts until the end.
            logger.exception("an accepted rule could not be stored")
