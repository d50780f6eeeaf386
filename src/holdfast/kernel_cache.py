"""
Look-ups of paths that never wait: answers that the kernel has in memory.

`RESOLVE_CACHED` looks a path up in the kernel's caches only, links included, and fails with
`EAGAIN` where a file system would have to be asked. `AT_STATX_DONT_SYNC` then takes what is
known of the file. Only file systems of this machine count: what one of the network remembers
may be out of date, and its next call may never return.

The calls are not in Python's `os`, nor is the time of birth; ctypes is enough for two.
"""

import ctypes
import errno
import os
import select
import struct
from typing import NamedTuple

__all__ = [
    "AT_EMPTY_PATH",
    "AT_FDCWD",
    "AT_STATX_DONT_SYNC",
    "AT_SYMLINK_NOFOLLOW",
    "BIRTH",
    "NO_LINK",
    "THE_LINK_ITSELF",
    "WHAT_IT_LEADS_TO",
    "Facts",
    "How",
    "is_on_this_machine",
    "look",
    "open_cached",
    "recall",
]

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000
AT_STATX_DONT_SYNC = 0x4000
# All basic facts, the time of birth and the mount.
_WANTED = 0x1FFF
BIRTH = 0x800
"""In a mask: the time of birth is known."""
_MOUNT = 0x1000
# The number of the system call; the same on every architecture.
_OPENAT2 = 437

_RESOLVE_CACHED = 0x20
_RESOLVE_NO_SYMLINKS = 0x04
# A `struct statx`, as bytes.
_Statx = ctypes.c_char * 256

# File systems whose files change through this kernel only, so it knows them.
_LOCAL = frozenset(
    {b"bcachefs", b"btrfs", b"devtmpfs", b"erofs", b"ext2", b"ext3", b"ext4", b"f2fs"}
    | {b"overlay", b"ramfs", b"squashfs", b"tmpfs", b"xfs", b"zfs"}
)


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


class How:
    """A way to open a path from the caches."""

    __slots__ = ("_how", "reference")

    def __init__(self, flags: int, *, links: bool = True) -> None:
        """`links`: whether links on the way are followed; otherwise nothing is known of them."""
        resolve = _RESOLVE_CACHED if links else _RESOLVE_CACHED | _RESOLVE_NO_SYMLINKS
        self._how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
        self.reference = ctypes.byref(self._how)


# Only to look at: no permission is needed, no device is touched.
THE_LINK_ITSELF = How(os.O_PATH | os.O_NOFOLLOW)
WHAT_IT_LEADS_TO = How(os.O_PATH)
NO_LINK = How(os.O_PATH, links=False)

_HOW_BYTES = ctypes.sizeof(_OpenHow)

_statx = ctypes.CDLL(None, use_errno=True).statx
# Calls that never wait need not let other threads run meanwhile.
_at_once = ctypes.PyDLL(None, use_errno=True)
_openat2_at_once, _statx_at_once = _at_once.syscall, _at_once.statx

# Of `struct statx`: mask; mode and size; birth and modification in seconds and nanoseconds; mount.
_fields = struct.Struct("=I24xH10xQ32xqI4x16xqI20xQ").unpack_from


class Facts(NamedTuple):
    """The fields of a `struct statx` that are needed here."""

    mask: int
    mode: int
    size: int
    born: int
    born_ns: int
    modified: int
    modified_ns: int
    mount: int
    """Means something only if the mask says so."""


def look(folder: int, name: bytes, flags: int) -> Facts:
    """
    Call `statx`. With `AT_STATX_DONT_SYNC` it does not wait, otherwise it may.

    Raises:
        OSError: As the kernel says.
    """
    raw = _Statx()
    call = _statx_at_once if flags & AT_STATX_DONT_SYNC else _statx
    if call(folder, name, flags, _WANTED, raw) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return Facts._make(_fields(raw))


def open_cached(name: bytes, how: How) -> int | None:
    """
    Open a path that is in the caches; `None` if that cannot be done without waiting.

    Raises:
        FileNotFoundError: The kernel remembers that there is no such file.
    """
    descriptor: int = _openat2_at_once(_OPENAT2, AT_FDCWD, name, how.reference, _HOW_BYTES)
    if descriptor >= 0:
        return descriptor
    if ctypes.get_errno() == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(name))
    # EAGAIN: it would have to look. Old kernels and strict containers end here
    # too, as does every other error: a thread finds out what it is.
    return None


def recall(name: bytes, how: How) -> Facts | None:
    """
    Return what the kernel remembers of a path on a file system of this machine.

    Raises:
        FileNotFoundError: It remembers that there is no such file.
    """
    descriptor = open_cached(name, how)
    if descriptor is None:
        return None
    try:
        facts = look(descriptor, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return facts if facts.mask & _MOUNT and _table.is_local(facts.mount) else None


def is_on_this_machine(descriptor: int) -> bool:
    """Return True if an open file is on a file system of this machine."""
    try:
        facts = look(descriptor, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC)
    except OSError:
        return False
    return bool(facts.mask & _MOUNT) and _table.is_local(facts.mount)


class _MountTable:
    """
    The mounts of this process, by number, and whether each is of this machine.

    A number is given to another mount after an unmount, so all is forgotten when the list of
    mounts has changed. A mount of another namespace, reached through `/proc`, is not in it.
    """

    def __init__(self) -> None:
        self._local: dict[int, bool] = {}
        self._changes: select.epoll | None = None

    def is_local(self, mount: int) -> bool:
        if self._changes is None and not self._open():
            return False
        assert self._changes is not None  # it was opened just now
        if self._changes.poll(0):
            self._local.clear()
        known = self._local.get(mount)
        if known is None:
            known = self._local[mount] = _is_local(mount)
        return known

    def _open(self) -> bool:
        try:
            # Both stay open as long as this process lives.
            mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False  # no descriptor is left, or there is no /proc
        try:
            changes = select.epoll()
            changes.register(mounts, select.EPOLLPRI)
        except OSError:
            os.close(mounts)
            return False
        self._changes = changes
        return True


_table = _MountTable()


def _is_local(mount: int) -> bool:
    """Look into the kernel's list, which asks no file system."""
    try:
        with open("/proc/self/mountinfo", "rb") as lines:
            for line in lines:
                head, _, tail = line.partition(b" - ")
                if int(head.split(b" ", 1)[0]) == mount:
                    return tail.split(b" ", 1)[0] in _LOCAL
    except OSError:
        pass  # no descriptor is left
    return False
