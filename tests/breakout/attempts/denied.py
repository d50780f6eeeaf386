"""Reading what a profile denies, by other ways than its name."""

import ctypes
import os

import pytest

from tests.breakout.inside import (
    CLONE_NEWNS,
    MNT_DETACH,
    MS_BIND,
    Blocked,
    Ground,
    mount,
    own_namespaces,
    read,
    syscall,
)
from tests.breakout.table import attempt


@attempt("guarded", "root-but", "reopened", blocked_by="EACCES ENOENT")
@pytest.mark.requirement("security.sandbox.errors")
def read_a_denied_file(at: Ground) -> None:
    read(at.secret)


@attempt("guarded", blocked_by="EACCES")
def list_a_denied_directory(at: Ground) -> None:
    os.listdir(os.path.dirname(at.secret))


@attempt("guarded", "narrow", blocked_by="EACCES ENOENT")
def read_a_denied_file_outside_the_workspace(at: Ground) -> None:
    read(f"{at.outside}/to-be-denied")


@attempt("guarded", blocked_by="EACCES")
def read_a_file_that_a_pattern_denies(at: Ground) -> None:
    read(f"{at.work}/sub/inner.env")


@attempt("guarded", blocked_by="EACCES")
def read_a_denied_file_with_a_strange_name(at: Ground) -> None:
    read(f"{at.work}/strange/[a]*\n-- b")


@attempt("guarded", "root-but", blocked_by="EACCES")
def read_a_denied_file_by_the_root_of_the_process(at: Ground) -> None:
    read(f"/proc/self/root{at.secret}")


@attempt("guarded", blocked_by="EACCES")
def read_a_denied_file_by_another_spelling(at: Ground) -> None:
    read(f"{at.work}/../work/./deep//er/../er/secrets/key")


@attempt("guarded", blocked_by="EACCES")
@pytest.mark.requirement("security.sandbox.links")
def read_a_denied_file_by_an_older_link_outside(at: Ground) -> None:
    read(f"{at.outside}/alias/secrets/key")


@attempt("guarded", blocked_by="EACCES")
def read_a_denied_file_from_a_directory_above(at: Ground) -> None:
    fd = os.open(f"{at.work}/deep/er", os.O_PATH)
    os.close(os.open("secrets/key", os.O_RDONLY, dir_fd=fd))


@attempt("guarded", blocked_by="EROFS EACCES EPERM")
def make_a_denied_directory_readable(at: Ground) -> None:
    os.chmod(os.path.dirname(at.secret), 0o755)
    read(at.secret)


@attempt("guarded", blocked_by="EPERM EACCES", needs="root")
def open_a_denied_file_by_its_handle(at: Ground) -> None:
    """A handle names the file itself, whatever is mounted over it."""
    if not at.handle:
        raise Blocked("no handle")
    kind, data = at.handle[0], bytes.fromhex(at.handle[1])
    handle = len(data).to_bytes(4, "little") + kind.to_bytes(4, "little") + data
    where = os.open(at.work, os.O_RDONLY)
    syscall("open_by_handle_at", where, ctypes.create_string_buffer(handle), os.O_RDONLY)


@attempt("guarded", blocked_by="EPERM EINVAL")
def uncover_a_denied_directory_by_unmounting(at: Ground) -> None:
    """Freely, there is no mount: one is made first."""
    covered = os.path.dirname(at.secret)
    own_namespaces(at)
    if not os.path.ismount(covered):
        mount("none", covered, "tmpfs", 0)
    syscall("umount2", os.fsencode(covered), MNT_DETACH)
    read(at.secret)


@attempt("guarded", blocked_by="EPERM EINVAL EACCES")
def uncover_a_denied_directory_by_binding_its_parent(at: Ground) -> None:
    """A bind that is not recursive takes along nothing that is mounted below."""
    own_namespaces(at)
    mount(f"{at.work}/deep", f"{at.work}/tree", None, MS_BIND)
    read(f"{at.work}/tree/er/secrets/key")


@attempt("guarded", blocked_by="EPERM EINVAL EACCES")
def uncover_a_denied_directory_by_cloning_its_parent(at: Ground) -> None:
    own_namespaces(at, CLONE_NEWNS)
    tree = syscall("open_tree", -100, os.fsencode(f"{at.work}/deep"), 1)
    os.close(os.open("er/secrets/key", os.O_RDONLY, dir_fd=tree))


@attempt("reopened", blocked_by="EACCES ENOENT")
def read_beside_a_directory_that_was_opened_again(at: Ground) -> None:
    read(f"{at.work}/deep/open/../er/secrets/key")


@attempt("narrow", blocked_by="ENOENT")
@pytest.mark.requirement("security.sandbox.errors")
def read_a_file_that_the_profile_does_not_show(at: Ground) -> None:
    read(at.file)


@attempt("guarded", blocked_by="EACCES")
def read_through_a_link_that_a_pattern_denies(at: Ground) -> None:
    read(f"{at.work}/linked.env")


@attempt("guarded", blocked_by="EACCES")
def read_what_a_link_that_a_pattern_denies_leads_to(at: Ground) -> None:
    read(os.path.realpath(f"{at.work}/linked.env"))


@attempt("guarded", blocked_by="EACCES")
def read_through_a_link_after_it_was_given_a_name_that_no_pattern_denies(at: Ground) -> None:
    os.rename(f"{at.work}/linked.env", f"{at.work}/linked.txt")
    read(f"{at.work}/linked.txt")
