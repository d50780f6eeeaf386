"""`holdfast policy`: shows the rules that match a command, and the decision on it."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.agent.approvals.explain_decision import explanation, explanation_json
from holdfast.agent.approvals.layers import load_rules
from holdfast.agent.approvals.permissions import is_restricted
from holdfast.agent.approvals.policies import UNTRUSTED, parse_policy
from holdfast.agent.approvals.real_program import StaysInside
from holdfast.agent.approvals.requirements import REQUIREMENTS_FILE
from holdfast.agent.approvals.rules import BrokenFile, RuleMatch, RuleSet, strictest
from holdfast.agent.approvals.shown_text import shown_lines, visible
from holdfast.agent.approvals.start_permission import CommandRequest, judge, program_outside
from holdfast.base.errors import InvalidConfig
from holdfast.environments.config.home import holdfast_home
from holdfast.environments.sandbox import (
    ProfileContext,
    also_writing,
    home_here,
    resolve_sandbox,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["check", "explain"]


def check(options: argparse.Namespace) -> int:
    """Show the matching rules; return the exit status."""
    try:
        rules = _rules(options.rules)
    except InvalidConfig as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    # Named files must be usable; those of the layers only cause a warning.
    if options.rules and rules.broken:
        print(_refusal(rules.broken[0]), file=sys.stderr)
        return 1
    for broken in rules.broken:
        print(f"holdfast: rules file ignored: {broken.summary}", file=sys.stderr)
    matches = rules.match(
        options.argv,
        resolve_hosts=options.resolve_host_executables,
        cwd=os.getcwd(),
        home=os.path.expanduser("~"),
    )
    print(_answer(matches, pretty=options.pretty))
    return 1 if rules.broken else 0


def explain(options: argparse.Namespace) -> int:
    """Show the decision on a command and the reason; return the exit status."""
    try:
        rules = _rules(options.rules)
    except InvalidConfig as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    argv = tuple(options.argv)
    if len(argv) == 1:
        # A single argument is a shell script, as from a model.
        argv = (options.shell, "-c", argv[0])
    here = os.getcwd()
    context = ProfileContext(folder=PathUri.from_path(here), home=home_here())
    request = CommandRequest(
        call_id="",
        environment_id="local",
        argv=argv,
        cwd=here,
        sandbox=_sandbox(options, context),
        shell=options.shell,
        variables=os.environ,
        permissions="require_escalated" if options.escalated else "use_default",
    )
    policy = UNTRUSTED if options.policy == "untrusted" else parse_policy(options.policy)
    as_codex = options.rules_leave_sandbox
    split, judgement = judge(request, policy=policy, rules=rules, rules_leave_sandbox=as_codex)
    if judgement.outside_sandbox and is_restricted(request.sandbox) and not as_codex:
        try:
            program_outside(request, split, rules)
        except StaysInside as error:
            _, judgement = judge(request, policy=policy, rules=rules, held=str(error))
    if options.json:
        print(json.dumps(explanation_json(request, judgement), ensure_ascii=False, indent=2))
        return 0
    for name, text in explanation(request, judgement):
        # Escaped, since an agent may have written the rules or the command.
        first, *more = shown_lines(text)
        print(f"{name + ':':15}{first}")
        for line in more:
            print(f"{'':15}{line}")
    return 0


def _sandbox(options: argparse.Namespace, context: ProfileContext) -> SandboxContext | None:
    name: str = options.sandbox
    return resolve_sandbox(also_writing(name, options.sandbox_write), context)


def _rules(files: Sequence[str]) -> RuleSet:
    if files:
        return load_rules(explicit=files)
    return load_rules(
        home=holdfast_home(os.environ), project=Path.cwd(), requirements=REQUIREMENTS_FILE
    )


def _refusal(broken: BrokenFile) -> str:
    """Return the error of a file: the failure, and the cause below it."""
    verb = "read" if broken.unread else "parse"
    cause = "\n".join(f"    {visible(line)}" for line in broken.error.split("\n"))
    return f"Error: failed to {verb} policy at {broken.path}\n\nCaused by:\n{cause}"


def _answer(matches: Sequence[RuleMatch], *, pretty: bool) -> str:
    answer: dict[str, object] = {
        "matchedRules": [{"prefixRuleMatch": _match(match)} for match in matches]
    }
    ruling = strictest(matches)
    if ruling is not None:
        answer["decision"] = ruling.word
    if pretty:
        return json.dumps(answer, ensure_ascii=False, indent=2)
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))


def _match(match: RuleMatch) -> dict[str, object]:
    fields: dict[str, object] = {
        "matchedPrefix": list(match.matched_prefix),
        "decision": match.ruling.word,
    }
    if match.resolved_program is not None:
        fields["resolvedProgram"] = match.resolved_program
    if match.justification is not None:
        fields["justification"] = match.justification
    return fields
