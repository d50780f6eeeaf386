"""Namespaces of one's own, in which one would be root, and those of others."""

import os

import pytest

from tests.breakout.inside import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWTIME,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    Blocked,
    Ground,
    in_a_child,
    run,
    syscall,
)
from tests.breakout.table import attempt


@attempt("read-only", "workspace", "networked", "offline", "root-but", blocked_by="EPERM ENOSPC")
@pytest.mark.requirement("security.sandbox.privileges")
def unshare_the_users(at: Ground) -> None:
    del at
    syscall("unshare", CLONE_NEWUSER)


@attempt("workspace", blocked_by="EPERM ENOSPC")
def unshare_users_and_mounts(at: Ground) -> None:
    del at
    syscall("unshare", CLONE_NEWUSER | CLONE_NEWNS)


@attempt("workspace", blocked_by="EPERM ENOSPC")
def unshare_users_and_processes(at: Ground) -> None:
    del at
    syscall("unshare", CLONE_NEWUSER | CLONE_NEWPID)


@attempt("workspace", "networked", blocked_by="EPERM ENOSPC")
def unshare_users_and_network(at: Ground) -> None:
    """A whole network stack to play with, which the kernel trusts its owner with."""
    del at
    syscall("unshare", CLONE_NEWUSER | CLONE_NEWNET)


@attempt("workspace", blocked_by="EPERM ENOSPC", kernel="one of the namespaces")
def unshare_all_the_rest(at: Ground) -> None:
    del at
    syscall(
        "unshare",
        CLONE_NEWUSER | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_NEWTIME,
    )


@attempt("workspace", blocked_by="EPERM", needs="root")
@pytest.mark.requirement("security.sandbox.privileges")
def unshare_mounts_without_users(at: Ground) -> None:
    """Whoever is root outside has kept nothing of it."""
    del at
    syscall("unshare", CLONE_NEWNS)


@attempt("workspace", blocked_by="EPERM ENOSPC")
def clone_with_users_of_its_own(at: Ground) -> None:
    del at
    pid = syscall("clone", CLONE_NEWUSER | 17, None, None, None, None)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt("workspace", "networked", "offline", blocked_by="ENOSYS EPERM ENOSPC")
@pytest.mark.requirement("security.sandbox.privileges")
def clone3_with_users_of_its_own(at: Ground) -> None:
    """Its flags lie in memory, where a filter cannot look."""
    del at
    arguments = CLONE_NEWUSER.to_bytes(8, "little") + bytes(24) + (17).to_bytes(8, "little")
    pid = syscall("clone3", arguments + bytes(64 - len(arguments)), 64)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt("workspace", "offline", blocked_by="ENOENT ESRCH EPERM", needs="root")
def enter_the_mounts_of_another_process(at: Ground) -> None:
    fd = os.open(f"/proc/{at.outsider['pid']}/ns/mnt", os.O_RDONLY)
    in_a_child(lambda: syscall("setns", fd, CLONE_NEWNS))


@attempt("workspace", blocked_by="ESRCH EPERM", needs="root")
def enter_the_namespaces_of_another_process_by_its_descriptor(at: Ground) -> None:
    fd = syscall("pidfd_open", at.outsider["pid"], 0)
    in_a_child(lambda: syscall("setns", fd, CLONE_NEWUTS | CLONE_NEWIPC))


@attempt("workspace", blocked_by="EPERM EINVAL EACCES ENOENT", needs="root")
def enter_the_mounts_of_the_process_above(at: Ground) -> None:
    del at
    fd = os.open(f"/proc/{os.getppid()}/ns/mnt", os.O_RDONLY)
    in_a_child(lambda: syscall("setns", fd, CLONE_NEWNS))


@attempt("read-only", "workspace", "networked", "offline", "narrow", blocked_by="all its own")
def share_a_namespace_with_the_host(at: Ground) -> None:
    """Users, processes, mounts, messages, names and control groups; the network is the next."""
    for name in ("user", "pid", "mnt", "ipc", "uts", "cgroup"):
        if os.readlink(f"/proc/self/ns/{name}") == at.outsider["namespaces"][name]:
            return
    raise Blocked("all its own")


@attempt("read-only", "workspace", "offline", "narrow", blocked_by="its own")
def share_the_network_with_the_host(at: Ground) -> None:
    if os.readlink("/proc/self/ns/net") != at.outsider["namespaces"]["net"]:
        raise Blocked("its own")


@attempt("workspace", "networked", "offline", blocked_by="the program failed")
def run_a_sandbox_of_my_own(at: Ground) -> None:
    """In which I choose what is mounted."""
    bind = ("--bind", "/", "/", "--unshare-user")
    if run("bwrap", *bind, "--", "/bin/sh", "-c", f"echo mine >> '{at.file}'") != 0:
        raise Blocked("the program failed")
