"""Managed requirements: rules that only restrict, and errors that name their place."""

import os
from pathlib import Path

import pytest

from holdfast.agent.approvals.layers import load_rules
from holdfast.agent.approvals.requirements import load_requirements
from holdfast.agent.approvals.rules import Ruling
from holdfast.base.errors import InvalidConfig

RULE = "[rules]\nprefix_rules = [{%s}]\n"
GOOD = 'pattern = [{token = "a"}], decision = "prompt-user"'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "requirements.toml"


@pytest.mark.requirement("rules.requirements")
def test_rules_of_requirements(file: Path) -> None:
    file.write_text(
        "allowed_sandbox_modes = ['read-only']\n"
        "[rules]\nprefix_rules = [\n"
        "  {pattern = [{any_of = ['git', 'hg']}, {any_of = ['push', 'pull']}],"
        " decision = 'prompt-user', justification = 'why', canonical_matching = true},\n"
        "  {pattern = [{token = 'rm'}], decision = 'forbidden'},\n"
        "  {pattern = [{token = 'ls'}], decision = 'prompt'},\n]\n"
    )
    rules = load_requirements(file)
    (push,) = rules.match(["hg", "push", "x"])
    assert push.ruling is Ruling.PROMPT_USER
    assert push.rule.source == str(file)
    assert (push.justification, push.rule.canonical_matching) == ("why", True)
    assert not rules.match(["git", "log"])
    assert [rules.match([word])[0].ruling.word for word in ("rm", "ls")] == ["forbidden", "prompt"]


@pytest.mark.requirement("rules.requirements")
def test_no_file_and_no_table_are_no_rules(file: Path) -> None:
    assert load_requirements(file).prefix_rules == ()
    file.write_text("other = 1\n")
    assert load_requirements(file).prefix_rules == ()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("rules = 3", "$.rules"),
        ("[rules]", "prefix_rules"),
        ("[rules]\nprefix_rules = []", "rules.prefix_rules is empty"),
        (RULE % GOOD.replace("prompt-user", "allow"), "prefix_rules[0]: the decision is `allow`"),
        (RULE % GOOD.replace("prompt-user", "prompt_user"), "prefix_rules[0].decision"),
        (RULE % 'pattern = [{token = "a"}]', "decision"),
        (RULE % 'pattern = [], decision = "prompt"', "prefix_rules[0]: the pattern is empty"),
        (RULE % 'pattern = ["a"], decision = "prompt"', "prefix_rules[0].pattern[0]"),
        (RULE % GOOD.replace('"a"', '""'), "prefix_rules[0].pattern[0]: a word is empty"),
        (RULE % GOOD.replace('token = "a"', "any_of = []"), "pattern[0]: a word is empty"),
        (RULE % GOOD.replace('token = "a"', ""), "pattern[0]: it needs either"),
        (RULE % GOOD.replace("}]", ', any_of = ["b"]}]'), "pattern[0]: it needs either"),
        (RULE % (GOOD + ', justification = " "'), "prefix_rules[0]: the justification is empty"),
        (RULE % (GOOD + ', canonical_matching = "x"'), "prefix_rules[0].canonical_matching"),
        (RULE % (GOOD + ", other = 1"), "other"),
        ("[rules", "Expected"),
        ("a = " + "[" * 5_000, "recursion"),
    ],
)
@pytest.mark.requirement("rules.requirements")
def test_requirements_that_cannot_be_used(file: Path, text: str, wrong: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidConfig) as refused:
        load_rules(requirements=file)
    assert str(refused.value).startswith(f"{file}: ")
    assert wrong in str(refused.value)


@pytest.mark.requirement("rules.requirements")
def test_requirements_that_cannot_be_read(file: Path) -> None:
    file.symlink_to("missing")
    with pytest.raises(InvalidConfig, match="No such file"):
        load_rules(requirements=file)
    file.unlink()
    # A FIFO would hold the reader for ever.
    os.mkfifo(file)
    with pytest.raises(InvalidConfig, match="not a regular file"):
        load_rules(requirements=file)
    with pytest.raises(InvalidConfig, match="Not a directory"):
        load_rules(requirements=file / "below")


@pytest.mark.requirement("rules.requirements")
def test_only_requirements_can_demand_a_person(tmp_path: Path, file: Path) -> None:
    written = tmp_path / "a.rules"
    written.write_text('prefix_rule(["a"], decision="prompt-user")\n')
    (broken,) = load_rules(explicit=[written]).broken
    assert "invalid decision: prompt-user" in broken.error
    written.write_text('prefix_rule(["a"])\n')
    file.write_text(RULE % GOOD)
    rules = load_rules(explicit=[written], requirements=file)
    assert [match.ruling.word for match in rules.match(["a"])] == ["allow", "prompt-user"]
