"""The decision about one command: rules, danger, escalation, and what cannot be seen."""

import itertools
from collections.abc import Sequence

import pytest

from holdfast.agent.approvals.amendments import is_banned
from holdfast.agent.approvals.decide import Cause, Judgement, SandboxPermissions, decide
from holdfast.agent.approvals.policies import (
    NEVER,
    ON_REQUEST,
    UNTRUSTED,
    ApprovalPolicy,
    Granular,
    as_policy,
)
from holdfast.agent.approvals.rules import BrokenFile, PrefixRule, RuleSet, Ruling
from holdfast.agent.approvals.split.simple_command import split_command

ALLOW, PROMPT, HUMAN, FORBIDDEN = Ruling
NO_SANDBOX_QUESTIONS = as_policy(
    Granular(sandbox_approval=False, rules=True, mcp_elicitations=True)
)
NO_RULE_QUESTIONS = as_policy(Granular(sandbox_approval=True, rules=False, mcp_elicitations=True))


def rule(
    *words: str, ruling: Ruling = ALLOW, why: str | None = None, outside: bool = False
) -> PrefixRule:
    return PrefixRule(
        pattern=tuple((word,) for word in words),
        ruling=ruling,
        justification=why,
        outside_sandbox=outside,
    )


RULES = RuleSet(
    [
        rule("hostname", ruling=FORBIDDEN, why="the name is private"),
        rule("uname", "-a", ruling=FORBIDDEN),
        rule("touch"),
        rule("cp", outside=True),
        rule("ln", ruling=PROMPT),
        rule("mkdir", "asked", ruling=PROMPT, why="folders matter"),
    ]
)


def judged(
    script: str | Sequence[str],
    policy: ApprovalPolicy = ON_REQUEST,
    *,
    rules: RuleSet = RULES,
    restricted: bool = True,
    permissions: SandboxPermissions = "use_default",
    prefix: Sequence[str] | None = None,
    codex: bool = False,
) -> Judgement:
    argv = ("/bin/bash", "-c", script) if isinstance(script, str) else tuple(script)
    return decide(
        argv,
        split=split_command(argv),
        policy=policy,
        rules=rules,
        restricted=restricted,
        permissions=permissions,
        prefix_rule=prefix,
        rules_leave_sandbox=codex,
        unreadable_runs=codex,
        cwd="/ws",
        acceptable=lambda prefix: not is_banned(prefix),
    )


@pytest.mark.parametrize(
    ("policy", "dangerous", "plain", "escalated"),
    [
        (NEVER, FORBIDDEN, ALLOW, ALLOW),
        (UNTRUSTED, PROMPT, PROMPT, PROMPT),
        (ON_REQUEST, PROMPT, ALLOW, PROMPT),
        (NO_RULE_QUESTIONS, PROMPT, ALLOW, PROMPT),
    ],
)
@pytest.mark.requirement("approvals.decide.fallback")
def test_a_command_that_no_rule_is_about(
    policy: ApprovalPolicy, dangerous: Ruling, plain: Ruling, escalated: Ruling
) -> None:
    assert judged("rm -rf x", policy).ruling is dangerous
    assert judged("rm -rf x", policy, restricted=False).ruling is dangerous
    assert judged("ls", policy).ruling is plain
    up = judged("ls", policy, permissions="require_escalated")
    assert up.ruling is escalated
    free = judged("ls", policy, permissions="require_escalated", restricted=False)
    assert free.ruling is plain


@pytest.mark.parametrize(
    ("script", "policy", "text"),
    [
        ("hostname -s", NEVER, "`/bin/bash -c 'hostname -s'` rejected: the name is private"),
        (
            "uname -a -s",
            ON_REQUEST,
            "`/bin/bash -c 'uname -a -s'` rejected: policy forbids commands starting with"
            " `uname -a`",
        ),
        (
            "rm -rf x",
            NEVER,
            "`/bin/bash -c 'rm -rf x'` rejected: rm -f style commands are not permitted. Use a"
            " safer approach",
        ),
        (
            "env " * 9 + "true",
            NEVER,
            f"`/bin/bash -c '{'env ' * 9}true'` rejected: blocked by policy",
        ),
        (
            "env " * 9 + "rm -f x",
            NO_SANDBOX_QUESTIONS,
            "approval required by policy, but AskForApproval::Granular.sandbox_approval is false",
        ),
        (
            "(rm -f x)",
            NEVER,
            "`/bin/bash -c '(rm -f x)'` rejected: rm -f style commands are not permitted. Use a"
            " safer approach",
        ),
        (
            "rm -rf x",
            NO_SANDBOX_QUESTIONS,
            "rm -f style commands are not permitted. Use a safer approach",
        ),
        (
            "mkdir asked",
            NEVER,
            "approval required by policy, but AskForApproval is set to Never",
        ),
        (
            "mkdir asked",
            NO_RULE_QUESTIONS,
            "approval required by policy rule, but AskForApproval::Granular.rules is false",
        ),
    ],
)
@pytest.mark.requirement("approvals.decide.refusals")
def test_texts_of_refusals(script: str, policy: ApprovalPolicy, text: str) -> None:
    found = judged(script, policy)
    assert (found.ruling, found.reason) == (FORBIDDEN, text)


@pytest.mark.requirement("approvals.decide.reasons")
def test_reasons_of_questions() -> None:
    with_why, without = judged("mkdir asked x"), judged("ln -s a b")
    assert with_why.reason == "`/bin/bash -c 'mkdir asked x'` requires approval: folders matter"
    assert without.reason == "`/bin/bash -c 'ln -s a b'` requires approval by policy"
    assert with_why.decided_by is not None
    assert with_why.decided_by.matched_prefix == ("mkdir", "asked")
    assert judged("rm -rf x").reason is None


@pytest.mark.requirement("approvals.decide.strictest")
def test_the_strictest_of_all_segments_counts() -> None:
    assert judged("touch a && ln -s a b").ruling is PROMPT
    assert judged("touch a; ln -s a b | hostname").ruling is FORBIDDEN
    both = RuleSet([rule("git", ruling=PROMPT), rule("git", "status")])
    assert judged("git status", rules=both).ruling is PROMPT


@pytest.mark.parametrize(
    "script",
    [
        "(hostname)",
        "hostname $X",
        "hostname > /dev/null",
        "echo $(hostname)",
        "for i in 1; do hostname; done",
        "command hostname",
        "'host'name",
        "bash -c 'bash -c hostname'",
    ],
)
@pytest.mark.requirement("approvals.decide.literals")
def test_what_is_seen_anywhere_counts_against_a_command(script: str) -> None:
    assert judged(script).ruling is FORBIDDEN
    assert judged(script.replace("hostname", "ln").replace("'host'name", "l'n'")).ruling is PROMPT


@pytest.mark.requirement("approvals.decide.literals")
def test_what_is_only_seen_never_allows() -> None:
    found = judged("(touch x)", UNTRUSTED)
    assert (found.ruling, found.cause) == (PROMPT, Cause.UNTRUSTED)
    assert not judged("(cp a b)", codex=True).outside_sandbox


@pytest.mark.requirement("approvals.decide.sandbox")
def test_no_question_and_no_sandbox_are_two_things() -> None:
    assert not judged("touch x").outside_sandbox
    assert judged("touch x", codex=True).outside_sandbox
    assert judged("cp a b").outside_sandbox
    several = judged("cp a b && cp c d")
    assert not several.outside_sandbox
    assert several.notes == ("it stays in its sandbox: only a single command can leave it",)
    assert judged("cp a b && cp c d", codex=True).outside_sandbox
    assert not judged("cp a b && touch x").outside_sandbox
    assert judged("cp a b && touch x", codex=True).outside_sandbox
    assert not judged("cp a b && true", codex=True).outside_sandbox
    assert not judged("cp a b > log", codex=True).outside_sandbox


@pytest.mark.requirement("approvals.decide.sandbox")
def test_a_rule_without_sandbox_none_does_not_answer_an_escalation() -> None:
    found = judged("touch x", permissions="require_escalated")
    assert (found.ruling, found.cause) == (PROMPT, Cause.ESCALATION)
    assert found.amendment == ("touch", "x")
    assert judged("touch x", permissions="require_escalated", codex=True).ruling is ALLOW
    assert judged("cp a b", permissions="require_escalated").ruling is ALLOW


@pytest.mark.requirement("approvals.decide.unseen")
@pytest.mark.parametrize(
    "script",
    ["echo ${ a; }", "(" * 5_000 + "ls" + ")" * 5_000, "echo $(a) " * (1 << 17), "echo a\0b"],
    ids=["doubtful", "nested", "large", "NUL"],
)
def test_what_cannot_be_looked_through_is_asked_about(script: str) -> None:
    found = judged(script)
    assert found.ruling is PROMPT
    assert found.cause in (Cause.UNSEEN, Cause.DANGEROUS)
    assert found.amendment is None
    assert judged(script, NEVER).ruling is FORBIDDEN
    allowed = RuleSet([rule("echo", outside=True), rule("/bin/bash", outside=True)])
    assert judged(script, rules=allowed).ruling is PROMPT


@pytest.mark.requirement("approvals.decide.syntax")
def test_a_script_that_cannot_be_parsed_is_refused_with_its_error() -> None:
    allowed = RuleSet([rule("echo", outside=True), rule("/bin/bash", outside=True)])
    for found in (
        judged("echo a; echo )"),
        judged("echo a; echo )", NEVER),
        judged("echo a; echo )", rules=allowed),
        judged("echo a; echo )", permissions="require_escalated"),
    ):
        assert (found.ruling, found.cause) == (FORBIDDEN, Cause.SYNTAX)
        assert found.reason == (
            "`/bin/bash -c 'echo a; echo )'` rejected: the script cannot be parsed:"
            " line 1, column 14: `)` closes nothing"
        )
    # A prohibition counts for more: the script would stay forbidden once it is corrected.
    assert judged("hostname; echo )").cause is Cause.RULE


def test_as_in_codex_a_script_with_a_syntax_error_runs() -> None:
    assert judged("echo 'abc", codex=True).ruling is ALLOW
    assert judged("echo 'abc", NEVER, codex=True).ruling is ALLOW
    # What is seen in it still counts.
    assert judged("rm -f x\necho 'abc", NEVER, codex=True).ruling is FORBIDDEN


@pytest.mark.requirement("approvals.decide.broken")
def test_a_broken_rules_file_asks_and_is_named() -> None:
    broken = RULES.joined(RuleSet(broken=[BrokenFile(path="/r/x.rules", error="error: no")]))
    for script in ("ls", "touch x", "cp a b"):
        found = judged(script, rules=broken)
        assert (found.ruling, found.cause) == (PROMPT, Cause.BROKEN)
        assert "/r/x.rules: no" in str(found.reason)
        assert not found.outside_sandbox
        refused = judged(script, NEVER, rules=broken)
        assert refused.ruling is FORBIDDEN
        assert "/r/x.rules: no" in str(refused.reason)
    assert "/r/x.rules" in str(judged("ln -s a b", rules=broken).reason)
    assert judged("hostname", rules=broken).reason == (
        "`/bin/bash -c hostname` rejected: the name is private"
    )
    assert judged("ls", NO_RULE_QUESTIONS, rules=broken).ruling is FORBIDDEN


@pytest.mark.parametrize(
    ("script", "prefix", "proposed"),
    [
        ("make x", None, ("make", "x")),
        ("make x && rm y", None, ("make", "x")),
        ("make x > log", None, ("/bin/bash", "-c", "make x > log")),
        ("make x", ["make"], ("make",)),
        ("make x", [], ("make", "x")),
        ("make x", ["cargo"], ("make", "x")),
        ("make x && ls", ["make"], ("make", "x")),
        ("cp a b && make x", ["make"], ("make", "x")),
        ("ln -s a b", ["ln"], None),
        ("(rm -f x)", None, None),
    ],
)
@pytest.mark.requirement("approvals.decide.amendment")
def test_what_a_question_proposes(
    script: str, prefix: list[str] | None, proposed: tuple[str, ...] | None
) -> None:
    found = judged(script, permissions="require_escalated", prefix=prefix)
    assert found.amendment == proposed


@pytest.mark.requirement("approvals.decide.amendment")
def test_what_the_question_after_a_denial_proposes() -> None:
    assert judged("make x").retry_amendment == ("make", "x")
    assert judged("touch x && true").retry_amendment is None
    assert judged("make > x").retry_amendment == ("/bin/bash", "-c", "make > x")
    # `env` for good and without a sandbox would be everything.
    assert judged("env | mkdir /x").retry_amendment is None


@pytest.mark.requirement("approvals.decide.strictest")
def test_more_rules_never_make_a_decision_looser() -> None:
    """Of all sets of some rules, a larger one is at least as strict about forbidden and prompt."""
    pool = [rule("git", ruling=PROMPT), rule("git", "push", ruling=FORBIDDEN), rule("git")]
    scripts = ["git push", "git status", "(git push)", "git pull && git push", "echo $(git push)"]
    for script, size in itertools.product(scripts, range(3)):
        for chosen in itertools.combinations(pool, size):
            for added in pool[:2]:
                before = judged(script, UNTRUSTED, rules=RuleSet(chosen)).ruling
                after = judged(script, UNTRUSTED, rules=RuleSet([*chosen, added])).ruling
                # A prompt rule never loosens; under `untrusted` nothing is looser than prompt
                # but for an allow rule.
                assert after >= before


@pytest.mark.requirement("approvals.decide.sandbox")
def test_a_program_of_the_same_name_does_not_leave_the_sandbox() -> None:
    rules = RuleSet([rule("cp", outside=True), rule("/opt/mv", outside=True)])
    assert judged("cp a b", rules=rules).outside_sandbox
    assert judged("/opt/mv a b", rules=rules).outside_sandbox
    other = judged("/ws/cp a b", rules=rules)
    assert (other.ruling, other.outside_sandbox) == (ALLOW, False)
    up = judged("/ws/cp a b", rules=rules, permissions="require_escalated")
    assert (up.ruling, up.cause) == (PROMPT, Cause.ESCALATION)
    assert judged("/ws/cp a b", rules=rules, codex=True).outside_sandbox
    listed = RuleSet(rules.prefix_rules, host_executables={"cp": ("/usr/bin/cp",)})
    assert judged("/usr/bin/cp a b", rules=listed).outside_sandbox
    assert not judged("/ws/cp a b", rules=listed).outside_sandbox


@pytest.mark.requirement("approvals.decide.literals")
@pytest.mark.parametrize(
    "script", ["/bin/git push", "(/bin/git push)", "/proc/self/root/bin/git push"]
)
def test_a_list_of_paths_is_no_way_around_a_prohibition(script: str) -> None:
    rules = RuleSet(
        [rule("git", "push", ruling=FORBIDDEN), rule("git")],
        host_executables={"git": ("/usr/bin/git",)},
    )
    assert judged(script, rules=rules).ruling is FORBIDDEN
    # To allow, only the listed paths count.
    assert judged("/bin/git log", UNTRUSTED, rules=rules).ruling is PROMPT
    assert judged("/usr/bin/git log", UNTRUSTED, rules=rules).ruling is ALLOW


@pytest.mark.requirement("approvals.decide.fallback")
@pytest.mark.requirement("rules.host-executables")
@pytest.mark.parametrize(
    ("script", "ruling"),
    [
        ("/usr/bin/git push", HUMAN),
        ("//usr/bin/./git push", HUMAN),
        ("env /usr/bin/git push", HUMAN),
        ("/usr/bin/git clean", FORBIDDEN),
        ("/usr/bin/git status", ALLOW),
        ("/opt/git push", HUMAN),
    ],
)
def test_a_rule_about_a_path_is_no_way_around_a_prohibition(script: str, ruling: Ruling) -> None:
    rules = RuleSet(
        [
            rule("/usr/bin/git", outside=True),
            rule("git", "push", ruling=HUMAN),
            rule("git", "clean", ruling=FORBIDDEN),
        ]
    )
    assert judged(script, rules=rules).ruling is ruling


def test_a_rule_about_rm_is_the_answer_for_rm_only() -> None:
    rules = RuleSet([rule("rm"), rule("env"), rule("bash")])
    assert judged("rm -f x", rules=rules).ruling is ALLOW
    # Allowed is `env`, not what it hides.
    hidden = judged("env -u A sudo rm -f x", rules=rules)
    assert (hidden.ruling, hidden.cause) == (PROMPT, Cause.DANGEROUS)
