"""Choice of a bubblewrap: real files, and scripts that stand for other versions."""

import os
from pathlib import Path

import pytest

from holdfast.engine.sandbox.bubblewrap import binary as module
from holdfast.engine.sandbox.bubblewrap.binary import NEEDED, Launcher, find_launcher


@pytest.fixture
def only_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without one at its usual path."""
    monkeypatch.setattr(module, "_FIXED_PATHS", ())


def script(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake(folder: Path, version: str = "9.9", options: frozenset[str] = NEEDED) -> Path:
    return script(
        folder,
        f'[ "$1" = --help ] && echo "{" ".join(sorted(options))}" || echo bubblewrap {version}',
    )


@pytest.mark.requirement("security.launcher.found")
def test_one_that_comes_after_the_start_of_a_server_does_not_count(
    tmp_path: Path, only_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/early:{tmp_path}/late")
    monkeypatch.setattr(module, "_noted", None)
    module.note_launchers()
    fake(tmp_path / "late")

    assert find_launcher() == (
        "bubblewrap was not installed when the server started: install version 0.5 or newer"
    )

    fake(tmp_path / "early", version="9.8")
    module.note_launchers()  # as the next server does
    found = find_launcher()
    assert isinstance(found, Launcher)


def test_the_one_of_this_machine_is_found() -> None:
    found = find_launcher({"PATH": "/usr/bin:/bin"})

    assert isinstance(found, Launcher)
    assert found.options >= NEEDED
    assert found.version[0].isdigit()


def test_it_is_found_without_a_path() -> None:
    assert isinstance(find_launcher({}), Launcher)


@pytest.mark.usefixtures("only_path")
def test_without_any_the_reason_is_told() -> None:
    assert find_launcher({"PATH": "/nonexistent"}) == (
        "bubblewrap is not installed: install version 0.5 or newer"
    )


@pytest.mark.usefixtures("only_path")
def test_a_relative_folder_is_not_looked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path)
    monkeypatch.chdir(tmp_path)

    assert isinstance(find_launcher({"PATH": ".:"}), str)


@pytest.mark.requirement("security.sandbox.levels")
@pytest.mark.usefixtures("only_path")
def test_one_that_is_too_old_is_not_used(tmp_path: Path) -> None:
    path = fake(tmp_path, version="0.3.1", options=NEEDED - {"--perms"})

    assert find_launcher({"PATH": str(tmp_path)}) == (
        f"{path} 0.3.1 is too old: install 0.5 or newer (it lacks --perms)"
    )


@pytest.mark.requirement("security.launcher.found")
@pytest.mark.usefixtures("only_path")
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_one_that_others_could_replace_is_not_used(tmp_path: Path, mode: int) -> None:
    fake(tmp_path / "bin")
    (tmp_path / "bin").chmod(mode)

    found = find_launcher({"PATH": str(tmp_path / "bin")})

    assert isinstance(found, str)
    assert f"others may write to {tmp_path / 'bin'}" in found


@pytest.mark.requirement("security.launcher.found")
@pytest.mark.usefixtures("only_path")
def test_one_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path)
    status = os.stat(tmp_path / "bwrap")
    # As if this process were somebody else's, and root had nothing to do with the file.
    monkeypatch.setattr(os, "geteuid", lambda: status.st_uid + 1)
    if status.st_uid == 0:
        monkeypatch.setattr(module, "_ROOT", 12345)

    found = find_launcher({"PATH": str(tmp_path)})

    assert isinstance(found, str)
    assert "belongs to another user" in found


@pytest.mark.usefixtures("only_path")
def test_a_good_one_is_taken_after_a_bad_one(tmp_path: Path) -> None:
    fake(tmp_path / "old", options=frozenset())
    good = fake(tmp_path / "new")

    found = find_launcher({"PATH": f"{tmp_path / 'old'}:{tmp_path / 'new'}"})

    assert isinstance(found, Launcher)
    assert found.path == str(good)


@pytest.mark.usefixtures("only_path")
def test_one_that_cannot_be_run_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "bwrap"
    path.write_text("#!/nonexistent/interpreter\n")
    path.chmod(0o755)

    found = find_launcher({"PATH": str(tmp_path)})

    assert isinstance(found, str)
    assert "cannot be run" in found


@pytest.mark.usefixtures("only_path")
def test_one_that_prints_no_help_is_not_taken_for_an_old_one(tmp_path: Path) -> None:
    path = script(tmp_path, "echo 'bwrap: no /proc'; exit 1")

    assert find_launcher({"PATH": str(tmp_path)}) == f"{path} cannot be run: bwrap: no /proc"
