"""
Tools of an attempt where it runs.

The text of this file goes in front of each attempt, and a bare interpreter runs the two. So it
imports nothing but the standard library, and nothing of that which is slow to load.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

TYPE_CHECKING = False  # to import them would double what an attempt costs
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)

X86 = os.uname().machine == "x86_64"

NUMBERS = {
    # name: (x86_64, aarch64)
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fsmount": (432, 432),
    "fsconfig": (431, 431),
    "fsopen": (430, 430),
    "getpid": (39, 172),
    "io_uring_setup": (425, 425),
    "ioprio_set": (251, 30),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "reboot": (169, 142),
    "renameat2": (316, 276),
    "request_key": (249, 218),
    "semget": (64, 190),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "shmat": (30, 196),
    "shmget": (29, 194),
    "socket": (41, 198),
    "swapon": (167, 224),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}

AT_FDCWD = -100

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2


class Ground:
    """Paths that an attempt may go for, and facts about the world outside."""

    base: str
    """Holds all the others; readable, not writable."""
    work: str
    """The workspace: where the attempt starts, with a `.git` and without the other names."""
    linked: str
    """A second workspace, whose `.git` is a file that names `store/repo` below it."""
    extra: str
    """A third one, with nothing but a link."""
    dangling: str
    """A fourth, whose `.git` names a directory below it that is not there."""
    outside: str
    """Readable, not writable."""
    file: str
    """In `outside`."""
    secret: str
    """In `work`, in a directory that the profile `guarded` denies."""
    frozen: str
    """In `work`, in a directory that the profile `guarded` keeps from being written."""
    planted: str
    """A directory of programs that somebody put in the way of others."""
    outsider: dict[str, Any]
    """The process beside: where it listens and what it holds (outsider.py)."""
    special: dict[str, str]
    """Files that only root can prepare; empty otherwise."""
    handle: list[Any]
    """The file handle of `secret`: its type and its bytes in hexadecimal; empty if it has none."""

    def __init__(self, **paths: Any) -> None:
        self.__dict__.update(paths)


class Blocked(Exception):
    """The attempt failed, though no call told so."""


def syscall(name: str, *arguments: Any) -> int:
    """Make a system call by its own name, past every wrapper."""
    return numbered(NUMBERS[name][0 if X86 else 1], *arguments)


def numbered(number: int, *arguments: Any) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    result = int(LIBC.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def reaches(call: Callable[[], object], *answers: int) -> None:
    """Make a call that is malformed on purpose: these answers come from behind all checks."""
    try:
        call()
    except OSError as error:
        if error.errno not in answers:
            raise


def append(path: str, text: bytes = b"x") -> None:
    """Write to the end of a file that exists."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


def open_for_writing(path: str) -> None:
    """Open something that exists for writing, and write nothing."""
    os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))


def may_write(path: str) -> None:
    """Ask whether something could be written, and leave it alone."""
    ctypes.set_errno(0)
    if LIBC.access(os.fsencode(path), os.W_OK) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def make(path: str) -> None:
    """Create a file."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def link_descriptor(fd: int, path: str) -> None:
    """Give an open file a name; Python's own `link` does not follow the link of a descriptor."""
    source = os.fsencode(f"/proc/self/fd/{fd}")
    ctypes.set_errno(0)
    if LIBC.linkat(AT_FDCWD, source, AT_FDCWD, os.fsencode(path), 0x400) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def read(path: str) -> bytes:
    """Read a file that is not empty."""
    with open(path, "rb") as file:
        content = file.read()
    if not content:
        raise Blocked("it is empty")
    return content


def own_namespaces(at: Ground, flags: int = CLONE_NEWNS) -> None:
    """
    Become root in a user namespace with other namespaces of its own, where that can be.

    Whoever may not goes on without: it may be that nobody forbids what comes next. But
    never in the namespaces of the host, where it would be no attempt any more.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        syscall("unshare", CLONE_NEWUSER | flags)
        for name, text in [
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ]:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError:  # what suppresses it is slow to load
        pass
    for name, flag in (("mnt", CLONE_NEWNS), ("uts", CLONE_NEWUTS)):
        theirs = at.outsider["namespaces"][name]
        if flags & flag and os.readlink(f"/proc/self/ns/{name}") == theirs:
            raise Blocked("still in the namespaces of the host")


def mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    def word(text: str | None) -> ctypes.c_char_p:
        return ctypes.c_char_p(None if text is None else os.fsencode(text))

    syscall("mount", word(source), word(target), word(kind), flags, None)


def in_a_child(what: Callable[[], object]) -> None:
    """Do it in a child, as a signal may kill whoever does it; what it raises is raised here."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            what()
        except OSError as error:
            code = error.errno or 255
        os.write(sending, bytes([code]))
        os._exit(0)
    os.close(sending)
    told = os.read(receiving, 1)
    os.close(receiving)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        raise Blocked(f"signal {os.WTERMSIG(status)}")
    if told[0]:
        raise OSError(told[0], os.strerror(told[0]))


def a_child_that_waits() -> tuple[int, Callable[[], None]]:
    """A child, and how to end it."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(sending)
        os.read(receiving, 1)
        os._exit(0)
    os.close(receiving)

    def end() -> None:
        os.close(sending)
        os.waitpid(pid, 0)

    return pid, end


def run(*argv: str, env: dict[str, str] | None = None) -> int:
    """Run a program with the output thrown away; its exit code."""
    null = os.open("/dev/null", os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (1, 2)]
    environment = dict(os.environ) if env is None else env
    pid = os.posix_spawnp(argv[0], list(argv), environment, file_actions=actions)
    os.close(null)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def status_of(pid: int | str, field: str) -> str:
    """A line of `/proc/PID/status`."""
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == field:
                return value.strip()
    raise Blocked(f"no {field}")


def send_message(
    fd: int, data: bytes, *, address: bytes = b"", descriptor: int | None = None
) -> None:
    """`sendmsg(2)` itself: Python's own asks the socket things that a filter refuses."""

    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    class Message(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_char_p),
            ("name_length", ctypes.c_uint32),
            ("vectors", ctypes.POINTER(Vector)),
            ("vector_count", ctypes.c_size_t),
            ("control", ctypes.c_char_p),
            ("control_length", ctypes.c_size_t),
            ("flags", ctypes.c_int),
        )

    text = ctypes.create_string_buffer(data, len(data))
    vector = Vector(ctypes.cast(text, ctypes.c_void_p), len(data))
    control = b""
    if descriptor is not None:
        # SOL_SOCKET, SCM_RIGHTS, and the descriptor, padded to eight bytes.
        control = struct.pack("=Qiiii", 20, 1, 1, descriptor, 0)
    message = Message(
        address or None,
        len(address),
        ctypes.pointer(vector),
        1,
        control or None,
        len(control),
        0,
    )
    ctypes.set_errno(0)
    if LIBC.sendmsg(fd, ctypes.byref(message), 0) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def unix_address(name: str) -> bytes:
    """A socket's path as the system takes it; a name that begins with `@` is abstract."""
    raw = os.fsencode(name)
    raw = b"\0" + raw[1:] if raw.startswith(b"@") else raw + b"\0"
    return struct.pack("=H", 1) + raw


def main(attempt: Callable[[Ground], object]) -> None:
    """Make the attempt, and print one line: `THROUGH`, or `BLOCKED` and by what."""
    ground = Ground(**eval(sys.argv[1], {}))  # a literal, made by the harness
    try:
        attempt(ground)
    except OSError as error:
        verdict = f"BLOCKED {errno.errorcode.get(error.errno or 0, error)}"
    except Blocked as reason:
        verdict = f"BLOCKED {reason}"
    else:
        verdict = "THROUGH"
    os.write(1, f"\n{verdict}\n".encode())
