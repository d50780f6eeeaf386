"""
Principals of the MCP server: each has separate sessions, calls and questions.

Session numbers are easy to guess, so a principal cannot refer to anything of another. On stdio
there is one principal. Over HTTP, a principal is all clients with the same token or, without
tokens, all that know the random id of an MCP session.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast.agent.approvals.approval_options import Approvals
from holdfast.agent.approvals.layers import load_rules
from holdfast.agent.approvals.question import Decision, DecisionKind, Question
from holdfast.agent.approvals.requirements import REQUIREMENTS_FILE
from holdfast.agent.approvals.rules import RuleSet
from holdfast.agent.approvals.write_access import writable_roots
from holdfast.agent.unified_exec.options import Options
from holdfast.agent.unified_exec.tools import UnifiedExec
from holdfast.base.errors import HoldfastError, InvalidConfig, NotFound
from holdfast.base.tasks import OwnedTasks
from holdfast.environments.config.home import holdfast_home
from holdfast.environments.config.snapshot import LOCAL
from holdfast.environments.connect import connect
from holdfast.environments.environment import Environment
from holdfast.environments.wide_workspace import unnamed_text, wide_path
from holdfast.front.mcp.mcp_options import ServerOptions
from holdfast.front.mcp.resources import SessionUpdates
from holdfast.front.mcp.rounds import ANSWER_LIMIT
from holdfast.front.mcp.running_requests import Attendance
from holdfast.front.mcp.tool_calls import ToolCall, Work
from holdfast.wire.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri

__all__ = ["McpPrincipals", "Principal", "Workplace"]

logger = logging.getLogger(__name__)

# Seconds between interrupting and killing a command whose call was cancelled.
_INTERRUPT_GRACE: Final = 2.0

# Seconds after which a started command certainly has a number.
_NUMBERED: Final = 0.5

# Maximum principals: one per MCP session without a token, and one for all other clients without a
# token.
_PRINCIPALS: Final = 1_024 + 1

# Maximum concurrent calls of a principal.
_AT_ONCE: Final = 1_024

# Maximum calls of a principal that wait for an answer: clients give up without notice.
_WAITING: Final = 64


class Workplace:
    """State shared by all principals: the environment and the rules."""

    def __init__(self, options: ServerOptions, environment: Environment, rules: RuleSet) -> None:
        self.options = options
        self.environment = environment
        self.rules = rules

    @classmethod
    @asynccontextmanager
    async def open(cls, options: ServerOptions) -> AsyncIterator["Workplace"]:
        """
        Open the environment and load the rules.

        Raises:
            HoldfastError: The environment cannot be reached or lacks the directory, or a rules
                file is unusable.
        """
        environment = connect(options.environment, cwd=options.cwd, sandbox=options.profile)
        async with environment:
            await _check_cwd(environment, options.cwd)
            await _check_workspace(environment, options.cwd)
            yield cls(options, environment, await asyncio.to_thread(_rules, options))

    async def prepare(self) -> None:
        """Do in advance what the first command would wait for."""
        try:
            await self.environment.prepare()
        except HoldfastError as error:
            # The first command fails with the same error, which the model reads.
            logger.warning("a sandbox could not be prepared: %s", error)


async def _check_cwd(environment: Environment, cwd: str | None) -> None:
    """
    Check the directory of the commands, which the error of a command would not name.

    Raises:
        InvalidConfig: The environment has no such directory.
        HoldfastError: The environment cannot be reached.
    """
    if cwd is None:
        return
    try:
        is_directory = (await environment.files.stat(".")).is_directory
    except NotFound:
        is_directory = False
    if not is_directory:
        raise InvalidConfig(f"--cwd: {cwd} is not a directory of environment `{environment.id}`")


async def _check_workspace(environment: Environment, cwd: str | None) -> None:
    """
    Check the default directory of a remote server; that of this machine was checked before.

    Raises:
        InvalidConfig: It is wider than a project, writable by commands, and was not named.
        HoldfastError: The environment cannot be reached.
    """
    if cwd is not None or not environment.is_remote:
        return
    roots = writable_roots(await environment.sandbox_context())
    if not roots:
        return
    home = (await environment.info()).user_home_dir
    try:
        folder = (await environment.uri()).native
        homes = [] if home is None else [PathUri.parse(home).native]
    except (ForeignPathUri, InvalidPathUri):
        # Another operating system, without Holdfast's sandbox.
        return
    said = wide_path(folder, homes)
    if said is not None and folder in roots:
        raise InvalidConfig(f"environment `{environment.id}`: {unnamed_text(folder, said)}")


def _rules(options: ServerOptions) -> RuleSet:
    """
    Return the rules of all layers.

    Raises:
        HoldfastError: A named file is unusable: it must not be ignored silently.
    """
    named = [str(Path(path).absolute()) for path in options.rules]
    here = options.environment in (None, LOCAL)
    project = Path(options.cwd or ".").absolute() if here else None
    rules = load_rules(
        home=holdfast_home(os.environ),
        project=project,
        explicit=named,
        requirements=REQUIREMENTS_FILE,
    )
    for broken in rules.broken:
        # A named file must not be ignored, or a prohibition would be lost silently.
        if str(broken.path) in named:
            raise HoldfastError(f"unusable rules file: {broken.summary}")
        logger.warning("rules file ignored: %s", broken.summary)
    return rules


class Principal:
    """A client, or all clients with the same token."""

    required_human_approval = True
    """The request that waits for a call refuses it unless its client offers the capability."""

    def __init__(self, key: str, workplace: Workplace) -> None:
        self.key = key
        options = workplace.options
        self.environment = workplace.environment
        self.tools = UnifiedExec(
            workplace.environment,
            options=Options(
                extras=True,
                notes=options.notes,
                write_advice="only the user can allow it, with `--sandbox-write`",
                view_image=True,
                largest_image=options.largest_image,
                longest_call=options.max_wait,
                # A call has to end within the client's own timeout, even while the user is
                # being asked.
                pause_for_questions=False,
                approvals=Approvals(
                    policy=options.ask_for_approval,
                    rules=workplace.rules,
                    approver=self,
                    rules_leave_sandbox=options.rules_leave_sandbox,
                    retry_on_request=options.ask_after_denial,
                    ask_limit=ANSWER_LIMIT,
                    home=holdfast_home(os.environ),
                ),
            ),
        )
        self.tasks = OwnedTasks()
        """Tasks that end abandoned calls."""
        self.updates = SessionUpdates(self.tools, self.tasks)
        """Notifications for clients that subscribe to sessions as resources."""
        self.call_slots = asyncio.Semaphore(_AT_ONCE)
        """Limits concurrent calls; further requests wait for a free slot."""
        self._options = options
        self._calls: dict[str, ToolCall] = {}
        self._waiting: dict[str, ToolCall] = {}

    # -- calls

    def begin(self, name: str, work: Work) -> ToolCall:
        """Start a call; call `end` when its result was used."""
        call = ToolCall(name, work, max_wait=self._options.max_wait)
        self._calls[call.id] = call
        return call

    def end(self, call: ToolCall) -> None:
        """Forget a call; idempotent."""
        self._calls.pop(call.id, None)
        self._waiting.pop(call.id, None)

    async def ask(self, question: Question) -> Decision:
        """Let the call that raised a question ask its client."""
        call = self._calls.get(question.call_id)
        if call is None:
            return Decision(
                DecisionKind.DECLINE, rejection="the client no longer waits for this call"
            )
        return await call.ask(question)

    def abandon(self, call: ToolCall) -> None:
        """End a call abandoned by its client, and its command if the client cannot refer to it."""
        self.tasks.start(self._abandon(call))

    async def _abandon(self, call: ToolCall) -> None:
        session = self.tools.find_session(call.id)
        if session is not None and self._options.on_cancel == "stop":
            await self.tools.stop(session, grace=_INTERRUPT_GRACE)
        elif session is not None:
            # Before it has a number, it would be killed with its call.
            await call.wait(_NUMBERED)
        await call.stop()
        self.end(call)

    # -- calls between two rounds

    def park(self, call: ToolCall) -> None:
        """Keep a call for its second round; the one that has waited longest makes room."""
        if len(self._waiting) >= _WAITING:
            # Dictionaries are ordered, so the first has waited longest.
            self.abandon(self._waiting.pop(next(iter(self._waiting))))
        # Bounded, since clients give up without notice.
        self._waiting[call.id] = call
        self.tasks.start(self._forget_unanswered(call))

    def resume(self, call_id: str) -> ToolCall | None:
        """Return and remove a call that waits for its second round."""
        return self._waiting.pop(call_id, None)

    async def _forget_unanswered(self, call: ToolCall) -> None:
        """Forget a call when it ends because its question was never answered."""
        await call.wait()
        if call.id in self._waiting:
            self.end(call)

    async def aclose(self) -> None:
        """End all calls and kill all commands."""
        self.updates.close()
        for call in list(self._calls.values()):
            self.tasks.start(call.stop())
        await self.tools.aclose()
        await self.tasks.aclose()


class McpPrincipals:
    """All principals of a server, each created when its client first calls a tool."""

    def __init__(self, workplace: Workplace, attendance: Attendance, *, keep: float | None) -> None:
        """
        Args:
            workplace: Where their commands run.
            attendance: Notifies when a principal has no more requests.
            keep: Seconds that a principal outlives its last request; None for as long as the
                server.
        """
        self._workplace = workplace
        self._attendance = attendance
        self._keep = keep
        self._principals: dict[str, Principal] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks = OwnedTasks()
        attendance.arrived = self._arrived
        attendance.left = self._left
        attendance.gone = self._end
        attendance.has_commands = self._has_commands

    def of(self, key: str) -> Principal:
        """
        Return a principal by its key, for a running request.

        Raises:
            HoldfastError: There are too many, or its token was revoked meanwhile.
        """
        principal = self._principals.get(key)
        if principal is None:
            if self._attendance.is_revoked(key):
                raise HoldfastError("the token of this request was revoked")
            if len(self._principals) >= _PRINCIPALS and not self._make_room():
                raise HoldfastError("too many clients have sessions on this server")
            principal = self._principals[key] = Principal(key, self._workplace)
        return principal

    def _make_room(self) -> bool:
        """End the principal that left first and has no commands; return False if there is none."""
        # In the order in which they left.
        for key in self._timers:
            if not self._principals[key].tools.sessions():
                self._end(key)
                return True
        return False

    def _has_commands(self, key: str) -> bool:
        principal = self._principals.get(key)
        return principal is not None and bool(principal.tools.sessions())

    def _arrived(self, key: str) -> None:
        """Cancel the timer that would end a principal."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _left(self, key: str) -> None:
        if self._keep is not None and key in self._principals:
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_later(self._keep, self._end, key)

    def _end(self, key: str) -> None:
        """End a principal, its calls and its commands, if it exists."""
        self._arrived(key)
        principal = self._principals.pop(key, None)
        if principal is not None:
            self._tasks.start(principal.aclose())

    async def aclose(self) -> None:
        """End all principals."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await asyncio.gather(*(each.aclose() for each in self._principals.values()))
        self._principals.clear()
        # Also wait for principals that were already being ended.
        await self._tasks.join()
