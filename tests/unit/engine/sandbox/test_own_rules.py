"""Code and settings of Holdfast in a policy: read-only, whatever the entries say."""

import os
from pathlib import Path

import pytest

from holdfast.base.errors import CannotEnforce
from holdfast.engine.sandbox.bubblewrap.bwrap_arguments import mounts
from holdfast.engine.sandbox.policy.build import PolicyInputs, resolve
from holdfast.engine.sandbox.policy.own_paths import OwnPath
from holdfast.engine.sandbox.policy.policy import Policy
from holdfast.engine.sandbox.profile.builtin import path_entry, special_entry
from holdfast.wire.protocol.sandbox import FileEntry
from tests.unit.engine.sandbox.trees import WS, FakeDisk, context

ROOT = special_entry("root", "read")
PROJECT = special_entry("project_roots", "write")
EVERYTHING = special_entry("root", "write")
VENV = f"{WS}/.venv"

FILES: dict[str, str | None] = {f"{VENV}/bin/python": "x", f"{VENV}/lib/a.py": "x"}


def policy(*entries: FileEntry, own: list[OwnPath], files: dict[str, str | None] = FILES) -> Policy:
    facts = PolicyInputs(cwd=WS, own=tuple(own), disk=FakeDisk({"/opt/x": "x", **files}))
    return resolve(context(*entries), facts)


def test_code_in_the_workspace_is_read_only_and_keeps_its_name() -> None:
    made = policy(ROOT, PROJECT, own=[OwnPath(VENV, "code"), OwnPath(f"{WS}/a/b", "settings")])
    assert made.access(f"{VENV}/lib/a.py") == "read"
    assert made.access(f"{WS}/other") == "write"
    assert made.keeps_name(VENV)
    assert made.own_reasons == {
        VENV: "the server runs from it",
        f"{WS}/a/b": "it has settings, state or logs of Holdfast",
    }


def test_no_entry_makes_it_writable() -> None:
    own = [OwnPath(VENV, "code")]
    for entry in (path_entry(VENV, "write"), path_entry(f"{VENV}/lib", "write")):
        made = policy(ROOT, PROJECT, entry, own=own)
        assert made.access(f"{VENV}/lib/a.py") == "read"
        assert made.access(f"{VENV}/bin/python") == "read"


@pytest.mark.requirement("security.own.workspace")
def test_a_workspace_in_an_installation_is_writable_outside_of_its_libraries() -> None:
    own = [OwnPath("/usr", "code", below="named"), OwnPath("/usr/lib", "code")]
    files: dict[str, str | None] = {"/usr/src/app/x": "x", "/usr/lib/app/x": "x"}
    entries = (path_entry("/usr/src/app", "write"), path_entry("/usr/lib/app", "write"))
    made = policy(ROOT, *entries, own=own, files=files)
    assert made.access("/usr/src/app/x") == "write"
    assert made.access("/usr/lib/app/x") == "read"


def test_a_directory_of_modules_stays_writable_if_it_is_the_workspace() -> None:
    scripts = OwnPath(WS, "code", below="named or itself")
    loaded = OwnPath(f"{WS}/agent.py", "code")
    made = policy(ROOT, PROJECT, own=[scripts, loaded], files={f"{WS}/agent.py": "x"})
    assert made.access(f"{WS}/other.py") == "write"
    assert made.access(f"{WS}/agent.py") == "read"
    below = policy(ROOT, PROJECT, own=[OwnPath(f"{WS}/src", "code", below="named or itself")])
    assert below.access(f"{WS}/src/a.py") == "read"


def test_what_no_entry_makes_writable_costs_neither_a_rule_nor_a_mount() -> None:
    own = [OwnPath("/opt", "code"), OwnPath("/home/me/.config/holdfast", "settings")]
    made = policy(ROOT, PROJECT, own=own)
    assert made.own_reasons == {}
    assert mounts(made).arguments == mounts(policy(ROOT, PROJECT, own=[])).arguments


def test_a_profile_without_restrictions_on_files_keeps_to_it_too() -> None:
    own = [OwnPath("/opt", "code"), OwnPath(f"{WS}/.config/holdfast", "settings")]
    made = policy(EVERYTHING, own=own, files={f"{WS}/.config/holdfast/x": "x"})
    assert made.full_write
    assert (made.access("/opt/x"), made.access("/etc")) == ("read", "write")
    assert made.access(f"{WS}/.config/holdfast/x") == "read"
    # By another name, a directory above would not be protected.
    assert made.keeps_name(f"{WS}/.config")
    words = [str(word) for word in mounts(made).arguments]
    assert words[words.index("/opt") - 1] == "--ro-bind"


@pytest.mark.requirement("security.own.links")
def test_the_directory_of_a_link_is_kept_too() -> None:
    link = OwnPath("/opt", "code", links=(f"{WS}/tools/link",))
    files: dict[str, str | None] = {f"{WS}/tools/link": "->/opt", f"{WS}/x": "x"}
    made = policy(ROOT, PROJECT, own=[link], files=files)
    assert made.access(f"{WS}/tools/link") == "read"
    assert made.access(f"{WS}/x") == "write"


@pytest.mark.requirement("security.own.links")
@pytest.mark.parametrize("why", ["code", "settings"])
def test_a_link_in_the_workspace_itself_is_refused(why: str) -> None:
    link = OwnPath("/opt", why, links=(VENV,))  # type: ignore[arg-type]  # one of two words
    with pytest.raises(CannotEnforce, match=rf"writable symlink {VENV}: .*/opt"):
        policy(ROOT, PROJECT, own=[link])


def test_a_link_that_the_user_cannot_replace_is_no_matter() -> None:
    disk = FakeDisk({WS: None, "/home": "->/opt", "/opt/me/x": "x"})
    disk.closed.add("/")
    own = (OwnPath("/opt/me", "settings", links=("/home",)),)
    made = resolve(context(EVERYTHING), PolicyInputs(cwd=WS, own=own, disk=disk))
    assert made.access("/opt/me") == "read"


@pytest.mark.requirement("security.own.settings")
def test_a_missing_directory_is_made_where_a_command_could_make_it(tmp_path: Path) -> None:
    ws, other = tmp_path / "ws", tmp_path / "other"
    ws.mkdir()
    own = tuple(
        OwnPath(f"{folder}/.config/holdfast", "settings", is_made=True) for folder in (ws, other)
    )
    profile = context(ROOT, path_entry(str(ws), "write"), roots=[str(ws)], cwd=str(ws))
    looked = resolve(profile, PolicyInputs(cwd=str(ws), own=own))
    assert looked.access(own[0].path) == "read"
    assert os.listdir(tmp_path) == ["ws"]
    assert os.listdir(ws) == []
    made = resolve(profile, PolicyInputs(cwd=str(ws), own=own, makes=True))
    assert made.rules[own[0].path].kind == "directory"
    assert os.stat(own[0].path).st_mode & 0o777 == 0o700
    assert not other.exists()


@pytest.mark.requirement("security.own.settings")
@pytest.mark.parametrize("there", ["gone/holdfast", "file/holdfast"])
def test_a_directory_that_cannot_be_made_is_kept_missing(tmp_path: Path, there: str) -> None:
    """A mount that is not there yet, for example: its mount point is not ours to make."""
    (tmp_path / "file").touch()
    path = str(tmp_path / there)
    own = (OwnPath(path, "settings", is_made=True),)
    profile = context(ROOT, path_entry(str(tmp_path), "write"), roots=[], cwd=str(tmp_path))
    made = resolve(profile, PolicyInputs(cwd=str(tmp_path), own=own, makes=True))
    assert not (tmp_path / "gone").exists()
    assert made.access(str(Path(path).parent)) == "read"
