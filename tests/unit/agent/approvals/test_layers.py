"""Layers of rules files: their order, what a project may say, and broken files."""

from pathlib import Path

import pytest

from holdfast.agent.approvals import layers
from holdfast.agent.approvals.layers import find_rules_files, load_rules
from holdfast.agent.approvals.rules import PrefixRule, RuleSet, RulesLayer, Ruling


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "rules").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / ".holdfast" / "rules").mkdir(parents=True)
    return tmp_path / "project"


def rulings(rules: RuleSet, *words: str) -> list[str]:
    return [match.ruling.word for match in rules.match(words)]


@pytest.mark.requirement("rules.layers")
def test_layers_are_joined_in_their_order_and_files_by_name(
    home: Path, project: Path, tmp_path: Path
) -> None:
    (home / "rules" / "b.rules").write_text("prefix_rule(['git'])")
    (home / "rules" / "a.rules").write_text("prefix_rule(['git'], 'forbidden')")
    (home / "rules" / "c.txt").write_text("not a rule")
    (project / ".holdfast/rules/p.rules").write_text("prefix_rule(['git'], 'prompt')")
    explicit = tmp_path / "x.rules"
    explicit.write_text("prefix_rule(['git'], 'allow', justification='x')")
    built_in = RuleSet([PrefixRule(pattern=(("git",),), ruling=Ruling.PROMPT)])
    rules = load_rules(home=home, project=project, explicit=[explicit], built_in=built_in)
    assert rulings(rules, "git") == ["prompt", "forbidden", "allow", "prompt", "allow"]
    assert rules.broken == ()
    files = find_rules_files(home=home, project=project, explicit=[explicit])
    assert [Path(file.path).name for file in files] == ["a.rules", "b.rules", "p.rules", "x.rules"]
    assert [file.layer for file in files] == [
        RulesLayer.HOME,
        RulesLayer.HOME,
        RulesLayer.PROJECT,
        RulesLayer.EXPLICIT,
    ]
    assert rules.prefix_rules[1].source == str(home / "rules" / "a.rules")


@pytest.mark.requirement("rules.layers")
def test_a_broken_file_disables_itself_only_and_is_named(home: Path) -> None:
    (home / "rules" / "a.rules").write_text("prefix_rule(['git'], 'forbidden')")
    (home / "rules" / "b.rules").write_text("prefix_rule(['git'])\nprefix_rule([])")
    (home / "rules" / "d.rules").mkdir()
    rules = load_rules(home=home)
    assert rulings(rules, "git") == ["forbidden"]
    assert [broken.summary for broken in rules.broken] == [
        f"{home}/rules/b.rules: invalid pattern element: pattern cannot be empty",
        f"{home}/rules/d.rules: Is a directory (os error 21)",
    ]
    assert {broken.layer for broken in rules.broken} == {RulesLayer.HOME}


@pytest.mark.requirement("rules.layers", "security.sandbox.project-rules")
def test_a_project_can_only_restrict_unless_it_is_trusted(home: Path, project: Path) -> None:
    (home / "rules" / "a.rules").write_text("prefix_rule(['rm'], 'forbidden')")
    (project / ".holdfast/rules/p.rules").write_text(
        "prefix_rule(['git'], sandbox='none')\nprefix_rule(['git', 'push'], 'prompt')\n"
        "host_executable('rm', [])\n"
        "network_rule('a', 'http', 'allow')\nnetwork_rule('b', 'http', 'deny')"
    )
    rules = load_rules(home=home, project=project)
    assert rulings(rules, "git", "push") == ["prompt"]
    assert rulings(rules, "/bin/rm") == ["forbidden"]
    assert [rule.host for rule in rules.network_rules] == ["b"]
    trusted = load_rules(home=home, project=project, trust_project=True)
    assert rulings(trusted, "git", "push") == ["allow", "prompt"]
    assert rulings(trusted, "/bin/rm") == []


@pytest.mark.requirement("rules.layers")
def test_a_project_cannot_have_other_files_read(home: Path, project: Path) -> None:
    # What a command may not read itself, an error would quote.
    secret = home / "token"
    secret.write_text("mytoken\n")
    folder = project / ".holdfast/rules"
    (folder / "a.rules").symlink_to(secret)
    (folder / "b.rules").symlink_to("../b")
    (project / ".holdfast/b").write_text("prefix_rule(['rm'], 'forbidden')")
    rules = load_rules(project=project)
    assert [broken.summary for broken in rules.broken] == [
        f"{folder}/a.rules: it is a link out of the project"
    ]
    assert rulings(rules, "rm") == ["forbidden"]
    # All of them, if the directory itself is such a link.
    folder.rename(project / "rules")
    folder.symlink_to(home)
    (home / "token").rename(home / "c.rules")
    (broken,) = load_rules(project=project).broken
    assert broken.summary == f"{folder}/c.rules: it is a link out of the project"
    (trusted,) = load_rules(project=project, trust_project=True).broken
    assert "mytoken" in trusted.summary


def test_a_host_executable_of_a_higher_layer_replaces_the_one_below(
    home: Path, tmp_path: Path
) -> None:
    (home / "rules" / "a.rules").write_text("host_executable('git', ['/a/git'])")
    (tmp_path / "x.rules").write_text("host_executable('git', ['/b/git'])")
    rules = load_rules(home=home, explicit=[tmp_path / "x.rules"])
    assert rules.host_executables == {"git": ("/b/git",)}


def test_missing_directories_have_no_rules_and_others_are_named(tmp_path: Path) -> None:
    assert load_rules(home=tmp_path / "none", project=tmp_path / "none").broken == ()
    (tmp_path / "rules").write_text("")
    (broken,) = load_rules(home=tmp_path).broken
    assert broken.summary == f"{tmp_path}/rules: Not a directory (os error 20)"
    (missing,) = load_rules(explicit=[tmp_path / "no.rules"]).broken
    assert missing.summary == f"{tmp_path}/no.rules: No such file or directory (os error 2)"


def test_files_behind_the_limit_are_broken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MAX_FILES", 1)
    for name in "ab":
        (home / "rules" / f"{name}.rules").write_text("prefix_rule(['git'])")
    rules = load_rules(home=home)
    assert rulings(rules, "git") == ["allow"]
    assert [Path(broken.path).name for broken in rules.broken] == ["b.rules"]
