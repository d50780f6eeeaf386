"""Reaching outside the workspace under another name."""

import os

import pytest

from tests.breakout.inside import Ground, append, link_descriptor, may_write, read
from tests.breakout.table import attempt


@attempt("workspace", blocked_by="EROFS")
@pytest.mark.requirement("security.sandbox.links")
def write_through_a_symbolic_link(at: Ground) -> None:
    os.symlink(at.file, f"{at.work}/link")
    append(f"{at.work}/link")


@attempt("workspace", blocked_by="EROFS")
@pytest.mark.requirement("security.sandbox.links")
def write_through_a_link_to_a_directory(at: Ground) -> None:
    os.symlink(at.base, f"{at.work}/up")
    append(f"{at.work}/up/outside/file")


@attempt("workspace", blocked_by="EROFS")
def write_through_dots(at: Ground) -> None:
    fd = os.open(at.work, os.O_PATH)
    os.close(os.open("sub/../../outside/file", os.O_WRONLY | os.O_APPEND, dir_fd=fd))


@attempt("workspace", blocked_by="EROFS")
def write_through_the_root_of_the_process(at: Ground) -> None:
    append(f"/proc/self/root{at.file}")


@attempt("workspace", blocked_by="EROFS")
def write_through_the_directory_of_the_process(at: Ground) -> None:
    append("/proc/self/cwd/../outside/file")


@attempt("workspace", blocked_by="EXDEV EROFS")
@pytest.mark.requirement("security.sandbox.hard-links")
def take_a_hard_link_to_a_file_outside(at: Ground) -> None:
    os.link(at.file, f"{at.work}/mine")
    append(f"{at.work}/mine")


@attempt("workspace", blocked_by="EXDEV EROFS ENOENT")
def take_a_hard_link_by_a_descriptor(at: Ground) -> None:
    fd = os.open(at.file, os.O_RDONLY)
    link_descriptor(fd, f"{at.work}/mine")
    append(f"{at.work}/mine")


@attempt("workspace", "guarded", blocked_by="EXDEV EROFS")
@pytest.mark.requirement("security.sandbox.hard-links")
def take_a_hard_link_to_a_protected_file(at: Ground) -> None:
    os.link(f"{at.work}/.git/config", f"{at.work}/config")
    append(f"{at.work}/config")


@attempt("guarded", blocked_by="EXDEV EACCES EPERM")
@pytest.mark.requirement("security.sandbox.hard-links")
def take_a_hard_link_to_a_denied_file(at: Ground) -> None:
    os.link(f"{at.work}/top.env", f"{at.work}/mine")
    read(f"{at.work}/mine")


@attempt("guarded", blocked_by="EXDEV EROFS EACCES")
def take_a_hard_link_to_a_read_only_file(at: Ground) -> None:
    os.link(at.frozen, f"{at.work}/mine")
    append(f"{at.work}/mine")


@attempt("guarded", blocked_by="EACCES")
@pytest.mark.requirement("security.sandbox.links")
def read_a_denied_file_through_a_link(at: Ground) -> None:
    os.symlink(at.secret, f"{at.work}/link")
    read(f"{at.work}/link")


@attempt("workspace", blocked_by="EROFS")
def write_to_a_protected_file_through_a_link(at: Ground) -> None:
    os.symlink(f"{at.work}/.git", f"{at.work}/git")
    append(f"{at.work}/git/config")


@attempt("workspace", blocked_by="EROFS EXDEV ENOENT")
def link_a_file_without_a_name_into_a_protected_directory(at: Ground) -> None:
    fd = os.open(at.work, os.O_TMPFILE | os.O_WRONLY, 0o600)
    os.write(fd, b"mine")
    link_descriptor(fd, f"{at.work}/.git/hooks/mine")


@attempt("workspace", blocked_by="EROFS EACCES", needs="root")
def change_the_program_that_started_this(at: Ground) -> None:
    """It is asked for, and not done: whoever can is out with the next start."""
    del at
    program = next(p for p in ("/usr/bin/bwrap", "/usr/local/bin/bwrap") if os.path.exists(p))
    may_write(program)
