"""
Decides about one command: run, ask or refuse; a pure function.

Rules can only allow the commands of a plain script. For asking and refusing, every command that is
visible anywhere in the script counts.
"""

import enum
import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.agent.approvals.dangerous import Danger, danger_of
from holdfast.agent.approvals.policies import ApprovalPolicy, PolicyKind, PromptKind
from holdfast.agent.approvals.rules import PrefixRule, RuleMatch, RuleSet, Ruling
from holdfast.agent.approvals.shell_words import shown_command
from holdfast.agent.approvals.split.shell_arguments import base_name
from holdfast.agent.approvals.split.simple_command import Split
from holdfast.base.dialect import texts

__all__ = [
    "Cause",
    "Judgement",
    "SandboxPermissions",
    "SegmentRuling",
    "decide",
    "escalation_refusal",
    "policy_refusal",
]

SandboxPermissions = Literal["use_default", "require_escalated", "with_additional_permissions"]
"""The sandbox that a call requests."""


class Cause(enum.StrEnum):
    """The reason for a decision, most important first."""

    RULE = "rule"
    """A rule matched."""
    DANGEROUS = "dangerous"
    """The command deletes by force."""
    SYNTAX = "syntax"
    """The shell cannot parse the script."""
    UNSEEN = "unseen"
    """The command could not be analysed."""
    BROKEN = "broken"
    """An unusable rules file could have contained a rule."""
    ESCALATION = "escalation"
    """The command requests more than its sandbox allows."""
    UNTRUSTED = "untrusted"
    """The policy asks about every command."""
    DEFAULT = "default"
    """No rule or policy speaks against it."""


@dataclass(frozen=True, slots=True)
class SegmentRuling:
    """The decision about one command of a script."""

    words: tuple[str, ...]
    ruling: Ruling
    cause: Cause
    matches: tuple[RuleMatch, ...] = ()
    """The matching rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The decision about a command, with its reason."""

    ruling: Ruling
    cause: Cause
    segments: tuple[SegmentRuling, ...]
    """The commands that rules may allow, in order."""
    literals: tuple[SegmentRuling, ...] = ()
    """Other commands found in it that need a question or are refused."""
    decided_by: RuleMatch | None = None
    """The deciding rule; the most specific if there are several."""
    reason: str | None = None
    """The reason for a question, or the text of a refusal."""
    outside_sandbox: bool = False
    """True if rules permit it to run without a sandbox and without a question."""
    amendment: tuple[str, ...] | None = None
    """The prefix that the question may propose to allow permanently."""
    retry_amendment: tuple[str, ...] | None = None
    """The prefix for the question after a denial."""
    notes: tuple[str, ...] = ()
    """Remarks: unusable rules files, why analysis failed, why the sandbox stays."""


def decide(
    argv: Sequence[str],
    *,
    split: Split,
    policy: ApprovalPolicy,
    rules: RuleSet,
    restricted: bool,
    permissions: SandboxPermissions = "use_default",
    prefix_rule: Sequence[str] | None = None,
    rules_leave_sandbox: bool = False,
    unreadable_runs: bool = False,
    held: str | None = None,
    cwd: str | None = None,
    acceptable: Callable[[Sequence[str]], bool] | None = None,
) -> Judgement:
    """
    Return the decision about a command.

    Args:
        argv: The command.
        split: The commands in it.
        policy: Determines which questions may be asked.
        rules: Rules that allow commands, ask about them or forbid them.
        restricted: True if the command has a sandbox that an escalation would lift.
        permissions: The sandbox that the call requests.
        prefix_rule: The prefix that the model proposes to allow permanently.
        rules_leave_sandbox: True if commands that rules allow run without a sandbox. Otherwise
            only those of rules with `sandbox="none"` do.
        unreadable_runs: True if a script that cannot be analysed only needs a question for the
            commands found in it.
        held: The reason why a rule with `sandbox="none"` does not apply to this command; see
            `real_program`.
        cwd: The directory for relative paths of programs.
        acceptable: Returns False for prefixes that must not be stored.
    """
    judge = _SegmentJudge(
        policy=policy,
        rules=rules,
        # An escalation only matters if there is a sandbox to leave.
        override=permissions != "use_default" and restricted,
        rules_leave_sandbox=rules_leave_sandbox,
        # The program of a rule is executed without a shell, so it has to be the only one.
        lets_out=held is None and len(split.segments) == 1,
        cwd=cwd,
    )
    parts = _Parts(
        segments=tuple(judge.segment(words) for words in split.segments),
        literals=tuple(judge.literals(split)),
        command=shown_command(argv),
        notes=tuple(_notes(split, rules, unreadable_runs=unreadable_runs)),
    )
    # The strictest decision about any part applies to the whole.
    ruling = max(one.ruling for one in parts.every)
    if ruling is Ruling.FORBIDDEN:
        return _forbidden(parts)
    if split.fault is not None and not unreadable_runs:
        return _unparsable(parts, split.fault)
    cause = _weightiest(parts.every, ruling)
    unseen = split.unseen is not None and not unreadable_runs
    # A script that was not analysed, or an unusable rules file, may hide a prohibition: ask, unless
    # there is a stronger reason to ask.
    if parts.notes and (ruling is Ruling.ALLOW or cause not in (Cause.RULE, Cause.DANGEROUS)):
        ruling = max(ruling, Ruling.PROMPT)
        cause = Cause.UNSEEN if unseen else Cause.BROKEN
    # It may also hide a command that only a person may allow.
    if unseen and rules.ask_person:
        ruling = Ruling.PROMPT_USER
    if ruling is Ruling.ALLOW:
        return _allowed(parts, cause, judge, acceptable, held)
    return _asked(parts, ruling, cause, judge, prefix_rule, acceptable)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """A command with the decisions about its parts."""

    segments: tuple[SegmentRuling, ...]
    literals: tuple[SegmentRuling, ...]
    command: str
    notes: tuple[str, ...]

    @property
    def every(self) -> tuple[SegmentRuling, ...]:
        """All parts, the segments first."""
        return (*self.segments, *self.literals)


def _forbidden(parts: _Parts) -> Judgement:
    rule = _most_specific(parts.every, Ruling.FORBIDDEN)
    removes = _removes(parts.segments, parts.literals)
    return Judgement(
        ruling=Ruling.FORBIDDEN,
        cause=Cause.RULE if rule is not None else Cause.DANGEROUS,
        segments=parts.segments,
        literals=parts.literals,
        decided_by=rule,
        reason=_forbidden_text(parts.command, rule, removes=removes),
    )


def _unparsable(parts: _Parts, fault: str) -> Judgement:
    """Return the refusal of a script that its shell cannot parse."""
    # A person could not approve anything useful, and the model can fix the error by its position.
    return Judgement(
        ruling=Ruling.FORBIDDEN,
        cause=Cause.SYNTAX,
        segments=parts.segments,
        literals=parts.literals,
        reason=f"`{parts.command}` rejected: the script cannot be parsed: {fault}",
        notes=parts.notes,
    )


def _allowed(
    parts: _Parts,
    cause: Cause,
    judge: "_SegmentJudge",
    acceptable: Callable[[Sequence[str]], bool] | None,
    held: str | None,
) -> Judgement:
    matched = any(one.matches for one in parts.segments)
    outside = all(judge.leaves_sandbox(one) for one in parts.segments)
    stays = held
    if stays is None and not outside and all(map(_may_leave, parts.segments)):
        stays = "only a single command can leave it"
    return Judgement(
        ruling=Ruling.ALLOW,
        cause=cause,
        segments=parts.segments,
        literals=parts.literals,
        decided_by=_most_specific(parts.every, Ruling.ALLOW),
        outside_sandbox=outside,
        # A command that a rule allows does not need a new rule after a denial.
        retry_amendment=None if matched else _acceptable(parts.segments[0].words, acceptable),
        notes=() if stays is None else (f"it stays in its sandbox: {stays}",),
    )


def _asked(
    parts: _Parts,
    ruling: Ruling,
    cause: Cause,
    judge: "_SegmentJudge",
    prefix_rule: Sequence[str] | None,
    acceptable: Callable[[Sequence[str]], bool] | None,
) -> Judgement:
    """Return a question, or a refusal if the policy does not permit one."""
    # A person may have to decide because of hidden commands instead of a rule.
    by_rules = max(one.ruling for one in parts.every)
    rule = None if by_rules is Ruling.ALLOW else _most_specific(parts.every, by_rules)
    from_rules = cause in (Cause.RULE, Cause.BROKEN)
    kind = PromptKind.RULES if from_rules else PromptKind.SANDBOX
    refusal = policy_refusal(judge.policy, kind)
    if refusal is not None:
        if cause is Cause.DANGEROUS and _removes(parts.segments, parts.literals):
            refusal = texts.DANGEROUS
        elif cause in (Cause.UNSEEN, Cause.BROKEN):
            refusal = f"`{parts.command}` rejected: {parts.notes[0]}"
    amendment = None
    # With a rule that asks, or hidden commands, a stored prefix would allow more than was shown.
    if refusal is None and rule is None and not parts.notes and not parts.literals:
        amendment = judge.amendment(parts.segments, prefix_rule, acceptable)
    return Judgement(
        ruling=ruling if refusal is None else Ruling.FORBIDDEN,
        cause=cause,
        segments=parts.segments,
        literals=parts.literals,
        decided_by=rule,
        reason=_prompt_reason(parts.command, rule, parts.notes) if refusal is None else refusal,
        amendment=amendment,
        retry_amendment=amendment,
        notes=parts.notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentJudge:
    """Decides about the parts of one command."""

    policy: ApprovalPolicy
    rules: RuleSet
    override: bool
    rules_leave_sandbox: bool
    lets_out: bool
    """True if a rule with `sandbox="none"` applies to the command."""
    cwd: str | None

    def segment(self, words: tuple[str, ...]) -> SegmentRuling:
        """Return the decision about a command that rules may allow."""
        return self._ruled(words, self._matches(words, None))

    def _matches(self, words: tuple[str, ...], cwd: str | None) -> tuple[RuleMatch, ...]:
        """Return the rules that match a command."""
        found = self.rules.match(words, cwd=cwd)
        if "/" not in words[0]:
            return found
        # Neither a rule about an exact path nor a `host_executable`, which lists permitted paths,
        # may bypass a prohibition: different paths may be the same file.
        other = self.rules.match((base_name(words[0]), *words[1:]))
        seen = {match.rule for match in found}
        strict = (one for one in other if one.ruling is not Ruling.ALLOW and one.rule not in seen)
        return (*found, *strict)

    def _ruled(self, words: tuple[str, ...], matches: tuple[RuleMatch, ...]) -> SegmentRuling:
        if not matches:
            ruling, cause = self._unmatched(words)
            return SegmentRuling(words, ruling, cause)
        ruling = max(match.ruling for match in matches)
        if ruling is Ruling.ALLOW and self.override and not self._any_leaves(matches):
            # Allowed without a question, but only in its sandbox.
            return SegmentRuling(words, Ruling.PROMPT, Cause.ESCALATION, matches)
        return SegmentRuling(words, ruling, Cause.RULE, matches)

    def _unmatched(self, words: Sequence[str]) -> tuple[Ruling, Cause]:
        """Return the decision about a command that no rule matches [2.2]."""
        never = self.policy.kind is PolicyKind.NEVER
        if danger_of(words) is not None:
            return (Ruling.FORBIDDEN if never else Ruling.PROMPT), Cause.DANGEROUS
        if self.policy.kind is PolicyKind.UNTRUSTED:
            return Ruling.PROMPT, Cause.UNTRUSTED
        if self.override and not never:
            return Ruling.PROMPT, Cause.ESCALATION
        return Ruling.ALLOW, Cause.DEFAULT

    def literals(self, split: Split) -> Iterator[SegmentRuling]:
        """Yield the decisions to ask or refuse for other commands found in a script."""
        decided = set(split.segments)
        never = self.policy.kind is PolicyKind.NEVER
        for words in dict.fromkeys(split.literals):
            # Already decided as a segment, possibly as allowed.
            if words in decided:
                continue
            matches = self._matches(words, self.cwd)
            strict = tuple(match for match in matches if match.ruling is not Ruling.ALLOW)
            if strict:
                ruling = max(match.ruling for match in strict)
                yield SegmentRuling(words, ruling, Cause.RULE, strict)
            elif not matches and danger_of(words) is not None:
                ruling = Ruling.FORBIDDEN if never else Ruling.PROMPT
                yield SegmentRuling(words, ruling, Cause.DANGEROUS)

    def leaves_sandbox(self, segment: SegmentRuling) -> bool:
        """Return True if a rule permits a command to run without a sandbox."""
        return segment.ruling is Ruling.ALLOW and self._any_leaves(segment.matches)

    def _any_leaves(self, matches: Sequence[RuleMatch]) -> bool:
        return any(
            match.ruling is Ruling.ALLOW
            and (
                self.rules_leave_sandbox
                or (self.lets_out and match.rule.outside_sandbox and self._names(match))
            )
            for match in matches
        )

    def _names(self, match: RuleMatch) -> bool:
        """Return True if a rule applies to the file that would run."""
        # A program of the same name elsewhere, such as in the workspace, must stay in the sandbox:
        # the path must be in the rule, or listed by a `host_executable`.
        program = match.resolved_program
        return program is None or posixpath.basename(program) in self.rules.host_executables

    def amendment(
        self,
        segments: Sequence[SegmentRuling],
        wanted: Sequence[str] | None,
        acceptable: Callable[[Sequence[str]], bool] | None,
    ) -> tuple[str, ...] | None:
        """Return the prefix that a question may propose to allow permanently [3.1]."""
        asked = [one for one in segments if one.ruling is Ruling.PROMPT and not _may_leave(one)]
        # The model's proposal only counts if it covers everything that is asked about.
        if wanted and not any(one.matches for one in segments):
            prefix = tuple(wanted)
            allowed = acceptable is None or acceptable(prefix)
            rule = PrefixRule(pattern=tuple((word,) for word in prefix))
            if allowed and all(rule.prefix_of(one.words) is not None for one in asked):
                return prefix
        return _acceptable(asked[0].words, acceptable) if asked else None


def _may_leave(segment: SegmentRuling) -> bool:
    """Return True if a rule about a command says `sandbox="none"`."""
    return any(match.rule.outside_sandbox for match in segment.matches)


def _acceptable(
    prefix: tuple[str, ...], acceptable: Callable[[Sequence[str]], bool] | None
) -> tuple[str, ...] | None:
    """Return a prefix, or None if it must not be stored."""
    return prefix if acceptable is None or acceptable(prefix) else None


def policy_refusal(policy: ApprovalPolicy, kind: PromptKind) -> str | None:
    """Return the refusal of a question that a policy does not permit, or None."""
    if policy.may_ask(kind):
        return None
    if policy.kind is PolicyKind.NEVER:
        return texts.ASK_NEVER
    return texts.ASK_NO_RULES if kind is PromptKind.RULES else texts.ASK_NO_SANDBOX


def escalation_refusal(policy: ApprovalPolicy) -> str | None:
    """Return the refusal of all requests for more permissions under a policy, or None."""
    if policy.may_ask(PromptKind.SANDBOX):
        return None
    shown = policy.debug
    return (
        f"approval policy is {shown}; reject command — you cannot ask for escalated permissions"
        f" if the approval policy is {shown}"
    )


def _most_specific(segments: Sequence[SegmentRuling], ruling: Ruling) -> RuleMatch | None:
    """Return the match with the longest prefix among those with this decision."""
    matches = [match for one in segments for match in one.matches if match.ruling is ruling]
    return max(matches, key=lambda match: len(match.matched_prefix), default=None)


def _weightiest(segments: Sequence[SegmentRuling], ruling: Ruling) -> Cause:
    order = list(Cause)
    causes = (one.cause for one in segments if one.ruling is ruling)
    return min(causes, key=order.index)


def _notes(split: Split, rules: RuleSet, *, unreadable_runs: bool) -> Iterator[str]:
    if split.unseen is not None and not unreadable_runs:
        yield f"it cannot be looked through: {split.unseen}"
    for broken in rules.broken:
        yield f"a rules file cannot be used: {broken.summary}"


def _removes(segments: Sequence[SegmentRuling], literals: Sequence[SegmentRuling]) -> bool:
    """Return True if a dangerous command is one that deletes by force."""
    found = [danger_of(one.words) for one in segments if one.cause is Cause.DANGEROUS]
    # The text about removals would be wrong for a command that could not be unwrapped.
    if Danger.TOO_MANY_WRAPPERS in found:
        return False
    found += [danger_of(one.words) for one in literals if one.cause is Cause.DANGEROUS]
    return Danger.FORCED_REMOVAL in found


def _forbidden_text(command: str, rule: RuleMatch | None, *, removes: bool) -> str:
    if rule is None:
        return f"`{command}` rejected: {texts.DANGEROUS if removes else 'blocked by policy'}"
    if rule.justification is not None:
        return f"`{command}` rejected: {rule.justification}"
    prefix = shown_command(rule.matched_prefix)
    return f"`{command}` rejected: policy forbids commands starting with `{prefix}`"


def _prompt_reason(command: str, rule: RuleMatch | None, notes: Sequence[str]) -> str | None:
    reasons = list(notes)
    if rule is not None:
        whose = "human approval" if rule.ruling is Ruling.PROMPT_USER else "approval"
        why = " by policy" if rule.justification is None else f": {rule.justification}"
        reasons.insert(0, f"`{command}` requires {whose}{why}")
    return "\n".join(reasons) or None
