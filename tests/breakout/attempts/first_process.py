"""The first process inside, which reaps the others and tells the server how the command ended."""

import os

from tests.breakout.inside import Ground, open_for_writing, read, syscall
from tests.breakout.table import attempt

# Without a sandbox, the first process is that of the machine. It is opened, and never changed.


@attempt("read-only", "workspace", "networked", "offline", blocked_by="EACCES", needs="root")
def write_to_its_memory(at: Ground) -> None:
    del at
    open_for_writing("/proc/1/mem")


@attempt("read-only", "networked", blocked_by="EACCES", needs="root")
def read_its_memory(at: Ground) -> None:
    del at
    os.close(os.open("/proc/1/mem", os.O_RDONLY))


@attempt("workspace", "narrow", blocked_by="EACCES", needs="root")
def read_its_environment(at: Ground) -> None:
    del at
    read("/proc/1/environ")


@attempt("workspace", blocked_by="EACCES EPERM", needs="root")
def list_its_descriptors(at: Ground) -> None:
    """One of them leads to the server."""
    del at
    os.listdir("/proc/1/fd")


@attempt("workspace", "networked", blocked_by="EACCES EPERM", needs="root")
def read_where_its_memory_is(at: Ground) -> None:
    del at
    read("/proc/1/maps")


@attempt("workspace", "offline", blocked_by="EACCES EPERM", needs="root")
def enter_its_directory(at: Ground) -> None:
    del at
    os.listdir("/proc/1/root/")


@attempt("workspace", "networked", blocked_by="EPERM", needs="root")
def take_a_descriptor_of_it(at: Ground) -> None:
    del at
    process = syscall("pidfd_open", 1, 0)
    os.close(syscall("pidfd_getfd", process, 0, 0))


@attempt("workspace", blocked_by="EACCES EPERM EROFS", needs="root")
def set_how_soon_it_is_killed(at: Ground) -> None:
    del at
    open_for_writing("/proc/1/oom_score_adj")
