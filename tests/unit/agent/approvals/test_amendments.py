"""Amendments: the proposed prefix, the prefix of an answer, and the file they are kept in."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.approvals import amendments
from holdfast.agent.approvals.amendments import (
    amendment_rule,
    answered_prefix,
    is_banned,
    rule_line,
    store_rule,
)
from holdfast.agent.approvals.decide import decide
from holdfast.agent.approvals.layers import load_rules
from holdfast.agent.approvals.policies import ON_REQUEST
from holdfast.agent.approvals.rules import PrefixRule, RuleSet, Ruling
from holdfast.agent.approvals.split import split_command
from holdfast.base.errors import InvalidParams, OperationFailed


def propose(
    script: str, requested: str | None = None, rules: RuleSet | None = None, codex: bool = False
) -> str:
    """Return what the question about an escalated command proposes."""
    argv = ("/bin/bash", "-c", script)
    found = decide(
        argv,
        split=split_command(argv),
        policy=ON_REQUEST,
        rules=rules or RuleSet(),
        restricted=True,
        permissions="require_escalated",
        prefix_rule=None if requested is None else requested.split(),
        rules_leave_sandbox=codex,
        acceptable=lambda prefix: not is_banned(prefix),
    )
    return "none" if found.amendment is None else " ".join(found.amendment)


def known(*words: str, ruling: Ruling = Ruling.ALLOW) -> RuleSet:
    return RuleSet([PrefixRule(pattern=tuple((word,) for word in words), ruling=ruling)])


@pytest.mark.requirement("rules.amendments.proposed")
def test_the_prefix_of_the_model_is_proposed_if_it_allows_all_segments() -> None:
    assert propose("cargo test -q", requested="cargo test") == "cargo test"
    assert propose("cargo a; cargo b", requested="cargo") == "cargo"
    assert propose("cargo test && make", requested="cargo") == "cargo test"
    assert propose("cargo test", requested="make") == "cargo test"
    assert propose("cargo test", requested="") == "cargo test"


@pytest.mark.requirement("rules.amendments.proposed")
def test_the_first_segment_that_needs_asking_is_proposed() -> None:
    assert propose("touch a b && make") == "touch a b"
    assert propose("make > y") == "/bin/bash -c make > y"
    assert propose("cargo a && make", rules=known("cargo"), codex=True) == "make"


@pytest.mark.requirement("rules.amendments.proposed")
def test_nothing_is_proposed_where_a_stricter_rule_matched() -> None:
    for ruling in (Ruling.PROMPT, Ruling.FORBIDDEN):
        rules = known("cargo", ruling=ruling)
        assert propose("cargo test", rules=rules) == "none"
        assert propose("make && cargo test", requested="make", rules=rules) == "none"


@pytest.mark.requirement("rules.amendments.proposed")
def test_the_prefix_of_the_model_is_dropped_where_a_rule_matched_already() -> None:
    rules = known("cargo")
    assert propose("cargo a && make x", requested="make", rules=rules, codex=True) == "make x"


@pytest.mark.requirement("rules.amendments.banned")
@pytest.mark.parametrize(
    "prefix",
    [
        *("bash", "bash -lc", "/bin/sh -c", "fish -c", "pwsh -Command", "cmd /c"),
        *("python3 -c", "node -e", "osascript -e", "Rscript"),
        *("env", "git", "rm", "sudo", "npm run", "bun run"),
        *("/usr/bin/bash -c", "/usr/local/bin/python3 -c", "./git", "/usr/bin/env"),
        *("pypy3", "pythonw", "pyw", "py -3", "pwsh -File", "pwsh -EncodedCommand"),
    ],
)
def test_a_banned_prefix_is_dropped(prefix: str) -> None:
    assert is_banned(prefix.split())
    assert propose(f"{prefix} x y", requested=prefix) == f"{prefix} x y"
    assert propose(prefix) == "none"


@pytest.mark.requirement("rules.amendments.banned")
@pytest.mark.parametrize("prefix", ["git status", "npm test", "python3 x.py", "rm x", "sudo ls"])
def test_a_longer_prefix_is_not_banned(prefix: str) -> None:
    assert not is_banned(prefix.split())


@pytest.mark.requirement("rules.amendments.stored")
def test_an_answer_may_be_what_was_proposed_or_narrower() -> None:
    assert answered_prefix(["touch", "a"], ["touch", "a"]) == ("touch", "a")
    assert answered_prefix(["touch"], ["touch", "a"]) == ("touch", "a")
    for answer in (["touch"], ["touch", "b"], ["rm", "a"], []):
        with pytest.raises(InvalidParams, match="prefix"):
            answered_prefix(["touch", "a"], answer)
    with pytest.raises(InvalidParams, match="no rule was proposed"):
        answered_prefix(None, ["touch"])
    assert answered_prefix(["touch", "a"], ["touch"], broader=True) == ("touch",)
    assert answered_prefix(None, ["touch"], broader=True) == ("touch",)
    with pytest.raises(InvalidParams):
        answered_prefix(None, [], broader=True)


@pytest.mark.requirement("rules.amendments.stored")
def test_a_stored_rule_is_read_again_whatever_its_words_are(tmp_path: Path) -> None:
    prefix = ["a b", 'it\'s "x"', "\\", "é😀", "\n\t\b\f\x01\x7f", "", "{x}", "$y", "\u2028"]
    assert store_rule(tmp_path, prefix)
    assert store_rule(tmp_path, ["touch"], outside_sandbox=True)
    rules = load_rules(home=tmp_path)
    assert rules.broken == ()
    source = str(tmp_path / "rules" / "default.rules")
    assert rules.prefix_rules == (
        amendment_rule(prefix, source=source),
        amendment_rule(["touch"], outside_sandbox=True, source=source),
    )
    assert rule_line(["a", "b"]) == 'prefix_rule(pattern=["a", "b"], decision="allow")'


@pytest.mark.requirement("rules.amendments.stored")
def test_a_rule_is_stored_once_and_behind_a_line_without_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rules" / "default.rules"
    path.parent.mkdir()
    path.write_text("# mine")
    assert store_rule(tmp_path, ["a"])
    assert not store_rule(tmp_path, ["a"])
    assert path.read_text() == f"# mine\n{rule_line(['a'])}\n"


@pytest.mark.parametrize("prefix", [[], ["a\0b"], ["\udc80"]])
def test_words_that_no_file_can_hold_are_refused(tmp_path: Path, prefix: list[str]) -> None:
    with pytest.raises(InvalidParams, match="cannot be made"):
        store_rule(tmp_path, prefix)
    with pytest.raises(InvalidParams, match="cannot be made"):
        answered_prefix(prefix, prefix)
    assert not (tmp_path / "rules").exists()


@pytest.mark.parametrize("kind", ["link", "directory", "fifo", "no directory"])
def test_what_is_no_file_is_not_written_to(tmp_path: Path, kind: str) -> None:
    rules = tmp_path / "rules"
    path = rules / "default.rules"
    if kind == "no directory":
        rules.write_text("")
    else:
        rules.mkdir()
    if kind == "link":
        path.symlink_to(tmp_path / "other")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(OperationFailed, match=r"cannot store a rule in .*default\.rules") as caught:
        store_rule(tmp_path, ["a"])
    assert caught.value.path == str(path)
    assert not (tmp_path / "other").exists()


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_rule(tmp_path, ["a"])
    path = tmp_path / "rules" / "default.rules"
    before = path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:9]))
    with pytest.raises(OperationFailed, match="No space left"):
        store_rule(tmp_path, ["b"])
    monkeypatch.undo()
    assert path.read_bytes() == before
    monkeypatch.setattr(amendments, "MAX_FILE_BYTES", len(before))
    with pytest.raises(OperationFailed, match="larger"):
        store_rule(tmp_path, ["b"])


def test_a_lock_that_is_never_released_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amendments, "_LOCK_SECONDS", 0.0)
    store_rule(tmp_path, ["a"])
    with (tmp_path / "rules" / "default.rules").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OperationFailed, match="locked by another program"):
            store_rule(tmp_path, ["b"])
    assert store_rule(tmp_path, ["b"])


@pytest.mark.slow
@pytest.mark.requirement("rules.amendments.stored")
def test_two_writers_at_once_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from holdfast.agent.approvals.amendments import store_rule\n"
        "input()\n"
        "for i in range(40): store_rule(Path(sys.argv[1]), ['x', str(i)])\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        assert writer.wait(20) == 0
        assert writer.stdin is not None
        writer.stdin.close()
    lines = (tmp_path / "rules" / "default.rules").read_text().splitlines()
    assert sorted(lines) == sorted(rule_line(["x", str(i)]) for i in range(40))
