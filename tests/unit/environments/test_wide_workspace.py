"""Directories that no program takes for its workspace without being asked to."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from holdfast.environments.wide_workspace import wide_path, wide_workspace


@pytest.mark.requirement("mcp.wide-workspace")
def test_the_root_homes_and_what_is_above_them(tmp_path: Path) -> None:
    home = tmp_path / "homes" / "me"
    project = home / "project"
    project.mkdir(parents=True)
    environ = {"HOME": str(home)}
    assert wide_workspace("/", environ) == "the whole file system"
    assert wide_workspace(str(home), environ) == "a home directory"
    above = f"a directory above the home {home}"
    assert wide_workspace(str(home.parent), environ) == above
    assert wide_workspace(str(project), environ) is None
    assert wide_workspace(str(tmp_path / "homes2"), environ) is None
    # Behind a link, and with a home that is one.
    link = tmp_path / "link"
    link.symlink_to(home)
    assert wide_workspace(str(link), environ) == "a home directory"
    assert wide_workspace(str(home), {"HOME": f"{link}/"}) == "a home directory"


@pytest.mark.requirement("mcp.wide-workspace")
@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "/nonexistent"}, {"HOME": "."}])
def test_a_variable_does_not_hide_the_home_of_the_user(environ: dict[str, str]) -> None:
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert wide_workspace(home, environ) is not None
    assert wide_workspace("/", environ) is not None


@pytest.mark.requirement("mcp.wide-workspace")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount, and work in other homes")
def test_a_second_mount_and_the_home_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, mounted = tmp_path / "home", tmp_path / "mounted"
    (home / "sub").mkdir(parents=True)
    mounted.mkdir()
    subprocess.run(["mount", "--bind", home, mounted], check=True)
    try:
        assert wide_workspace(str(mounted), {"HOME": str(home)}) == "a home directory"
        assert wide_workspace(str(mounted / "sub"), {"HOME": str(home)}) is None
    finally:
        subprocess.run(["umount", mounted], check=True)
    os.chown(home, 12345, 12345)
    assert wide_workspace(str(home), {"HOME": "/root"}) is None
    entry = pwd.struct_passwd(("ann", "x", 12345, 12345, "", str(home), "/bin/sh"))
    known = pwd.getpwuid
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry if uid == 12345 else known(uid))
    assert wide_workspace(str(home), {"HOME": "/root"}) == "a home directory"


def test_paths_of_another_machine() -> None:
    assert wide_path("/", []) == "the whole file system"
    assert wide_path("/srv", ["/srv/me"]) == "a directory above the home /srv/me"
    assert wide_path("/home", []) == "the home directories of this machine"
    assert wide_path("/home/me", ["/home/me"]) == "a home directory"
    assert wide_path("/home/me2", ["/home/me"]) is None
