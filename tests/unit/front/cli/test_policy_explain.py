"""`holdfast policy explain`."""

import json
from pathlib import Path

import pytest

from holdfast.front.cli.__main__ import main


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    file = tmp_path / "a.rules"
    file.write_text(
        "prefix_rule(['hostname'], 'forbidden', justification='private')\n"
        "prefix_rule(['touch'])\n"
        "prefix_rule(['cp'], sandbox='none')\n"
    )
    return file


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["policy", "explain", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.requirement("approvals.explain")
def test_segments_rules_sandbox_and_ground(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, "-r", str(rules), "touch x && (hostname)")
    assert text.splitlines() == [
        "command:       /bin/bash -c 'touch x && (hostname)'",
        "decision:      forbidden",
        f"because:       rule forbidden `hostname` in {rules}: private",
        "sandbox:       none: it does not run",
        "refusal:       `/bin/bash -c 'touch x && (hostname)'` rejected: private",
        "segment:       allow: /bin/bash -c 'touch x && (hostname)' (no rule is about it)",
        f"seen in it:    forbidden: hostname (rule forbidden `hostname` in {rules}: private)",
    ]
    text = explained(capsys, "-r", str(rules), "--escalated", "--", "make", "all")
    assert "because:       it asks for more than its sandbox gives" in text
    assert "sandbox:       none: the approver may let it out" in text
    assert "proposed rule: make all" in text


@pytest.mark.requirement("approvals.explain")
def test_the_same_as_json(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(explained(capsys, "-r", str(rules), "--json", "cp a b"))
    assert found["decision"] == "allow"
    assert found["outsideSandbox"] is True
    assert found["sandbox"] == "none: rules may let it out"
    assert found["segments"][0]["words"] == ["cp", "a", "b"]
    options = ["-r", str(rules), "--json", "--policy", "untrusted", "--sandbox", "disabled"]
    found = json.loads(explained(capsys, *options, "ls"))
    assert (found["decision"], found["cause"]) == ("prompt", "untrusted")
    assert found["sandbox"] == "none is configured"


@pytest.mark.requirement("approvals.explain")
def test_nothing_in_rules_or_commands_changes_what_is_shown(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules.write_text(
        "prefix_rule(['rm'], 'forbidden', justification='no\\u001b[2J\\ndecision:      allow')\n"
    )
    text = explained(capsys, "-r", str(rules), "rm \x1b[8m\u202e")
    assert "decision:      forbidden" in text.splitlines()
    # A line of a text is never the first on its own.
    assert "decision:      allow" not in text.splitlines()
    assert not {"\x1b", "\u202e"} & set(text)
    rules.write_text("prefix_rule(\x1b[2J)\n")
    assert main(["policy", "check", "-r", str(rules), "--", "ls"]) == 1
    shown = capsys.readouterr().err
    assert "\\x1b[2J" in shown
    assert "\x1b" not in shown


def test_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["policy", "explain", "--json"])
    assert "the command to explain is missing" in capsys.readouterr().err


@pytest.mark.requirement("rules.real-program")
def test_why_a_command_stays_in_its_sandbox(
    rules: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "none: rules may let it out" in explained(capsys, "-r", str(rules), "cp a b")
    program = rules.parent / "cp"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    text = explained(capsys, "-r", str(rules), "cp a b")
    assert "sandbox:       the configured one" in text
    why = f"commands in the sandbox can write {program}"
    assert f"note:          it stays in its sandbox: {why}" in text
    assert "none: rules may let" in explained(
        capsys, "-r", str(rules), "--rules-leave-sandbox", "cp a b"
    )
    assert "decision:      prompt" in explained(capsys, "-r", str(rules), "--escalated", "cp a b")
