"""Devices, and what is shared with the host through memory and messages."""

import ctypes
import os
import stat

import pytest

from tests.breakout.inside import LIBC, Blocked, Ground, open_for_writing, read, syscall
from tests.breakout.table import attempt


@attempt("workspace", "offline", "narrow", blocked_by="ENOENT", needs="root")
def open_the_log_of_the_kernel(at: Ground) -> None:
    del at
    open_for_writing("/dev/kmsg")


@attempt(
    "workspace", "networked", "root-but", blocked_by="none there", needs="root", kernel="a disk"
)
def open_a_disk(at: Ground) -> None:
    """For reading: the file system on it keeps no secret from whoever can."""
    del at
    for name in sorted(os.listdir("/dev")):
        try:
            if stat.S_ISBLK(os.stat(f"/dev/{name}").st_mode):
                os.close(os.open(f"/dev/{name}", os.O_RDONLY))
                return
        except OSError:
            continue
    raise Blocked("none there")


@attempt("workspace", "networked", "root-but", blocked_by="none there", needs="root")
def open_a_device_of_virtual_machines_tunnels_or_loops(at: Ground) -> None:
    del at
    for name in ("kvm", "fuse", "net/tun", "loop-control", "vhost-net", "mapper/control", "mem"):
        try:
            os.close(os.open(f"/dev/{name}", os.O_RDWR))
            return
        except OSError:
            continue
    raise Blocked("none there")


@attempt("workspace", blocked_by="none there", needs="root")
def open_a_terminal_of_the_machine(at: Ground) -> None:
    """For reading, and without making it one's own."""
    del at
    for name in ("console", "tty0", "tty1", "ttyS0"):
        try:
            os.close(os.open(f"/dev/{name}", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
            return
        except OSError:
            continue
    raise Blocked("none there")


@attempt(
    "workspace",
    "offline",
    "root-but",
    blocked_by="none there",
    needs="root",
    kernel="settings in files",
)
@pytest.mark.requirement("security.sandbox.proc")
def open_a_setting_of_the_kernel(at: Ground) -> None:
    """Where every file may be written, those that belong to the kernel may not."""
    del at
    for name in ("profiling", "rcu_expedited", "mm/ksm/run", "mm/transparent_hugepage/enabled"):
        try:
            open_for_writing(f"/sys/kernel/{name}")
            return
        except OSError:
            continue
    raise Blocked("none there")


@attempt("workspace", "offline", "root-but", blocked_by="EPERM", needs="root")
def make_a_device(at: Ground) -> None:
    os.mknod(f"{at.work}/disk", stat.S_IFBLK | 0o600, os.stat(at.work).st_dev)


@attempt("workspace", blocked_by="EACCES|nobody made one", needs="root")
def open_an_older_device_in_the_workspace(at: Ground) -> None:
    if not at.special:
        raise Blocked("nobody made one")
    os.close(os.open(at.special["device"], os.O_RDWR))


@attempt("workspace", "networked", "offline", blocked_by="ENOENT")
def attach_the_memory_of_another_process(at: Ground) -> None:
    segment = syscall("shmget", at.outsider["key"], 0, 0)
    LIBC.shmat.restype = ctypes.c_void_p
    if ctypes.string_at(LIBC.shmat(segment, None, 0), 8) != at.outsider["secret"][:8].encode():
        raise Blocked("something else is there")


@attempt("workspace", blocked_by="ENOENT")
def open_the_queue_of_another_process(at: Ground) -> None:
    syscall("msgget", at.outsider["key"], 0)


@attempt("workspace", blocked_by="ENOENT")
def open_the_semaphores_of_another_process(at: Ground) -> None:
    syscall("semget", at.outsider["key"], 0, 0)


@attempt("workspace", "offline", blocked_by="ENOENT")
def open_the_queue_of_another_process_by_its_name(at: Ground) -> None:
    os.close(syscall("mq_open", os.fsencode(at.outsider["queue"][1:]), os.O_RDWR, 0, None))


@attempt("read-only", "workspace", "narrow", blocked_by="ENOENT")
def read_the_shared_memory_of_the_host(at: Ground) -> None:
    read(at.outsider["shared"])
