"""
System call numbers of each supported architecture.

The tables hold the calls that seccomp filters compare and those that the init program makes.
They also hold the calls in which a process may wait for terminal input.
"""

from typing import NamedTuple

__all__ = ["MACHINES", "Machine"]


class Machine(NamedTuple):
    """Facts of one architecture."""

    audit_arch: int
    """`AUDIT_ARCH_…` value, which a seccomp filter sees."""
    numbers: dict[str, int]
    """System call numbers by name."""
    has_x32: bool = False
    """True if the kernel may accept x32 system calls."""


# From number 424 on, all system calls have the same number on every architecture.
_COMMON = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "close_range": 436,
    "pidfd_getfd": 438,
    "epoll_pwait2": 441,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}

MACHINES = {
    "x86_64": Machine(
        audit_arch=0xC000003E,
        has_x32=True,
        numbers=_COMMON
        | {
            "read": 0,
            "write": 1,
            "close": 3,
            "poll": 7,
            "rt_sigaction": 13,
            "rt_sigprocmask": 14,
            "ioctl": 16,
            "readv": 19,
            "select": 23,
            "nanosleep": 35,
            "socket": 41,
            "connect": 42,
            "accept": 43,
            "sendto": 44,
            "sendmsg": 46,
            "recvmsg": 47,
            "shutdown": 48,
            "bind": 49,
            "listen": 50,
            "getsockname": 51,
            "getpeername": 52,
            "socketpair": 53,
            "setsockopt": 54,
            "getsockopt": 55,
            "clone": 56,
            "execve": 59,
            "kill": 62,
            "fcntl": 72,
            "ptrace": 101,
            "setsid": 112,
            "pivot_root": 155,
            "prctl": 157,
            "mount": 165,
            "umount2": 166,
            "restart_syscall": 219,
            "exit_group": 231,
            "epoll_wait": 232,
            "waitid": 247,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "openat": 257,
            "unlinkat": 263,
            "pselect6": 270,
            "ppoll": 271,
            "unshare": 272,
            "epoll_pwait": 281,
            "accept4": 288,
            "signalfd4": 289,
            "dup3": 292,
            "perf_event_open": 298,
            "recvmmsg": 299,
            "prlimit64": 302,
            "open_by_handle_at": 304,
            "sendmmsg": 307,
            "setns": 308,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "kcmp": 312,
            "seccomp": 317,
            "bpf": 321,
            "userfaultfd": 323,
        },
    ),
    "aarch64": Machine(
        audit_arch=0xC00000B7,
        numbers=_COMMON
        | {
            "epoll_pwait": 22,
            "dup3": 24,
            "fcntl": 25,
            "ioctl": 29,
            "unlinkat": 35,
            "umount2": 39,
            "mount": 40,
            "pivot_root": 41,
            "openat": 56,
            "close": 57,
            "read": 63,
            "write": 64,
            "readv": 65,
            "pselect6": 72,
            "ppoll": 73,
            "signalfd4": 74,
            "exit_group": 94,
            "waitid": 95,
            "unshare": 97,
            "nanosleep": 101,
            "ptrace": 117,
            "restart_syscall": 128,
            "kill": 129,
            "rt_sigaction": 134,
            "rt_sigprocmask": 135,
            "setsid": 157,
            "prctl": 167,
            "socket": 198,
            "socketpair": 199,
            "bind": 200,
            "listen": 201,
            "accept": 202,
            "connect": 203,
            "getsockname": 204,
            "getpeername": 205,
            "sendto": 206,
            "setsockopt": 208,
            "getsockopt": 209,
            "shutdown": 210,
            "sendmsg": 211,
            "recvmsg": 212,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "clone": 220,
            "execve": 221,
            "perf_event_open": 241,
            "accept4": 242,
            "recvmmsg": 243,
            "prlimit64": 261,
            "open_by_handle_at": 265,
            "setns": 268,
            "sendmmsg": 269,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "kcmp": 272,
            "seccomp": 277,
            "bpf": 280,
            "userfaultfd": 282,
        },
    ),
}
"""By the name that `uname -m` prints."""
