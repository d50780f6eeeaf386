"""Filters, run through a small machine of our own, and loaded into the kernel."""

import errno
import itertools
import os
import platform
import struct
import subprocess
import sys

import pytest

from holdfast.engine.linux.syscall_numbers import MACHINES
from holdfast.engine.sandbox.bubblewrap.filter import FilterKind, filter_program

ALLOW = 0x7FFF0000
KILL = 0x80000000
EPERM = 0x50000 | errno.EPERM
TELL = 0x7FC00000
ENOSYS = 0x50000 | errno.ENOSYS

ARCHES = sorted(MACHINES)
KINDS: tuple[FilterKind, ...] = ("restricted", "open")
BOTH = list(itertools.product(KINDS, ARCHES))


def decide(program: bytes, arch: int, number: int, args: tuple[int, ...]) -> int:
    """Return what the kernel would do, for the few instructions that filters here are made of."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *args, *[0] * (6 - len(args)))
    code = list(struct.iter_unpack("=HBBI", program))
    loaded, at = 0, 0
    while True:
        op, if_true, if_false, value = code[at]
        at += 1
        match op:
            case 0x20:
                (loaded,) = struct.unpack_from("=I", data, value)
            case 0x54:
                loaded &= value
            case 0x15:
                at += if_true if loaded == value else if_false
            case 0x45:
                at += if_true if loaded & value else if_false
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(op)


def call(kind: FilterKind, machine: str, name: str, *args: int) -> int:
    known = MACHINES[machine]
    return decide(filter_program(kind, machine), known.audit_arch, known.numbers[name], args)


@pytest.mark.parametrize(("kind", "machine"), BOTH)
def test_a_group_with_others_in_it_cannot_be_signalled(kind: FilterKind, machine: str) -> None:
    known = MACHINES[machine]
    program = filter_program(kind, machine, shares_group=True)
    number = known.numbers["kill"]
    assert decide(program, known.audit_arch, number, (0, 15)) == EPERM
    # The kernel looks at the lower half.
    assert decide(program, known.audit_arch, number, (1 << 32, 15)) == EPERM
    assert decide(program, known.audit_arch, number, (2, 15)) == ALLOW
    assert call(kind, machine, "kill", 0, 15) == ALLOW


@pytest.mark.requirement("sandbox.seccomp")
@pytest.mark.parametrize(("kind", "machine"), BOTH)
def test_calls_of_another_processor_end_the_process(kind: FilterKind, machine: str) -> None:
    assert decide(filter_program(kind, machine), 0x40000003, 1, ()) == KILL


@pytest.mark.requirement("sandbox.seccomp")
@pytest.mark.parametrize(("kind", "machine"), BOTH)
def test_what_is_not_listed_is_allowed(kind: FilterKind, machine: str) -> None:
    known = MACHINES[machine]
    free = set(range(460)) - set(known.numbers.values())
    program = filter_program(kind, machine)

    assert {decide(program, known.audit_arch, number, ()) for number in free} == {ALLOW}


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_numbering_of_calls_is_refused(kind: FilterKind) -> None:
    known = MACHINES["x86_64"]
    program = filter_program(kind, "x86_64")

    assert decide(program, known.audit_arch, 0x40000000 | known.numbers["socket"], ()) == EPERM


@pytest.mark.requirement("sandbox.seccomp")
@pytest.mark.parametrize(("kind", "machine"), BOTH)
@pytest.mark.parametrize(
    "name",
    ["ptrace", "process_vm_readv", "io_uring_setup", "keyctl", "bpf", "mount", "setns", "fsopen"],
)
def test_other_processes_keys_and_mounts_are_out_of_reach(
    kind: FilterKind, machine: str, name: str
) -> None:
    assert call(kind, machine, name) == EPERM


@pytest.mark.parametrize(("kind", "machine"), BOTH)
def test_new_namespaces_are_refused_and_new_processes_are_not(
    kind: FilterKind, machine: str
) -> None:
    new_user, new_time, files, sigchld = 0x10000000, 0x80, 0x400, 17

    assert call(kind, machine, "clone", new_user | sigchld) == EPERM
    assert call(kind, machine, "clone", files | sigchld) == ALLOW
    assert call(kind, machine, "unshare", new_user) == EPERM
    assert call(kind, machine, "unshare", new_time) == EPERM
    assert call(kind, machine, "unshare", files) == ALLOW
    assert call(kind, machine, "clone3") == ENOSYS


@pytest.mark.parametrize("machine", ARCHES)
def test_whoever_wants_to_know_is_told_of_attempts_to_reach_the_network(machine: str) -> None:
    known = MACHINES[machine]
    telling = filter_program("restricted", machine, notifies=True)

    def told(name: str, family: int, kind: int = 1) -> int:
        return decide(telling, known.audit_arch, known.numbers[name], (family, kind))

    unix, inet, netlink, inet6, vsock = 1, 2, 16, 10, 40
    assert told("socket", inet) == told("socket", inet6, 2) == TELL
    assert told("socket", netlink) == told("socket", vsock) == EPERM
    assert told("socket", unix) == ALLOW
    assert told("socket", unix, 2) == EPERM
    assert told("socketpair", inet) == EPERM
    assert filter_program("open", machine, notifies=True) == filter_program("open", machine)


@pytest.mark.parametrize("machine", ARCHES)
def test_data_is_sent_to_the_other_end_of_a_socket_and_to_no_address(machine: str) -> None:
    nowhere, pointer, high_pointer = 0, 0x7FFF0010, 1 << 32

    assert call("restricted", machine, "sendto", 3, pointer, 1, 0, nowhere) == ALLOW
    assert call("restricted", machine, "sendto", 3, pointer, 1, 0, pointer, 16) == EPERM
    assert call("restricted", machine, "sendto", 3, pointer, 1, 0, high_pointer, 16) == EPERM
    assert call("open", machine, "sendto", 3, pointer, 1, 0, pointer, 16) == ALLOW


@pytest.mark.requirement("security.shell.terminal")
@pytest.mark.parametrize(("kind", "machine"), BOTH)
def test_nobody_types_into_a_terminal_whatever_the_upper_half_says(
    kind: FilterKind, machine: str
) -> None:
    assert call(kind, machine, "ioctl", 0, 0x5412) == EPERM
    assert call(kind, machine, "ioctl", 0, 1 << 32 | 0x5412) == EPERM
    assert call(kind, machine, "ioctl", 0, 0x541C) == EPERM
    assert call(kind, machine, "ioctl", 0, 0x5413) == ALLOW


@pytest.mark.requirement("security.sandbox.leases")
@pytest.mark.parametrize(("kind", "machine"), BOTH)
def test_leases_are_refused_and_locks_are_not(kind: FilterKind, machine: str) -> None:
    set_lease, get_lease, set_delegation, set_lock = 1024, 1025, 1040, 6

    assert call(kind, machine, "fcntl", 3, set_lease) == EPERM
    assert call(kind, machine, "fcntl", 3, 1 << 32 | set_lease) == EPERM
    assert call(kind, machine, "fcntl", 3, set_delegation) == EPERM
    assert call(kind, machine, "fcntl", 3, get_lease) == ALLOW
    assert call(kind, machine, "fcntl", 3, set_lock) == ALLOW


@pytest.mark.requirement("security.sandbox.snapshots")
@pytest.mark.parametrize(("kind", "machine"), BOTH)
def test_snapshots_are_refused_and_clones_of_files_are_not(kind: FilterKind, machine: str) -> None:
    btrfs, btrfs_v2, remove_v2, clone = 0x50009401, 0x50009417, 0x5000943F, 0x40049409
    # `_IOW(0xbc, 16, struct bch_ioctl_subvolume)` and `_IOW(0xbc, 29, struct …_subvolume_v2)`.
    bcachefs, bcachefs_v2 = 0x4020BC10, 0x4030BC1D

    for control in (btrfs, btrfs_v2, remove_v2, bcachefs, bcachefs_v2):
        assert call(kind, machine, "ioctl", 3, control) == EPERM
    assert call(kind, machine, "ioctl", 3, clone) == ALLOW


@pytest.mark.requirement("security.sandbox.set-user-id")
@pytest.mark.parametrize(("kind", "machine"), BOTH)
@pytest.mark.parametrize("name", ["chmod", "fchmod", "fchmodat", "fchmodat2"])
def test_no_program_is_made_to_run_as_its_owner(kind: FilterKind, machine: str, name: str) -> None:
    if name not in MACHINES[machine].numbers:
        pytest.skip(f"{machine} has no such call")
    before = (3, 0) if "at" in name else (3,)

    assert call(kind, machine, name, *before, 0o4755) == EPERM
    assert call(kind, machine, name, *before, 1 << 32 | 0o106755) == EPERM
    # With the group of the server, which is as good as its user where its files are the group's.
    assert call(kind, machine, name, *before, 0o2755) == EPERM
    # Temporary directories.
    assert call(kind, machine, name, *before, 0o1777) == ALLOW
    # Directories of a group, where the workspace is one.
    known = MACHINES[machine]
    shared = filter_program(kind, machine, sets_group_ids=True)
    number = known.numbers[name]
    assert decide(shared, known.audit_arch, number, (*before, 0o2775)) == ALLOW
    assert decide(shared, known.audit_arch, number, (*before, 0o6775)) == EPERM


@pytest.mark.requirement("security.sandbox.set-group-id")
@pytest.mark.parametrize(("kind", "machine"), BOTH)
@pytest.mark.parametrize("name", ["open", "openat", "creat", "mknod", "mknodat"])
def test_no_new_file_has_the_bit_of_its_group(kind: FilterKind, machine: str, name: str) -> None:
    if name not in MACHINES[machine].numbers:
        pytest.skip(f"{machine} has no such call")
    opens = name.startswith("open")
    before = (3, 0) if name in ("openat", "mknodat") else (0,)
    read, write_new, temporary = 0, 0o101, 0o20200001

    def made(mode: int, flags: int = write_new) -> int:
        return call(kind, machine, name, *before, *([flags] if opens else []), mode)

    # It would be kept until an access control list lets the group execute the file.
    assert made(0o2644) == EPERM
    assert made(1 << 32 | 0o2755) == EPERM
    assert made(0o755) == ALLOW
    if opens:
        assert made(0o2644, temporary) == EPERM
        # Without a new file the mode is what was left in the register.
        assert made(0o7777, read) == ALLOW
        assert made(0o7777, 0o200000) == ALLOW


@pytest.mark.requirement("security.sandbox.set-group-id")
@pytest.mark.parametrize(("kind", "machine"), BOTH)
def test_a_mode_in_memory_is_asked_for_in_another_way(kind: FilterKind, machine: str) -> None:
    known = MACHINES[machine]
    shared = filter_program(kind, machine, sets_group_ids=True)
    assert call(kind, machine, "openat2") == ENOSYS
    assert decide(shared, known.audit_arch, known.numbers["openat2"], ()) == ALLOW


@pytest.mark.requirement("security.sandbox.pairs")
@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize("name", ["socket", "socketpair"])
def test_without_network_only_connected_sockets_of_the_machine_are_made(
    machine: str, name: str
) -> None:
    cloexec, unix, inet = 0o2000000, 1, 2

    assert call("restricted", machine, name, unix, 1 | cloexec) == ALLOW
    assert call("restricted", machine, name, unix, 5) == ALLOW
    # A datagram socket needs no `connect`; 3 is another name for one.
    assert call("restricted", machine, name, unix, 2) == EPERM
    assert call("restricted", machine, name, unix, 3) == EPERM
    assert call("restricted", machine, name, inet, 1) == EPERM


@pytest.mark.requirement("security.sandbox.families")
@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize("name", ["socket", "socketpair"])
def test_with_the_network_only_its_own_kinds_of_sockets_are_made(machine: str, name: str) -> None:
    unix, inet, inet6, netlink, route, audit, datagram = 1, 2, 10, 16, 0, 9, 2

    allowed = {
        family
        for family in range(64)
        if call("open", machine, name, family, datagram, route) == ALLOW
    }
    assert allowed == {unix, inet, inet6, netlink}
    assert call("open", machine, name, inet, datagram, 17) == ALLOW
    assert call("open", machine, name, netlink, datagram, audit) == EPERM
    assert call("open", machine, name, 1 << 32 | 40, datagram) == EPERM


@pytest.mark.parametrize("machine", ARCHES)
def test_the_network_is_there_or_not(machine: str) -> None:
    assert call("open", machine, "connect") == ALLOW
    assert call("restricted", machine, "connect") == EPERM


def test_numbers_are_those_of_this_kernel() -> None:
    headers = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"}
    machine = platform.machine()
    try:
        with open(headers.get(machine, "")) as file:
            lines = [line.split() for line in file if line.startswith("#define __NR_")]
    except OSError:
        # Not every machine has them; the kernel is asked below in any case.
        lines = []
    known = MACHINES[machine].numbers
    listed = {line[1].removeprefix("__NR_"): int(line[2]) for line in lines}

    assert {name: listed.get(name, number) for name, number in known.items()} == known


@pytest.mark.parametrize(("kind", "inet"), [("restricted", "PermissionError"), ("open", "fine")])
def test_the_kernel_takes_them(kind: FilterKind, inet: str) -> None:
    script = (
        "import socket\n"
        "try:\n    socket.socket(); print('fine')\n"
        "except OSError as error:\n    print(type(error).__name__)\n"
    )
    fd = os.memfd_create("filter")
    try:
        os.write(fd, filter_program(kind, platform.machine()))
        os.lseek(fd, 0, os.SEEK_SET)
        done = subprocess.run(
            [
                *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--seccomp", str(fd), "--"),
                *(sys.executable, "-I", "-S", "-c", script),
            ],
            pass_fds=[fd],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        os.close(fd)
    assert done.stdout == f"{inet}\n"
