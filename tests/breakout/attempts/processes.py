"""Reaching other processes: signals, traces, memory, descriptors, limits and priorities."""

import ctypes
import os
import signal
import struct

import pytest

from tests.breakout.inside import Blocked, Ground, a_child_that_waits, syscall
from tests.breakout.table import attempt


@attempt("workspace", "networked", "offline", blocked_by="ESRCH EPERM")
@pytest.mark.requirement("security.sandbox.processes")
def send_a_signal_to_another_process(at: Ground) -> None:
    os.kill(at.outsider["pid"], signal.SIGUSR1)


@attempt("workspace", blocked_by="ESRCH EPERM")
def send_a_signal_to_another_group(at: Ground) -> None:
    os.killpg(at.outsider["pid"], signal.SIGUSR1)


@attempt("workspace", blocked_by="ESRCH EPERM")
def send_a_signal_through_a_descriptor_of_a_process(at: Ground) -> None:
    fd = syscall("pidfd_open", at.outsider["pid"], 0)
    syscall("pidfd_send_signal", fd, int(signal.SIGUSR1), None, 0)


@attempt("workspace", "offline", blocked_by="ESRCH EPERM")
def take_a_descriptor_out_of_another_process(at: Ground) -> None:
    fd = syscall("pidfd_open", at.outsider["pid"], 0)
    os.write(syscall("pidfd_getfd", fd, at.outsider["gift"], 0), b"x")


@attempt("workspace", "networked", "offline", blocked_by="EPERM ESRCH")
@pytest.mark.requirement("security.sandbox.processes")
def trace_another_process(at: Ground) -> None:
    # PTRACE_SEIZE does not stop it. The end of the tracer lets go of it.
    syscall("ptrace", 0x4206, at.outsider["pid"], None, None)


@attempt("workspace", "networked", "offline", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.tracing")
def trace_a_child(at: Ground) -> None:
    del at
    child, end = a_child_that_waits()
    try:
        syscall("ptrace", 0x4206, child, None, None)
    finally:
        end()


@attempt("workspace", "networked", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.tracing")
def ask_to_be_traced(at: Ground) -> None:
    del at
    pid = os.fork()
    if pid == 0:
        try:
            syscall("ptrace", 0, 0, None, None)
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


@attempt("workspace", "networked", blocked_by="EPERM ESRCH")
def copy_memory_out_of_another_process(at: Ground) -> None:
    length = len(at.outsider["secret"])
    here = ctypes.create_string_buffer(length)
    local = struct.pack("QQ", ctypes.addressof(here), length)
    remote = struct.pack("QQ", at.outsider["address"], length)
    syscall("process_vm_readv", at.outsider["pid"], local, 1, remote, 1, 0)
    if here.raw.decode() != at.outsider["secret"]:
        raise Blocked("something else is there")


@attempt("workspace", "networked", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.tracing")
def copy_memory_into_a_child(at: Ground) -> None:
    del at
    here = ctypes.create_string_buffer(8)
    vector = struct.pack("QQ", ctypes.addressof(here), 8)
    child, end = a_child_that_waits()
    try:
        syscall("process_vm_writev", child, vector, 1, vector, 1, 0)
    finally:
        end()


@attempt("workspace", "offline", blocked_by="ESRCH EPERM")
@pytest.mark.requirement("security.sandbox.processes")
def limit_another_process(at: Ground) -> None:
    """The limits are read and set to what they are."""
    old = ctypes.create_string_buffer(16)
    syscall("prlimit64", at.outsider["pid"], 7, None, old)
    syscall("prlimit64", at.outsider["pid"], 7, old, None)


@attempt("workspace", blocked_by="ESRCH EPERM")
def change_the_priority_of_another_process(at: Ground) -> None:
    pid = at.outsider["pid"]
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))


@attempt("workspace", blocked_by="ESRCH EPERM")
def change_where_another_process_runs(at: Ground) -> None:
    os.sched_setaffinity(at.outsider["pid"], os.sched_getaffinity(at.outsider["pid"]))


@attempt("workspace", blocked_by="ESRCH EPERM")
def change_how_another_process_is_scheduled(at: Ground) -> None:
    os.sched_setscheduler(at.outsider["pid"], os.SCHED_OTHER, os.sched_param(0))


@attempt("workspace", blocked_by="ESRCH EPERM")
def change_how_another_process_reads_disks(at: Ground) -> None:
    syscall("ioprio_set", 1, at.outsider["pid"], (2 << 13) | 4)
