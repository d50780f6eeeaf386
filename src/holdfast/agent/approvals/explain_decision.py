"""Explains a decision: the segments of a command, the rules about them, and its sandbox."""

from collections.abc import Sequence

from holdfast.agent.approvals.decide import Cause, Judgement, SegmentRuling
from holdfast.agent.approvals.permissions import denies_paths, is_restricted
from holdfast.agent.approvals.rules import RuleMatch, Ruling
from holdfast.agent.approvals.shell_words import shown_command
from holdfast.agent.approvals.start_permission import CommandRequest

__all__ = ["explanation", "explanation_json", "ground"]

_GROUNDS = {
    Cause.RULE: "a rule says so",
    Cause.DANGEROUS: "it deletes by force, or is hidden by many wrappers",
    Cause.SYNTAX: "the shell cannot parse the script",
    Cause.UNSEEN: "it cannot be looked through",
    Cause.BROKEN: "a rules file cannot be used",
    Cause.ESCALATION: "it asks for more than its sandbox gives",
    Cause.UNTRUSTED: "the policy asks about every command",
    Cause.DEFAULT: "no rule is about it",
}


def explanation(request: CommandRequest, judgement: Judgement) -> list[tuple[str, str]]:
    """Return the reasons for a decision as names and texts, for people."""
    lines = [
        ("command", shown_command(request.argv)),
        ("decision", judgement.ruling.word),
        ("because", ground(judgement)),
        ("sandbox", _sandbox(request, judgement)),
    ]
    if judgement.reason is not None:
        name = "refusal" if judgement.ruling is Ruling.FORBIDDEN else "question"
        lines.append((name, judgement.reason))
    lines += (("segment", _part(one)) for one in judgement.segments)
    lines += (("seen in it", _part(one)) for one in judgement.literals)
    if judgement.amendment is not None:
        lines.append(("proposed rule", shown_command(judgement.amendment)))
    lines += (("note", note) for note in judgement.notes)
    return lines


def explanation_json(request: CommandRequest, judgement: Judgement) -> dict[str, object]:
    """Return the reasons for a decision as a JSON object, for programs."""
    return {
        "command": list(request.argv),
        "decision": judgement.ruling.word,
        "cause": judgement.cause.value,
        "because": ground(judgement),
        "reason": judgement.reason,
        "sandbox": _sandbox(request, judgement),
        "outsideSandbox": judgement.outside_sandbox,
        "segments": _parts(judgement.segments),
        "seen": _parts(judgement.literals),
        "proposedExecpolicyAmendment": _words(judgement.amendment),
        "notes": list(judgement.notes),
    }


def ground(judgement: Judgement) -> str:
    """Return the reason for a decision in one sentence."""
    if judgement.cause is Cause.RULE and judgement.decided_by is not None:
        return _rule(judgement.decided_by)
    return _GROUNDS[judgement.cause]


def _sandbox(request: CommandRequest, judgement: Judgement) -> str:
    if judgement.ruling is Ruling.FORBIDDEN:
        return "none: it does not run"
    if not is_restricted(request.sandbox):
        return "none is configured"
    if request.permissions == "require_escalated" or judgement.outside_sandbox:
        if denies_paths(request.sandbox):
            return "a wider one, because the profile denies paths"
        cause = "rules" if judgement.outside_sandbox else "the approver"
        return f"none: {cause} may let it out"
    return "the configured one"


def _rule(match: RuleMatch) -> str:
    source = "" if match.rule.source is None else f" in {match.rule.source}"
    why = "" if match.justification is None else f": {match.justification}"
    return f"rule {match.ruling.word} `{shown_command(match.matched_prefix)}`{source}{why}"


def _part(one: SegmentRuling) -> str:
    found = [_rule(match) for match in one.matches] or [_GROUNDS[one.cause]]
    return f"{one.ruling.word}: {shown_command(_visible(one.words))} ({'; '.join(found)})"


def _visible(words: Sequence[str]) -> list[str]:
    """Return words with a question mark for parts that only the shell knows."""
    return [word.replace("\0", "?") for word in words]


def _parts(parts: Sequence[SegmentRuling]) -> list[dict[str, object]]:
    return [
        {
            "words": _visible(one.words),
            "decision": one.ruling.word,
            "cause": one.cause.value,
            "rules": [_rule(match) for match in one.matches],
        }
        for one in parts
    ]


def _words(words: Sequence[str] | None) -> list[str] | None:
    return None if words is None else list(words)
