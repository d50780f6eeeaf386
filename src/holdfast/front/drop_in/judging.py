"""Decides whether a command line may run, by the approval policy and the rules."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from holdfast.agent.approvals import (
    UNTRUSTED,
    ApprovalFlow,
    Approvals,
    CallCancelled,
    Clearance,
    CommandRefused,
    CommandRequest,
    RuleSet,
    Ruling,
    judge,
    load_rules,
    parse_policy,
)
from holdfast.agent.approvals.layers import find_rules_files
from holdfast.agent.approvals.requirements import REQUIREMENTS_FILE
from holdfast.base.errors import HoldfastError, InvalidParams
from holdfast.environments.config.home import holdfast_home
from holdfast.front.drop_in.asking import approver_on
from holdfast.front.drop_in.caller import Caller
from holdfast.front.drop_in.invocation import read_invocation
from holdfast.front.drop_in.quiet_terminal import Terminals
from holdfast.front.drop_in.settings import ShellSettings
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["Judge", "LineRefused"]

_STDIN = 0

# Seconds that a person has to answer; less than the launcher waits for the response.
_ASK_LIMIT = 300.0

_NO_TERMINAL = "there is no terminal to ask on"
_BACKGROUND = "it is in the background of its terminal"
_OTHERWISE = "HOLDFAST_SH_POLICY=off, or a rule in HOLDFAST_SH_RULES, lets it run"
_UNSEEN = "a script on standard input cannot be looked at before it runs;"


class LineRefused(Exception):
    """The command line may not run; the text says why."""


class Judge:
    """Decides about command lines, with a cache of the rules that were read."""

    def __init__(self, terminals: Terminals) -> None:
        self._terminals = terminals
        self._rules: dict[tuple[object, ...], RuleSet] = {}

    async def admit(
        self, caller: Caller, settings: ShellSettings, sandbox: SandboxContext | None
    ) -> Clearance:
        """
        Decide about a command line, and ask on the caller's terminal if necessary.

        Returns:
            How to run the command line: in which sandbox, or which program without one.

        Raises:
            LineRefused: The command line may not run.
        """
        # Without a policy, the caller of this method does not ask.
        assert settings.policy is not None
        try:
            asks_always = settings.policy == "untrusted"
            policy = UNTRUSTED if asks_always else parse_policy(settings.policy)
        except InvalidParams as error:
            raise LineRefused(f"policy: {error}") from error
        called = read_invocation(caller.argv, settings.shell)
        # A person may type into a terminal; other input is unknown before it runs.
        if called.line is None and called.file is None and caller.terminal != _STDIN:
            raise LineRefused(f"{_UNSEEN} HOLDFAST_SH_POLICY=off lets it run")
        request = CommandRequest(
            call_id=f"sh-{caller.pid}",
            environment_id="local",
            argv=called.argv(settings.shell),
            cwd=caller.cwd,
            tty=caller.terminal is not None,
            sandbox=sandbox,
            script=called.line,
            shell=settings.shell,
            variables=caller.environ,
        )
        try:
            # In a thread, since a child process evaluates the rules.
            rules = await asyncio.to_thread(self._load, settings, caller.environ)
            # A job in the background would take what is typed for another program as its answer.
            why = _NO_TERMINAL if caller.terminal is None else _BACKGROUND
            if caller.terminal is None or caller.group != caller.terminal_group:
                _, judgement = judge(request, policy=policy, rules=rules)
                if judgement.ruling is Ruling.PROMPT_USER:
                    raise LineRefused(f"only a person may allow it, and {why}")
                if judgement.ruling is Ruling.PROMPT:
                    raise LineRefused(f"needs approval and {why}; {_OTHERWISE}")
            approvals = Approvals(policy=policy, rules=rules)
            return await _asked(caller, request, approvals, self._terminals)
        except CommandRefused as error:
            raise LineRefused(str(error)) from error
        except CallCancelled as error:
            raise LineRefused("cancelled") from error
        except HoldfastError as error:
            raise LineRefused(str(error)) from error

    def _load(self, settings: ShellSettings, environ: Mapping[str, str]) -> RuleSet:
        home = holdfast_home(environ)
        files = find_rules_files(home=home, explicit=settings.rules)
        paths = (str(REQUIREMENTS_FILE), *(file.path for file in files))
        key = tuple([_version(path) for path in paths])
        found = self._rules.get(key)
        if found is None:
            found = load_rules(
                home=Path(home), explicit=settings.rules, requirements=REQUIREMENTS_FILE
            )
            # A user has a few sets of rules; the oldest goes first.
            while len(self._rules) >= 16:
                del self._rules[next(iter(self._rules))]
            self._rules[key] = found
        return found


def _version(path: str) -> tuple[str, int, int, int]:
    try:
        about = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, about.st_mtime_ns, about.st_size, about.st_ino


async def _asked(
    caller: Caller, request: CommandRequest, approvals: Approvals, terminals: Terminals
) -> Clearance:
    """Run the approval flow, with the caller's terminal for questions."""
    with ExitStack() as stack:
        approver = None
        if caller.terminal is not None:
            approver = stack.enter_context(approver_on(caller, caller.terminal, terminals))
        flow = ApprovalFlow(
            Approvals(
                policy=approvals.policy,
                rules=approvals.rules,
                approver=approver,
                ask_limit=_ASK_LIMIT,
            )
        )
        return await flow.admit(request)
