"""`holdfast doctor` and `holdfast sandbox explain`, as they are typed."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.wire import HOLDFAST, LIMIT


def _holdfast(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HOLDFAST, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT,
        check=False,
        cwd=cwd,
        env=env,
    )


@pytest.mark.slow
def test_a_doctor_finds_a_machine_that_can_enforce_a_sandbox(tmp_path: Path) -> None:
    done = _holdfast("doctor", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = {line.split("  ")[0].strip(): line for line in done.stdout.splitlines()}
    for name in ("python", "bubblewrap", "user namespaces", "seccomp", "sandbox"):
        assert " ok " in found[name]
    assert found.keys() >= {"platform", "landlock", "cgroup", "ssh", "uvloop", "home"}


@pytest.mark.slow
def test_a_doctor_can_be_asked_by_a_program(tmp_path: Path) -> None:
    facts = json.loads(_holdfast("doctor", "--json", cwd=tmp_path).stdout)
    assert facts["sandbox"]["enforceable"] is True
    assert facts["sandbox"]["isolation"] in ("full", "withoutProc")
    assert {finding["standing"] for finding in facts["findings"]} <= {
        "ok",
        "warning",
        "missing",
        "failed",
    }


@pytest.mark.requirement("security.sandbox.explained")
@pytest.mark.slow
def test_a_profile_is_explained(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    profile = tmp_path / "ci.toml"
    profile.write_text(
        "[file_system]\nentries = [\n"
        '  { path = ":minimal", access = "read" },\n'
        '  { path = ":project_roots", access = "write" },\n'
        '  { path = ":project_roots/secret", access = "deny" },\n]\n'
    )
    done = _holdfast(
        *("sandbox", "explain", str(profile), "--cwd", "work"),
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_HOME": str(workspace / "settings")},
    )
    assert (done.returncode, done.stderr) == (0, "")
    facts = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["writable", str(workspace)] in facts
    assert ["hidden", f"{workspace}/secret"] in facts
    assert ["protected", f"{workspace}/.git"] in facts
    assert ["protected", f"{workspace}/settings"] in facts
    assert ["readable", "/usr"] in facts
    assert ["network", "none"] in facts
    assert ["enforced", "by"] in facts
    assert ["not", "stopped"] in facts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing"], "unknown sandbox profile `nothing`"),
        (["missing.toml"], "sandbox profile `missing.toml`: No such file"),
        (["read-only", "--cwd", "missing"], "cannot access missing: No such file"),
    ],
)
def test_a_profile_that_cannot_be_explained_is_one_line(
    arguments: list[str], text: str, tmp_path: Path
) -> None:
    done = _holdfast("sandbox", "explain", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"holdfast: {text}")
    assert done.stderr.count("\n") == 1
