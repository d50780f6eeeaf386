"""The names that stay read-only in every workspace, and what lies on the way to them."""

import os

import pytest

from tests.breakout.inside import AT_FDCWD, Ground, append, make, syscall
from tests.breakout.table import attempt


@attempt("workspace", "networked", "narrow", "guarded", blocked_by="EROFS")
def write_to_the_configuration_of_git(at: Ground) -> None:
    append(f"{at.work}/.git/config")


@attempt("workspace", blocked_by="EROFS")
def add_a_hook_of_git(at: Ground) -> None:
    make(f"{at.work}/.git/hooks/pre-commit")


@attempt("workspace", blocked_by="EBUSY EROFS")
@pytest.mark.requirement("security.sandbox.renames")
def move_git_away(at: Ground) -> None:
    os.rename(f"{at.work}/.git", f"{at.work}/old")
    os.mkdir(f"{at.work}/.git")


@attempt("workspace", blocked_by="EBUSY EROFS EXDEV")
def exchange_git_for_a_directory_of_mine(at: Ground) -> None:
    """`RENAME_EXCHANGE` takes a name and leaves none missing."""
    os.mkdir(f"{at.work}/mine")
    mine, git = os.fsencode(f"{at.work}/mine"), os.fsencode(f"{at.work}/.git")
    syscall("renameat2", AT_FDCWD, mine, AT_FDCWD, git, 2)


@attempt("workspace", blocked_by="EROFS EBUSY EEXIST")
def remove_what_is_in_git(at: Ground) -> None:
    os.unlink(f"{at.work}/.git/hooks/sample")


@attempt("workspace", "narrow", blocked_by="EEXIST EROFS")
def make_a_protected_directory_that_is_missing(at: Ground) -> None:
    os.mkdir(f"{at.work}/.codex")
    make(f"{at.work}/.codex/config.toml")


@attempt("workspace", blocked_by="EEXIST EROFS")
def make_the_directory_of_credentials(at: Ground) -> None:
    os.mkdir(f"{at.work}/.aws")


@attempt("workspace", blocked_by="EROFS ENOENT")
def write_below_a_protected_name_that_is_missing(at: Ground) -> None:
    os.makedirs(f"{at.work}/.agents/skills", exist_ok=True)


@attempt("workspace", blocked_by="EEXIST EROFS")
def make_a_link_of_a_protected_name(at: Ground) -> None:
    os.symlink(at.outside, f"{at.work}/.agents")


@attempt("workspace", blocked_by="EBUSY EROFS EEXIST ENOTEMPTY")
def move_a_directory_of_mine_to_a_protected_name(at: Ground) -> None:
    os.mkdir(f"{at.work}/mine")
    os.rename(f"{at.work}/mine", f"{at.work}/.codex")


@attempt("workspace", blocked_by="EBUSY EROFS EISDIR ENOTDIR EEXIST")
def move_a_file_of_mine_to_a_protected_name(at: Ground) -> None:
    os.rename(f"{at.work}/notes", f"{at.work}/.codex")


@attempt("workspace", blocked_by="EBUSY EROFS")
def remove_the_place_holder_of_a_protected_name(at: Ground) -> None:
    """Freely, the name is there because somebody made it."""
    if not os.path.exists(f"{at.work}/.codex"):
        os.mkdir(f"{at.work}/.codex")
    os.rmdir(f"{at.work}/.codex")


@attempt("workspace", blocked_by="EEXIST EROFS")
def make_git_in_another_workspace(at: Ground) -> None:
    os.mkdir(f"{at.extra}/.git")


@attempt("workspace", blocked_by="EROFS EBUSY")
def point_git_elsewhere(at: Ground) -> None:
    """A `.git` that is a file names where the repository is."""
    append(f"{at.linked}/.git")


@attempt("workspace", blocked_by="EROFS EBUSY")
def replace_the_file_that_points_to_git(at: Ground) -> None:
    make(f"{at.linked}/mine")
    os.rename(f"{at.linked}/mine", f"{at.linked}/.git")


@attempt("workspace", blocked_by="EROFS")
def write_where_git_points_to(at: Ground) -> None:
    append(f"{at.linked}/store/repo/config")


@attempt("workspace", blocked_by="EBUSY EROFS")
@pytest.mark.requirement("security.sandbox.renames")
def move_the_parent_of_where_git_points_to(at: Ground) -> None:
    os.rename(f"{at.linked}/store", f"{at.linked}/old")
    os.makedirs(f"{at.linked}/store/repo")


@attempt("workspace", blocked_by="EEXIST EROFS ENOTDIR EACCES EPERM")
def make_what_git_points_to(at: Ground) -> None:
    """A repository that is missing where a `.git` says it is, with hooks of mine."""
    os.makedirs(f"{at.dangling}/gone/hooks")
    make(f"{at.dangling}/gone/hooks/pre-commit")


@attempt("workspace", blocked_by="EBUSY EROFS")
def move_the_workspace_itself_away(at: Ground) -> None:
    os.rename(at.work, f"{at.base}/old")


@attempt("guarded", blocked_by="EBUSY EROFS")
@pytest.mark.requirement("security.sandbox.renames")
def move_the_parent_of_a_denied_directory(at: Ground) -> None:
    """The next command would protect the old name only."""
    os.rename(f"{at.work}/deep/er", f"{at.work}/deep/away")


@attempt("guarded", blocked_by="EBUSY EROFS")
def move_the_parent_of_the_parent_of_a_denied_directory(at: Ground) -> None:
    os.rename(f"{at.work}/deep", f"{at.work}/away")


@attempt("guarded", blocked_by="EBUSY EROFS")
@pytest.mark.requirement("security.sandbox.renames")
def exchange_the_parent_of_a_denied_directory(at: Ground) -> None:
    os.mkdir(f"{at.work}/mine")
    mine, deep = os.fsencode(f"{at.work}/mine"), os.fsencode(f"{at.work}/deep")
    syscall("renameat2", AT_FDCWD, mine, AT_FDCWD, deep, 2)


@attempt("guarded", blocked_by="EBUSY EROFS")
def move_the_parent_of_a_read_only_directory(at: Ground) -> None:
    os.rename(f"{at.work}/tree", f"{at.work}/away")


@attempt("guarded", blocked_by="EBUSY EROFS")
def move_the_parent_of_a_file_that_a_pattern_denies(at: Ground) -> None:
    os.rename(f"{at.work}/sub", f"{at.work}/away")


@attempt("guarded", blocked_by="EBUSY EROFS EACCES")
def move_a_denied_file_out_of_its_pattern(at: Ground) -> None:
    os.rename(f"{at.work}/top.env", f"{at.work}/top.txt")


@attempt("guarded", blocked_by="EROFS")
def write_to_a_read_only_directory_of_the_workspace(at: Ground) -> None:
    append(at.frozen)


@attempt("guarded", blocked_by="EROFS EEXIST EACCES EBUSY")
def make_what_is_denied_and_missing(at: Ground) -> None:
    make(f"{at.work}/deep/missing")


@attempt("nested", blocked_by="EBUSY")
def move_a_workspace_inside_of_another(at: Ground) -> None:
    """Under its new name, nothing in it is protected from the next command."""
    os.rename(f"{at.work}/sub", f"{at.work}/moved")


@attempt("nested", blocked_by="EEXIST EROFS")
def make_a_protected_name_in_a_workspace_inside_of_another(at: Ground) -> None:
    os.mkdir(f"{at.work}/sub/.git")
