"""Content of a request, turned against the program that builds the sandbox."""

import glob

import pytest

from tests.breakout.inside import Blocked, Ground, append, may_write, run
from tests.breakout.table import attempt


@attempt(
    "workspace", "networked", blocked_by="it did nothing", env={"PATH": "{planted}:/usr/bin:/bin"}
)
@pytest.mark.requirement("security.launcher.data")
def plant_a_launcher_on_the_path(at: Ground) -> None:
    """It writes outside, whoever runs it; here, at least this attempt does."""
    run("bwrap", "--version")
    if not glob.glob(f"{at.outside}/planted"):
        raise Blocked("it did nothing")


@attempt(
    "workspace",
    "networked",
    "narrow",
    blocked_by="it wrote nothing",
    env={"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": "{outside}/trace"},
)
@pytest.mark.requirement("security.launcher.data")
def have_the_loader_of_the_launcher_write(at: Ground) -> None:
    """It does what variables say, and with others of them loads code, before there is a sandbox."""
    if not glob.glob(f"{at.outside}/trace*"):
        raise Blocked("it wrote nothing")


@attempt("temporary", blocked_by="EROFS|refused", env={"TMPDIR": "/"})
def choose_the_root_as_the_temporary_directory(at: Ground) -> None:
    append(at.file)


@attempt("temporary", blocked_by="EROFS|refused", env={"TMPDIR": "{base}"})
def choose_what_holds_the_workspace_as_the_temporary_directory(at: Ground) -> None:
    append(at.file)


@attempt("temporary", blocked_by="EROFS|refused", env={"TMPDIR": "{work}/sub/../.."})
def choose_the_temporary_directory_by_dots(at: Ground) -> None:
    append(at.file)


@attempt("temporary", blocked_by="EROFS|refused", env={"TMPDIR": "{extra}/up"})
def choose_the_temporary_directory_by_a_link(at: Ground) -> None:
    """It leads to what holds the workspaces."""
    append(at.file)


@attempt("temporary", blocked_by="EROFS|EACCES|refused", needs="root", env={"TMPDIR": "/usr"})
def choose_a_directory_of_the_system_as_the_temporary_one(at: Ground) -> None:
    del at
    may_write("/usr/bin/env")


@attempt("temporary", blocked_by="EROFS|refused", env={"TMPDIR": "{work}/.git/hooks"})
@pytest.mark.requirement("security.sandbox.tmpdir")
def choose_a_protected_directory_as_the_temporary_one(at: Ground) -> None:
    append(f"{at.work}/.git/hooks/sample")


@attempt("temporary", blocked_by="EROFS|refused", env={"TMPDIR": "{linked}/store"})
def choose_what_git_points_to_as_the_temporary_directory(at: Ground) -> None:
    append(f"{at.linked}/store/repo/config")


@attempt(
    "temporary",
    blocked_by="EROFS",
    env={"HOME": "{outside}", "PWD": "{outside}", "OLDPWD": "/", "TMP": "/", "TEMP": "/"},
)
@pytest.mark.requirement("security.sandbox.tmpdir")
def choose_where_home_is(at: Ground) -> None:
    append(at.file)
