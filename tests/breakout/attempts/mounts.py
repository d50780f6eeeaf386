"""Changing what is mounted where. Freely, all of it happens in a namespace of its own."""

import ctypes
import os
import struct

import pytest

from tests.breakout.inside import (
    AT_FDCWD,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    MNT_DETACH,
    MS_BIND,
    MS_REC,
    MS_REMOUNT,
    Blocked,
    Ground,
    append,
    make,
    mount,
    own_namespaces,
    read,
    syscall,
)
from tests.breakout.table import attempt


@attempt("workspace", "networked", "offline", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.calls")
def mount_a_file_system_of_my_own(at: Ground) -> None:
    own_namespaces(at)
    mount("none", f"{at.work}/sub", "tmpfs", 0)


@attempt("workspace", "networked", "root-but", blocked_by="EPERM")
def remount_the_root_writable(at: Ground) -> None:
    own_namespaces(at)
    mount(None, "/", None, MS_REMOUNT | MS_BIND)
    append(at.file)


@attempt("workspace", blocked_by="EPERM")
def bind_what_is_outside_into_the_workspace(at: Ground) -> None:
    own_namespaces(at)
    mount(at.outside, f"{at.work}/sub", None, MS_BIND | MS_REC)
    append(f"{at.work}/sub/file")


@attempt("workspace", blocked_by="EPERM")
def bind_the_workspace_to_uncover_what_is_protected(at: Ground) -> None:
    own_namespaces(at)
    mount(at.work, at.extra, None, MS_BIND)
    append(f"{at.extra}/.git/config")


@attempt("workspace", "networked", blocked_by="EPERM EINVAL")
def unmount_what_protects_git(at: Ground) -> None:
    """Freely, there is no mount: one is made first."""
    own_namespaces(at)
    if not os.path.ismount(f"{at.work}/.git"):
        mount(f"{at.work}/.git", f"{at.work}/.git", None, MS_BIND)
    syscall("umount2", os.fsencode(f"{at.work}/.git"), MNT_DETACH)
    append(f"{at.work}/.git/config")


@attempt("workspace", blocked_by="EPERM")
def make_the_root_writable_by_its_attributes(at: Ground) -> None:
    own_namespaces(at)
    attributes = struct.pack("QQQQ", 0, 1, 0, 0)  # clears MOUNT_ATTR_RDONLY
    syscall("mount_setattr", AT_FDCWD, b"/", 0, attributes, len(attributes))
    append(at.file)


@attempt("workspace", blocked_by="EPERM")
def clone_the_root_and_write_there(at: Ground) -> None:
    own_namespaces(at)
    tree = syscall("open_tree", AT_FDCWD, b"/", 1 | 0x8000)  # OPEN_TREE_CLONE, AT_RECURSIVE
    attributes = struct.pack("QQQQ", 0, 1, 0, 0)
    syscall("mount_setattr", tree, b"", 0x1000, attributes, len(attributes))
    os.close(os.open(at.file.lstrip("/"), os.O_WRONLY | os.O_APPEND, dir_fd=tree))


@attempt("workspace", blocked_by="EPERM ENOSYS", kernel="clones of mounts with attributes")
def clone_what_is_outside_with_other_attributes(at: Ground) -> None:
    """The same in one call, which is younger than most filters."""
    own_namespaces(at)
    attributes, outside = struct.pack("QQQQ", 0, 1, 0, 0), os.fsencode(at.outside)
    tree = syscall("open_tree_attr", AT_FDCWD, outside, 1, attributes, len(attributes))
    os.close(os.open("file", os.O_WRONLY | os.O_APPEND, dir_fd=tree))


@attempt("workspace", blocked_by="EPERM")
def move_a_mount_over_what_is_protected(at: Ground) -> None:
    own_namespaces(at)
    tree = syscall("open_tree", AT_FDCWD, os.fsencode(f"{at.work}/sub"), 1)
    there = os.fsencode(f"{at.work}/.git")
    syscall("move_mount", tree, b"", AT_FDCWD, there, 4)  # MOVE_MOUNT_F_EMPTY_PATH
    make(f"{at.work}/.git/mine")


@attempt("workspace", blocked_by="EPERM")
def open_a_file_system_by_its_name(at: Ground) -> None:
    own_namespaces(at)
    fs = syscall("fsopen", b"tmpfs", 0)
    syscall("fsconfig", fs, 6, None, None, 0)  # FSCONFIG_CMD_CREATE
    syscall("fsmount", fs, 0, 0)


@attempt("workspace", blocked_by="EPERM")
def mount_another_view_of_the_processes(at: Ground) -> None:
    own_namespaces(at, CLONE_NEWNS | CLONE_NEWPID)
    pid = os.fork()  # the first process of the new namespace
    if pid == 0:
        try:
            mount("proc", f"{at.work}/sub", "proc", 0)
            read(f"{at.work}/sub/1/status")
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


@attempt("workspace", blocked_by="EPERM EINVAL")
def pivot_into_a_root_of_my_own(at: Ground) -> None:
    own_namespaces(at)
    new = f"{at.work}/sub"
    mount(new, new, None, MS_BIND | MS_REC)
    os.chdir(new)
    syscall("pivot_root", b".", b".")


@attempt("workspace", "networked", blocked_by="EPERM")
def change_the_root(at: Ground) -> None:
    """The first step of the oldest way out of a root."""
    own_namespaces(at)
    os.chroot(f"{at.work}/sub")


@attempt("workspace", blocked_by="EPERM", needs="root")
def name_the_machine(at: Ground) -> None:
    """To what it is called anyway."""
    del at
    name = os.uname().nodename.encode()
    syscall("sethostname", ctypes.c_char_p(name), len(name))


@attempt("workspace", blocked_by="EPERM")
def name_a_machine_of_my_own(at: Ground) -> None:
    own_namespaces(at, CLONE_NEWUTS)
    syscall("sethostname", ctypes.c_char_p(b"mine"), 4)
    if os.uname().nodename != "mine":
        raise Blocked("it kept its name")
