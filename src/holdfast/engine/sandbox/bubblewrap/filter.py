"""
Builds seccomp filters: BPF programs as bytes for the kernel [sandbox.seccomp].

A filter lists the system calls that fail with EPERM and allows all others. An error lets a program
report the problem, where a kill would not. Both kinds of filters refuse access to other processes,
nested namespaces and rarely used parts of the kernel. `restricted` also refuses the network. This
module loads nothing.
"""

import errno
import struct
from collections.abc import Mapping
from functools import cache
from typing import Literal

from holdfast.engine.linux.syscall_numbers import MACHINES

__all__ = ["FilterKind", "filter_program"]

FilterKind = Literal["restricted", "open"]
"""Filter without network access, or with it."""

_ALWAYS_REFUSED = (
    # Other processes: their memory, their registers, their descriptors.
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "kcmp",
    # A second way to make system calls, which no filter sees.
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    # Keys belong to the user, not to the sandbox.
    "add_key",
    "request_key",
    "keyctl",
    # Large parts of the kernel that commands do not need.
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "open_by_handle_at",
    # Mounts are the sandbox.
    "mount",
    "umount2",
    "pivot_root",
    "setns",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
)

# `sendmsg` and `recvmsg` stay allowed: programs use them on socket pairs. So does `sendto` without
# an address, which is what the C library makes of `send`.
_NETWORK_REFUSED = (
    "connect",
    "accept",
    "accept4",
    "bind",
    "listen",
    "getpeername",
    "getsockname",
    "shutdown",
    "sendmmsg",
    "recvmmsg",
    "getsockopt",
    "setsockopt",
)

# All `CLONE_NEW…` flags of `clone` but for CLONE_NEWTIME.
_NEW_NAMESPACES = 0x7E020000
# CLONE_NEWTIME works with `unshare` only: for `clone` this bit is a part of the exit signal.
_NEW_TIME_NAMESPACE = 0x80

# Puts bytes into the input of a terminal, which the shell outside would then execute.
_TIOCSTI = 0x5412
# Pastes the selection into a virtual console, with the same effect.
_TIOCLINUX = 0x541C
# Make a snapshot of a btrfs subvolume, in both forms. Snapshots ignore mounts, so one in a writable
# directory would have the denied files without their masks.
_BTRFS_SNAPSHOT = 0x50009401
_BTRFS_SNAPSHOT_V2 = 0x50009417
# Removes a subvolume by its number, wherever it is.
_BTRFS_REMOVE_V2 = 0x5000943F
# Make a subvolume of bcachefs, which a flag in memory makes a snapshot, in both forms.
_BCACHEFS_SUBVOLUME = 0x4020BC10
_BCACHEFS_SUBVOLUME_V2 = 0x4030BC1D

# Set a lease on a file or a delegation on a directory, which only takes a descriptor for reading.
# Other programs that open it are then delayed for 45 seconds at a time.
_F_SETLEASE = 1024
_F_SETDELEG = 1040

# S_ISUID and S_ISGID. In a workspace that others can enter, they would run a program as the user of
# the server, or with its group. A new file can have them, too, and loses the first one with the
# first write. It keeps the other until its group may execute it, which an access control list
# can change.
_SET_USER_ID = 0o4000
_SET_GROUP_ID = 0o2000
# Calls that set the mode of a file, with the number of that argument. `chmod` is not on aarch64.
_MODE_CALLS = (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2))
# Calls that create a file with a mode, likewise; those that only do so with a flag, with both.
_CREATING_CALLS = (("creat", 1), ("mknod", 1), ("mknodat", 2))
_OPENING_CALLS = (("open", 1, 2), ("openat", 2, 3))
# O_CREAT, and O_TMPFILE without its O_DIRECTORY.
_CREATES = 0o20000100

_REFUSED_CONTROLS = (
    _TIOCSTI,
    _TIOCLINUX,
    _BTRFS_SNAPSHOT,
    _BTRFS_SNAPSHOT_V2,
    _BTRFS_REMOVE_V2,
    _BCACHEFS_SUBVOLUME,
    _BCACHEFS_SUBVOLUME_V2,
)

_AF_UNIX = 1
_AF_INET = 2
_AF_INET6 = 10
_AF_NETLINK = 16
_NETLINK_ROUTE = 0
_SOCK_STREAM = 1
_SOCK_SEQPACKET = 5
_SOCK_TYPE_MASK = 0xF

# Set in the numbers of x32 system calls, which no list here has.
_X32_BIT = 0x40000000

# Opcodes of classic BPF.
_LOAD_WORD = 0x20
_AND = 0x54
_JUMP_EQUAL = 0x15
_JUMP_SET = 0x45
_RETURN = 0x06

# Offsets in `struct seccomp_data`. BPF loads 32 bits, so only the low half of an argument.
_NUMBER_AT = 0
_ARCH_AT = 4
_ARGS_AT = 16

# SECCOMP_RET_… values; the low 16 bits of an error are the errno.
_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN_CALL = 0x00050000 | errno.ENOSYS
# SECCOMP_RET_USER_NOTIF: asks the process that holds the listener descriptor.
_NOTIFY = 0x7FC00000


# A server needs a handful of filters, each for many commands.
@cache
def filter_program(
    kind: FilterKind,
    machine: str,
    *,
    notifies: bool = False,
    shares_group: bool = False,
    sets_group_ids: bool = False,
) -> bytes:
    """
    Return a filter as an array of `struct sock_filter`.

    Args:
        kind: Without network access, or with it.
        machine: Architecture, as `uname -m` prints it.
        notifies: True to send a seccomp notification for each attempt to open an internet socket.
            The listener refuses it; without a listener the call fails with ENOSYS.
        shares_group: True if processes outside the sandbox may be in the command's process group.
            The filter then refuses `kill(0)`, the only way to signal that group.
        sets_group_ids: True to allow the set-group-ID bit, which directories of a group have.

    Raises:
        KeyError: The system call numbers of this architecture are not known.
    """
    known = MACHINES[machine]
    number = known.numbers
    code = [
        # First of all: 32-bit programs use other numbers, so all checks below would be wrong.
        _load(_ARCH_AT),
        _op(_JUMP_EQUAL, known.audit_arch, 1, 0),
        _op(_RETURN, _KILL_PROCESS),
        _load(_NUMBER_AT),
    ]
    # x32 has its own numbers, so it would bypass all checks below.
    if known.has_x32:
        code += [_op(_JUMP_SET, _X32_BIT, 0, 1), _op(_RETURN, _REFUSE)]
    if not sets_group_ids:
        code += _refuse_group_ids(number)
    names = _ALWAYS_REFUSED + (_NETWORK_REFUSED if kind == "restricted" else ())
    for name in names:
        code += _when(number[name], [_op(_RETURN, _REFUSE)])
    # The flags of `clone3` are in memory, which a filter cannot read. ENOSYS makes the C
    # library fall back to `clone`.
    code += _when(number["clone3"], [_op(_RETURN, _UNKNOWN_CALL)])
    code += _when(number["clone"], _refuse_flags(0, _NEW_NAMESPACES))
    code += _when(number["unshare"], _refuse_flags(0, _NEW_NAMESPACES | _NEW_TIME_NAMESPACE))
    bits = _SET_USER_ID if sets_group_ids else _SET_USER_ID | _SET_GROUP_ID
    for name, mode in _MODE_CALLS:
        if name in number:
            code += _when(number[name], _refuse_flags(mode, bits))
    code += _when(number["ioctl"], _refuse_values(1, *_REFUSED_CONTROLS))
    code += _when(number["fcntl"], _refuse_values(1, _F_SETLEASE, _F_SETDELEG))
    # The leader of the group is outside the pid namespace, so `kill(0)` is the only way to address
    # the group.
    if shares_group:
        code += _when(number["kill"], _refuse_values(0, 0))
    if kind == "restricted":
        code += _when(number["sendto"], _without_address(4))
        code += _when(number["socket"], _only_connected_unix(_NOTIFY if notifies else _REFUSE))
        code += _when(number["socketpair"], _only_connected_unix(_REFUSE))
    else:
        code += _when(number["socket"], _only_common_families())
        code += _when(number["socketpair"], _only_common_families())
    code.append(_op(_RETURN, _ALLOW))
    return b"".join(code)


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _op(_LOAD_WORD, offset)


def _argument(index: int) -> bytes:
    return _load(_ARGS_AT + 8 * index)


def _when(number: int, block: list[bytes]) -> list[bytes]:
    """
    Return code that runs a block for one system call.

    Every path through a block returns, so the number is still loaded for the next comparison.
    """
    return [_op(_JUMP_EQUAL, number, 0, len(block)), *block]


def _refuse_flags(index: int, flags: int) -> list[bytes]:
    """Return a block that refuses a call if an argument has any of these bits."""
    return [
        _argument(index),
        _op(_JUMP_SET, flags, 0, 1),
        _op(_RETURN, _REFUSE),
        _op(_RETURN, _ALLOW),
    ]


def _refuse_group_ids(number: Mapping[str, int]) -> list[bytes]:
    """
    Return code that refuses new files with the set-group-ID bit.

    It comes first, as no other call with a checked argument is as frequent as `openat`.
    """
    code: list[bytes] = []
    for name, flags, mode in _OPENING_CALLS:
        if name in number:
            # Without such a flag, the register of the mode may hold anything.
            creates = [_argument(flags), _op(_JUMP_SET, _CREATES, 1, 0), _op(_RETURN, _ALLOW)]
            code += _when(number[name], [*creates, *_refuse_flags(mode, _SET_GROUP_ID)])
    for name, mode in _CREATING_CALLS:
        if name in number:
            code += _when(number[name], _refuse_flags(mode, _SET_GROUP_ID))
    # The mode is in memory. Programs fall back to `openat`, as on an old kernel.
    return code + _when(number["openat2"], [_op(_RETURN, _UNKNOWN_CALL)])


def _refuse_values(index: int, *values: int) -> list[bytes]:
    """Return a block that refuses values of an argument of which the kernel uses 32 bits."""
    block = [_argument(index)]
    for value in values:
        block += [_op(_JUMP_EQUAL, value, 0, 1), _op(_RETURN, _REFUSE)]
    return [*block, _op(_RETURN, _ALLOW)]


def _without_address(index: int) -> list[bytes]:
    """Return a block that refuses any pointer in an argument but NULL."""
    low, high = _ARGS_AT + 8 * index, _ARGS_AT + 8 * index + 4
    return [
        _load(low),
        _op(_JUMP_EQUAL, 0, 0, 2),
        _load(high),
        _op(_JUMP_EQUAL, 0, 1, 0),
        _op(_RETURN, _REFUSE),
        _op(_RETURN, _ALLOW),
    ]


def _only_common_families() -> list[bytes]:
    """
    Return a block that allows Unix, IPv4, IPv6 and NETLINK_ROUTE sockets only.

    The C library asks NETLINK_ROUTE for addresses when it resolves a name. Other families, such
    as AF_VSOCK and AF_PACKET, reach parts of the kernel or the hypervisor.
    """
    return [
        _argument(0),
        _op(_JUMP_EQUAL, _AF_UNIX, 6, 0),
        _op(_JUMP_EQUAL, _AF_INET, 5, 0),
        _op(_JUMP_EQUAL, _AF_INET6, 4, 0),
        _op(_JUMP_EQUAL, _AF_NETLINK, 0, 2),
        _argument(2),
        _op(_JUMP_EQUAL, _NETLINK_ROUTE, 1, 0),
        _op(_RETURN, _REFUSE),
        _op(_RETURN, _ALLOW),
    ]


def _only_connected_unix(internet: int) -> list[bytes]:
    """
    Return a block that allows Unix stream and seqpacket sockets only.

    A Unix datagram socket, also one of a pair, sends data and descriptors to any address with
    `sendmsg`, which has to stay allowed. The other two kinds need `connect`, which is refused.

    Args:
        internet: Return value of the filter for IPv4 and IPv6 sockets.
    """
    return [
        _argument(0),
        _op(_JUMP_EQUAL, _AF_INET, 6, 0),
        _op(_JUMP_EQUAL, _AF_INET6, 5, 0),
        _op(_JUMP_EQUAL, _AF_UNIX, 0, 5),
        _argument(1),
        _op(_AND, _SOCK_TYPE_MASK),
        _op(_JUMP_EQUAL, _SOCK_STREAM, 3, 0),
        _op(_JUMP_EQUAL, _SOCK_SEQPACKET, 2, 1),
        _op(_RETURN, internet),
        _op(_RETURN, _REFUSE),
        _op(_RETURN, _ALLOW),
    ]
