"""Findings of `holdfast doctor` on machines that lack something."""

import argparse
import importlib.metadata
import json
from pathlib import Path

import pytest

from holdfast.engine.process.limits.cgroup_discovery import CgroupLocation
from holdfast.engine.sandbox.bubblewrap.binary import Launcher
from holdfast.engine.sandbox.bubblewrap.support import BubblewrapSupport
from holdfast.engine.sandbox.enforcer import IsolationLevel
from holdfast.front.cli import doctor as doctor_module
from holdfast.front.cli import sandbox as sandbox_module
from holdfast.front.cli.doctor import Finding, Standing, doctor, findings
from holdfast.front.cli.sandbox import explain

BWRAP = Launcher("/usr/bin/bwrap", "0.8.0", frozenset())
FULL = BubblewrapSupport(
    isolation=IsolationLevel.FULL, launcher=BWRAP, landlock_abi=7, gaps=("a gap",)
)
NO_PROC = BubblewrapSupport(
    isolation=IsolationLevel.WITHOUT_PROC, launcher=BWRAP, problem="no /proc here"
)
NO_USERS = BubblewrapSupport(
    isolation=IsolationLevel.NONE, launcher=BWRAP, problem="bwrap: No; set the sysctl x to 1"
)
NO_LOCATION = CgroupLocation(problem="no cgroups", advice="get some")
NO_BWRAP = BubblewrapSupport(
    isolation=IsolationLevel.NONE, problem="bubblewrap is not installed: install it"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home in which `environments.toml` is looked for; the file is missing."""
    path = tmp_path / "home"
    monkeypatch.setenv("HOLDFAST_HOME", str(path))
    path.mkdir()
    return path


def by_name(support: BubblewrapSupport) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings(support, NO_LOCATION)}


@pytest.mark.requirement("security.doctor")
@pytest.mark.usefixtures("home")
def test_a_machine_with_full_isolation_is_fine_but_for_the_gaps() -> None:
    found = by_name(FULL)
    for name in ("bubblewrap", "user namespaces", "seccomp", "landlock", "sandbox"):
        assert found[name].standing == "ok"
    assert found["bubblewrap"].detail == "0.8.0, /usr/bin/bwrap"
    assert found["not stopped"].detail == "a gap"


@pytest.mark.requirement("security.doctor")
@pytest.mark.usefixtures("home")
def test_a_lower_rung_is_a_warning_with_its_reason() -> None:
    found = by_name(NO_PROC)
    assert found["sandbox"] == Finding("sandbox", "warning", "isolation withoutProc: no /proc here")
    assert found["landlock"].standing == "missing"


@pytest.mark.requirement("security.doctor")
@pytest.mark.usefixtures("home")
def test_what_to_change_is_said_where_nothing_can_be_enforced() -> None:
    found = by_name(NO_USERS)
    assert found["bubblewrap"].standing == "ok"
    assert found["user namespaces"].standing == "failed"
    assert "set the sysctl" in found["user namespaces"].detail
    assert found["sandbox"].standing == "failed"
    found = by_name(NO_BWRAP)
    assert found["bubblewrap"].standing == "failed"
    assert "bubblewrap is not installed" in found["bubblewrap"].detail


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("support", "status"), [(FULL, 0), (NO_PROC, 0), (NO_USERS, 1)])
@pytest.mark.parametrize("as_json", [True, False])
def test_the_status_says_whether_sandboxes_can_be_enforced(
    support: BubblewrapSupport,
    status: int,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor_module, "probe_support", lambda: support)
    assert doctor(argparse.Namespace(json=as_json)) == status
    shown = capsys.readouterr().out
    if as_json:
        assert json.loads(shown)["sandbox"]["enforceable"] is (status == 0)
    else:
        assert shown.startswith("CHECK")


def test_the_home_and_its_file_are_looked_at(home: Path) -> None:
    found = by_name(FULL)
    assert (found["home"].standing, found["environments.toml"].standing) == ("ok", "ok")
    file = home / "environments.toml"
    file.write_text('[[environments]]\nid = "a"\nurl = "ws://x"\n')
    assert by_name(FULL)["environments.toml"].standing == "ok"
    file.write_text("[")
    assert by_name(FULL)["environments.toml"].standing == "failed"
    file.unlink()
    home.rmdir()
    assert by_name(FULL)["home"].standing == "ok"


@pytest.mark.usefixtures("home")
def test_other_programs_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert by_name(FULL)["ssh"].standing == "missing"
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho OpenSSH_9 >&2\n")
    ssh.chmod(0o755)
    assert by_name(FULL)["ssh"].detail == f"OpenSSH_9, {ssh}"
    ssh.write_text("#!/no/such/shell\n")
    assert by_name(FULL)["ssh"].standing == "warning"


@pytest.mark.parametrize(("profile", "status"), [("read-only", 1), ("disabled", 0)])
def test_a_profile_that_cannot_be_enforced_is_explained_and_fails(
    profile: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sandbox_module, "probe_support", lambda: NO_USERS)
    options = argparse.Namespace(profile=profile, cwd=None, sandbox_write=None, json=False)
    assert explain(options) == status
    shown = capsys.readouterr().out
    assert ("set the sysctl" in shown) is (status == 1)
    options.json = True
    assert explain(options) == status
    facts = json.loads(capsys.readouterr().out)
    assert facts["enforceable"] is (status == 0)
    assert facts["rules"]


@pytest.mark.parametrize(
    ("location", "standing", "detail"),
    [
        (
            CgroupLocation(problem="it is not delegated", advice="delegate it"),
            "missing",
            "limits hold for each process separately: it is not delegated; delegate it",
        ),
        (
            CgroupLocation(folder="/cg", controllers=("memory", "pids")),
            "ok",
            "memory and processes can be limited for a whole command, in /cg",
        ),
        (
            CgroupLocation(
                folder="/cg", controllers=("pids",), problem="no memory", advice="add it"
            ),
            "warning",
            "processes can be limited for a whole command, in /cg; no memory; add it",
        ),
    ],
)
def test_a_doctor_says_which_limits_hold_for_a_whole_command(
    location: CgroupLocation, standing: Standing, detail: str
) -> None:
    assert doctor_module._cgroup(location) == Finding("cgroup", standing, detail)


@pytest.mark.usefixtures("home")
def test_a_faster_loop_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert by_name(FULL)["uvloop"].standing == "ok"


def test_another_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    found = doctor_module._platform()
    assert found.standing == "failed"
    assert "sandboxes need Linux on aarch64 or x86_64" in found.detail
