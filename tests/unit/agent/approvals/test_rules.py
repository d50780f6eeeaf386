"""Rules, and the set that finds those that match."""

import pytest

from holdfast.agent.approvals.rules import (
    BrokenFile,
    PrefixRule,
    RuleSet,
    Ruling,
    strictest,
)


def rule(*words: str, ruling: Ruling = Ruling.ALLOW) -> PrefixRule:
    return PrefixRule(pattern=tuple(tuple(word.split("|")) for word in words), ruling=ruling)


def prefixes(rules: RuleSet, *words: str, cwd: str | None = None) -> list[str]:
    return [" ".join(match.matched_prefix) for match in rules.match(words, cwd=cwd)]


@pytest.mark.requirement("rules.match")
def test_all_rules_that_match_are_found_in_their_order_and_the_strictest_decides() -> None:
    rules = RuleSet(
        [
            rule("git", "status"),
            rule("git", ruling=Ruling.PROMPT),
            rule("ls"),
            rule("git", "status|log", "-v|-q", ruling=Ruling.FORBIDDEN),
            rule("git", "push"),
        ]
    )
    assert prefixes(rules, "git", "status", "-v", "x") == ["git status", "git", "git status -v"]
    assert strictest(rules.match(["git", "status", "-v"])) is Ruling.FORBIDDEN
    assert strictest(rules.match(["git", "status"])) is Ruling.PROMPT
    assert prefixes(rules, "git") == ["git"]
    assert strictest(rules.match(["cat"])) is None
    assert rules.match([]) == ()
    assert [ruling.word for ruling in Ruling] == ["allow", "prompt", "prompt-user", "forbidden"]


@pytest.mark.requirement("rules.host-executables")
@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("/usr/bin/git", "/usr/bin/git"),
        ("//usr//bin/./x/../git/", "/usr/bin/git"),
        ("/opt/git", None),
        ("./git", None),
        ("git", "exact"),
        ("/", None),
        ("", None),
    ],
)
def test_a_listed_path_is_looked_up_by_its_base_name(program: str, found: str | None) -> None:
    rules = RuleSet([rule("git")], host_executables={"git": ("/usr/bin/git",)})
    matches = rules.match([program, "x"], cwd="/work")
    if found is None:
        assert matches == ()
    else:
        assert [match.matched_prefix for match in matches] == [("git",)]
        assert matches[0].resolved_program == (None if found == "exact" else found)


@pytest.mark.requirement("rules.host-executables")
def test_an_exact_rule_hides_those_of_the_base_name() -> None:
    rules = RuleSet([rule("git"), rule("/usr/bin/git", "push", ruling=Ruling.FORBIDDEN)])
    assert prefixes(rules, "/usr/bin/git", "push") == ["/usr/bin/git push"]
    assert prefixes(rules, "/usr/bin/git", "log") == ["git"]
    assert rules.match(["/usr/bin/git", "log"], resolve_hosts=False) == ()


def test_relative_programs_are_looked_up_where_the_directory_is_known() -> None:
    rules = RuleSet([rule("git")])
    assert prefixes(rules, "./git") == []
    assert prefixes(rules, "./git", cwd="/work") == ["git"]
    assert rules.match(["~/git"]) == ()
    assert rules.match(["~/git"], home="/home/me")[0].resolved_program == "/home/me/git"


def test_a_set_with_one_more_rule_leaves_the_first_as_it_was() -> None:
    rules = RuleSet([rule("git")], broken=[BrokenFile(path="a.rules", error="x")])
    more = rules.with_rule(rule("ls"))
    assert prefixes(rules, "ls") == []
    assert prefixes(more, "ls") == ["ls"]
    assert more.broken == rules.broken
    assert more.with_rule(rule("ls")) is more
    joined = rules.joined(RuleSet([rule("ls")], host_executables={"ls": ()}))
    assert len(joined.prefix_rules) == 2
    assert joined.host_executables == {"ls": ()}


def test_the_summary_of_a_broken_file_is_the_line_that_says_what_is_wrong() -> None:
    traced = "starlark error: Traceback:\n  * a.rules:1\nerror: no good\n --> a.rules:1:1\n"
    assert BrokenFile(path="a.rules", error=traced).summary == "a.rules: no good"
    assert BrokenFile(path="a.rules", error="no such file").summary == "a.rules: no such file"
    parse = "starlark error: error: Parse error: x\n --> a.rules:1:1"
    assert BrokenFile(path="a.rules", error=parse).summary == "a.rules: Parse error: x"
