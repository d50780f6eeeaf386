"""Paths that the code of a process comes from."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
from holdfast.base.own_code import code_paths, note_program
from holdfast.engine.sandbox.policy.own_paths import own_paths

HERE = Path(holdfast.__file__).parent


@pytest.mark.requirement("security.own.code")
def test_the_installation_and_this_package_are_found() -> None:
    found = code_paths()
    assert str(HERE) in found.installed
    assert sys.executable in found.installed
    assert f"{sys.prefix}/lib" in found.installed
    assert {sys.prefix, sys.base_prefix} <= set(found.whole)
    assert os.path.dirname(os.__file__) in found.installed


@pytest.mark.requirement("security.own.code")
def test_other_entries_are_found_whether_they_exist_or_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "", "/no/such.zip", "below/"])
    found = code_paths().searched
    assert {str(tmp_path), "/no/such.zip", f"{tmp_path}/below"} <= set(found)


def test_directories_that_the_next_start_would_add_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    lines = ("# comment", "import os", "", "/no/such/src", "beside", "/second\\name ")
    (site / "a.pth").write_text("\n".join(lines))
    (site / "b.pth").write_bytes(b"\xff\n")
    (site / "c.pth").mkdir()
    (site / "d.txt").write_text("/never")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    found = set(code_paths().searched)
    assert {"/no/such/src", f"{site}/beside", "/second\\name"} <= found
    assert "/never" not in found
    # A package is installed while the server runs.
    (site / "e.pth").write_text("/later\n")
    os.utime(site, (1, 1))
    assert "/later" in code_paths().searched


def test_a_working_directory_that_is_gone_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert str(HERE) in code_paths().installed


@pytest.mark.requirement("security.own.code")
def test_modules_from_elsewhere_are_found_with_what_stands_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    single, package, strange = ModuleType("single"), ModuleType("package"), ModuleType("strange")
    single.__file__ = "/ws/single.py"
    # An editable installation, or parts of one package in several places.
    package.__path__ = ["/ws/src/package", "/ws/more/package"]
    strange.__path__ = 5  # type: ignore[assignment]
    for module in (single, package, strange):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "package.part", strange)
    found = code_paths()
    assert "/ws/single.py" in found.loaded
    assert {"/ws/src/package", "/ws/more/package"} <= set(found.whole)
    assert "/ws/__pycache__" in found.made


@pytest.mark.requirement("security.own.code")
@pytest.mark.parametrize("enabled", [True, False, None])
def test_packages_of_the_user_count_if_the_interpreter_reads_them(
    monkeypatch: pytest.MonkeyPatch, enabled: bool | None
) -> None:
    site = sys.modules["site"]
    monkeypatch.setattr(site, "ENABLE_USER_SITE", enabled)
    monkeypatch.setattr(site, "USER_SITE", "/home/me/.local/lib/python/site-packages")
    monkeypatch.setattr(sys, "pycache_prefix", "/home/me/compiled")
    made = set(code_paths().made)
    assert ("/home/me/.local/lib/python/site-packages" in made) is bool(enabled)
    assert "/home/me/compiled" in made


@pytest.mark.requirement("security.own.code")
def test_a_program_that_builds_sandboxes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.base.own_code._programs", ())
    note_program("/ws/bin/bwrap")
    note_program("/ws/bin/bwrap")
    assert code_paths().installed.count("/ws/bin/bwrap") == 1


def test_links_are_resolved_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setattr("holdfast.base.own_code._programs", (f"{tmp_path}/link/bwrap",))
    own = [one for one in own_paths({}).paths if one.path == f"{tmp_path}/real/bwrap"]
    assert [one.links for one in own] == [(f"{tmp_path}/link",)]
    # Nothing has changed, so that policies made with it can be used again.
    assert own_paths({}).paths is own_paths({}).paths
