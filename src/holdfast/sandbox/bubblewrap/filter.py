"""
System call filters, as the bytes the kernel loads [sandbox.seccomp].

A filter lists what is refused and lets the rest through; what is refused fails
with EPERM, so that a program can say so. Both kinds close what reaches other
processes, nested namespaces and rarely used parts of the kernel; `restricted`
also closes the network. Pure: nothing here is loaded.
"""

import errno
import struct
from functools import cache
from typing import Literal

from holdfast.sandbox.bubblewrap.init.syscall_numbers import MACHINES

__all__ = ["FilterKind", "filter_program"]

FilterKind = Literal["restricted", "open"]
"""Without the network, or with it."""

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
    # Large parts of the kernel that a command has no business with.
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

_NETWORK_REFUSED = (
    "connect",
    "accept",
    "accept4",
    "bind",
    "listen",
    "getpeername",
    "getsockname",
    "shutdown",
    "sendto",
    "sendmmsg",
    "recvmmsg",
    "getsockopt",
    "setsockopt",
)

_NEW_NAMESPACES = 0x7E020000
"""The flags of `clone` that make a namespace of any kind."""
_NEW_TIME_NAMESPACE = 0x80
"""Of `unshare` only; for `clone` it is part of a signal number."""

_TIOCSTI = 0x5412
"""Types into the terminal, as if a person had."""
_TIOCLINUX = 0x541C
"""Pastes into a console."""

_AF_UNIX = 1
_AF_INET = 2
_AF_INET6 = 10
_AF_NETLINK = 16
_NETLINK_ROUTE = 0
_SOCK_STREAM = 1
_SOCK_SEQPACKET = 5
_SOCK_TYPE_MASK = 0xF

_X32_BIT = 0x40000000

_LOAD_WORD = 0x20
_AND = 0x54
_JUMP_EQUAL = 0x15
_JUMP_SET = 0x45
_RETURN = 0x06
"""Codes of the kernel's packet filter machine."""

_NUMBER_AT = 0
_ARCH_AT = 4
_ARGS_AT = 16
"""Where `struct seccomp_data` has them; the low half of an argument comes first."""

_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN_CALL = 0x00050000 | errno.ENOSYS
_TELL = 0x7FC00000
"""Lets whoever has the descriptor of the filter decide."""


@cache
def filter_program(
    kind: FilterKind, machine: str, *, tells: bool = False, shares_group: bool = False
) -> bytes:
    """
    The filter, as an array of instructions.

    Args:
        kind: Whether it closes the network.
        machine: The processor.
        tells: Whether somebody is to be told of attempts to reach the network, and
            refuses them. If there is nobody, the call fails with ENOSYS.
        shares_group: Whether processes outside of the sandbox may be in the group of the
            command. Then it must not signal its own group, which only `kill(0)` can name.

    Raises:
        KeyError: The numbers of that machine's system calls are not known here.
    """
    known = MACHINES[machine]
    number = known.numbers
    code = [
        # The same number means another call to a 32-bit program.
        _load(_ARCH_AT),
        _op(_JUMP_EQUAL, known.audit_arch, 1, 0),
        _op(_RETURN, _KILL_PROCESS),
        _load(_NUMBER_AT),
    ]
    if known.has_x32:
        code += [_op(_JUMP_SET, _X32_BIT, 0, 1), _op(_RETURN, _REFUSE)]
    names = _ALWAYS_REFUSED + (_NETWORK_REFUSED if kind == "restricted" else ())
    for name in names:
        code += _when(number[name], [_op(_RETURN, _REFUSE)])
    # Its flags are in memory, where a filter cannot look. The C library then uses `clone`.
    code += _when(number["clone3"], [_op(_RETURN, _UNKNOWN_CALL)])
    code += _when(number["clone"], _refuse_flags(_NEW_NAMESPACES))
    code += _when(number["unshare"], _refuse_flags(_NEW_NAMESPACES | _NEW_TIME_NAMESPACE))
    code += _when(number["ioctl"], _refuse_values(1, _TIOCSTI, _TIOCLINUX))
    if shares_group:
        code += _when(number["kill"], _refuse_values(0, 0))
    if kind == "restricted":
        code += _when(number["socket"], _only_connected_unix(_TELL if tells else _REFUSE))
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
    """Run a block for one call; each block ends in a return, so the number stays loaded."""
    return [_op(_JUMP_EQUAL, number, 0, len(block)), *block]


def _refuse_flags(flags: int) -> list[bytes]:
    return [
        _argument(0),
        _op(_JUMP_SET, flags, 0, 1),
        _op(_RETURN, _REFUSE),
        _op(_RETURN, _ALLOW),
    ]


def _refuse_values(index: int, *values: int) -> list[bytes]:
    """By the low half alone: of these arguments the kernel itself looks at no more."""
    block = [_argument(index)]
    for value in values:
        block += [_op(_JUMP_EQUAL, value, 0, 1), _op(_RETURN, _REFUSE)]
    return [*block, _op(_RETURN, _ALLOW)]


def _only_common_families() -> list[bytes]:
    """
    Sockets that the network needs, and of those to the kernel only the one about routes.

    The C library asks there for addresses when it looks up a name. Other families are
    parts of the kernel, or of the machine around it, that a command has no business with.
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
    Sockets of the machine itself, and of those only the kinds that need `connect`.

    A datagram socket sends to any address with `sendmsg`, which cannot be refused:
    data and descriptors would get out. One of a pair can do so too. `internet` is what
    becomes of the families that reach other machines.
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
