"""
The first process inside, which reaps the others and tells the server how the command ended.

It is the parent of the command. Without a sandbox that is the server itself.
"""

import os

import pytest

from tests.breakout.inside import Ground, open_for_writing, read, syscall
from tests.breakout.table import attempt


@attempt("read-only", "workspace", "networked", "offline", blocked_by="EACCES EROFS")
@pytest.mark.requirement("security.sandbox.first-process")
def write_to_its_memory(at: Ground) -> None:
    del at
    open_for_writing(f"/proc/{os.getppid()}/mem")


@attempt("read-only", "networked", blocked_by="EACCES")
@pytest.mark.requirement("security.sandbox.first-process")
def read_its_memory(at: Ground) -> None:
    del at
    os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY))


@attempt("workspace", "narrow", blocked_by="EACCES")
def read_its_environment(at: Ground) -> None:
    del at
    read(f"/proc/{os.getppid()}/environ")


@attempt("workspace", blocked_by="EACCES EPERM")
@pytest.mark.requirement("security.sandbox.first-process")
def open_a_descriptor_of_it(at: Ground) -> None:
    """One of them leads to the server."""
    del at
    os.readlink(f"/proc/{os.getppid()}/fd/3")


@attempt("workspace", "networked", blocked_by="EACCES EPERM")
def read_where_its_memory_is(at: Ground) -> None:
    del at
    read(f"/proc/{os.getppid()}/maps")


@attempt("workspace", "offline", blocked_by="EACCES EPERM")
def enter_its_root(at: Ground) -> None:
    del at
    os.listdir(f"/proc/{os.getppid()}/root/")


@attempt("workspace", "networked", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.first-process")
def take_a_descriptor_of_it(at: Ground) -> None:
    del at
    process = syscall("pidfd_open", os.getppid(), 0)
    os.close(syscall("pidfd_getfd", process, 0, 0))


@attempt("workspace", blocked_by="EACCES EPERM EROFS")
def set_how_soon_it_is_killed(at: Ground) -> None:
    del at
    open_for_writing(f"/proc/{os.getppid()}/oom_score_adj")
