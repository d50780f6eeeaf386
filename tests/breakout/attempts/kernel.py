"""Parts of the kernel that no command needs, and that have been ways in before."""

import ctypes
import errno
import os
import struct

import pytest

from tests.breakout.inside import Ground, reaches, syscall
from tests.breakout.table import attempt


@attempt("workspace", "networked", "offline", blocked_by="EPERM ENOSYS")
@pytest.mark.requirement("security.sandbox.calls")
def add_a_key(at: Ground) -> None:
    """To the ring of the user, which all their processes share. It is taken away again."""
    del at
    ring = -4  # KEY_SPEC_USER_KEYRING
    key = syscall("add_key", b"user", b"holdfast-breakout", b"x", 1, ring)
    syscall("keyctl", 9, key, ring)  # KEYCTL_UNLINK


@attempt("workspace", blocked_by="EPERM ENOSYS")
def look_at_the_keys_of_the_user(at: Ground) -> None:
    del at
    syscall("keyctl", 0, -4, 1)  # KEYCTL_GET_KEYRING_ID


@attempt("workspace", "networked", blocked_by="EPERM ENOSYS")
def ask_for_a_key(at: Ground) -> None:
    del at
    reaches(lambda: syscall("request_key", b"user", b"holdfast-none", None, 0), errno.ENOKEY)


@attempt("workspace", "networked", blocked_by="EPERM", needs="root")
@pytest.mark.requirement("security.sandbox.calls")
def load_a_program_into_the_kernel(at: Ground) -> None:
    """The least that `bpf` does: making a map."""
    del at
    attributes = struct.pack("IIII", 2, 4, 4, 1) + bytes(112)  # an array of one number
    os.close(syscall("bpf", 0, attributes, len(attributes)))


@attempt("workspace", "networked", blocked_by="EPERM EACCES ENOSYS")
@pytest.mark.requirement("security.sandbox.calls")
def count_what_the_processor_does(at: Ground) -> None:
    """`perf_event_open`, for this very process and its own code."""
    del at
    attributes = bytearray(112)
    struct.pack_into("IIQ", attributes, 0, 1, 112, 0)  # PERF_TYPE_SOFTWARE, CPU_CLOCK
    struct.pack_into("Q", attributes, 40, 1 | 1 << 5 | 1 << 6)  # disabled, no kernel, no hypervisor
    buffer = ctypes.create_string_buffer(bytes(attributes), 112)
    os.close(syscall("perf_event_open", buffer, 0, -1, -1, 0))


@attempt("workspace", "networked", blocked_by="EPERM ENOSYS")
@pytest.mark.requirement("security.sandbox.calls")
def answer_the_faults_of_memory(at: Ground) -> None:
    """`userfaultfd` holds the kernel up at a point of one's choice."""
    del at
    os.close(syscall("userfaultfd", 1))  # UFFD_USER_MODE_ONLY


@attempt("workspace", blocked_by="EPERM ENOSYS", needs="root", kernel="modules")
def remove_a_module_that_does_not_exist(at: Ground) -> None:
    del at
    reaches(lambda: syscall("delete_module", b"holdfast_none", 0), errno.ENOENT)


@attempt("workspace", "offline", blocked_by="EPERM", needs="root")
def restart_the_machine_with_the_wrong_numbers(at: Ground) -> None:
    """Whoever may restart it is told that the numbers are wrong."""
    del at
    reaches(lambda: syscall("reboot", 0, 0, 0, None), errno.EINVAL)


@attempt("workspace", blocked_by="EPERM", needs="root")
def swap_to_a_file_that_does_not_exist(at: Ground) -> None:
    reaches(lambda: syscall("swapon", os.fsencode(f"{at.work}/none"), 0), errno.ENOENT)


@attempt("workspace", blocked_by="EPERM", needs="root", kernel="fanotify")
def watch_every_file_of_the_machine(at: Ground) -> None:
    del at
    os.close(syscall("fanotify_init", 4, 0))  # FAN_CLASS_CONTENT: it may deny opens
