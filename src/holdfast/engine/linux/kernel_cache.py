"""
Path look-ups that never block: answers that the kernel has in memory.

`RESOLVE_CACHED` resolves a path, links included, from the kernel's caches only. It fails with
`EAGAIN` where a file system would have to be asked. `AT_STATX_DONT_SYNC` then returns the
cached attributes. Only local file systems count: the cache of a network file system may be
stale, and its next call may never return.

Python's `os` has neither call, so ctypes makes them.
"""

import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

from holdfast.engine.linux.openat2 import (
    AT_FDCWD,
    OPEN_HOW_BYTES,
    OPENAT2,
    RESOLVE_CACHED,
    RESOLVE_NO_SYMLINKS,
    OpenHow,
)

__all__ = [
    "AT_EMPTY_PATH",
    "AT_FDCWD",
    "AT_STATX_DONT_SYNC",
    "AT_SYMLINK_NOFOLLOW",
    "BIRTH",
    "LOCAL_KINDS",
    "NO_LINK",
    "THE_LINK_ITSELF",
    "WHAT_IT_LEADS_TO",
    "CachedLookup",
    "StatxFields",
    "is_on_this_machine",
    "look",
    "mount_changes",
    "open_cached",
    "recall",
]

AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000
AT_STATX_DONT_SYNC = 0x4000
# STATX_BASIC_STATS, STATX_BTIME and STATX_MNT_ID.
_WANTED = 0x1FFF
BIRTH = 0x800
"""Mask bit (STATX_BTIME): the time of birth is known."""
_MOUNT = 0x1000
# A `struct statx`, as bytes.
_Statx = ctypes.c_char * 256

_MOUNTINFO: Final = "/proc/self/mountinfo"

LOCAL_KINDS: Final = frozenset(
    {"bcachefs", "btrfs", "devtmpfs", "erofs", "ext2", "ext3", "ext4", "f2fs"}
    | {"overlay", "ramfs", "squashfs", "tmpfs", "xfs", "zfs"}
)
"""File systems of this machine, whose calls always return."""

# Their files change through this kernel only, so its cache is always right.
_LOCAL = frozenset(map(str.encode, LOCAL_KINDS))


# Seconds between two checks for changes of the mounts: each look is a system call.
_FRESH = 0.01


class CachedLookup(OpenHow):
    """Prepared arguments of `openat2` for a cached look-up."""

    __slots__ = ()

    def __init__(self, flags: int, *, links: bool = True) -> None:
        """`links` is False if the look-up fails at a symbolic link instead of following it."""
        super().__init__(flags, RESOLVE_CACHED | (0 if links else RESOLVE_NO_SYMLINKS))


# O_PATH: needs no permission on the file and touches no device.
THE_LINK_ITSELF = CachedLookup(os.O_PATH | os.O_NOFOLLOW)
WHAT_IT_LEADS_TO = CachedLookup(os.O_PATH)
NO_LINK = CachedLookup(os.O_PATH, links=False)

_statx = ctypes.CDLL(None, use_errno=True).statx
# `PyDLL` keeps the GIL: these calls never block, and releasing it would cost more than the call.
_at_once = ctypes.PyDLL(None, use_errno=True)
_openat2_at_once, _statx_at_once = _at_once.syscall, _at_once.statx

# Of `struct statx`: mask; mode, inode and size; birth, change and modification in seconds and
# nanoseconds; mount.
_fields = struct.Struct("=I24xH2xQQ32xqI4xqI4xqI20xQ").unpack_from


class StatxFields(NamedTuple):
    """The fields of a `struct statx` that are needed here."""

    mask: int
    mode: int
    inode: int
    size: int
    born: int
    born_ns: int
    changed: int
    changed_ns: int
    modified: int
    modified_ns: int
    mount: int
    """The mount id; valid only if the mask has `_MOUNT`."""


def look(folder: int, name: bytes, flags: int) -> StatxFields:
    """
    Call `statx`; only with `AT_STATX_DONT_SYNC` it is certain not to block.

    Raises:
        OSError: The error of the kernel.
    """
    raw = _Statx()
    call = _statx_at_once if flags & AT_STATX_DONT_SYNC else _statx
    if call(folder, name, flags, _WANTED, raw) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return StatxFields._make(_fields(raw))


def open_cached(name: bytes, how: CachedLookup) -> int | None:
    """
    Open a path that is in the caches; `None` if that cannot be done without waiting.

    Raises:
        FileNotFoundError: The kernel remembers that there is no such file.
        ValueError: The path has a NUL.
    """
    # A number: `in` tries to convert bytes to one first, which takes four times as long.
    if 0 in name:
        # ctypes would pass only the part before the NUL, which is another file.
        raise ValueError("embedded null byte")
    descriptor: int = _openat2_at_once(OPENAT2, AT_FDCWD, name, how.reference, OPEN_HOW_BYTES)
    if descriptor >= 0:
        return descriptor
    if ctypes.get_errno() == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(name))
    # EAGAIN: a file system would have to be asked. Old kernels (ENOSYS), strict containers (EPERM)
    # and all other errors end here too; a thread repeats the call and reports the error.
    return None


def recall(name: bytes, how: CachedLookup) -> StatxFields | None:
    """
    Return the cached attributes of a path on a local file system; None if they are not cached.

    Raises:
        FileNotFoundError: The kernel has cached that there is no such file.
        ValueError: The path has a NUL.
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


class _ChangeCounter:
    """Number of the changes of this process's mounts, as signalled by the kernel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._poll: Callable[[int], list[tuple[int, int]]] | None = None
        self._descriptor = -1
        self._count = 0

    def count(self) -> int | None:
        """
        Return a number that grows with each change of this process's mounts.

        None if the kernel cannot be asked: no descriptor is left, or there is no `/proc`.
        """
        with self._lock:
            if self._poll is None and not self._open():
                return None
            # `_open` has returned True.
            assert self._poll is not None
            self._count += bool(self._poll(0))
            return self._count

    def forget(self) -> None:
        """Drop the descriptor of a parent process, which would take the parent's signals."""
        self._lock = threading.Lock()
        self._poll = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> bool:
        try:
            # Open as long as this process lives.
            self._descriptor = os.open(_MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLPRI)
        self._poll = poll.poll
        # Invalidates what was read before.
        self._count += 1
        return True


_changes: Final = _ChangeCounter()
os.register_at_fork(after_in_child=_changes.forget)

mount_changes: Final = _changes.count


class _LocalMounts:
    """The mounts of this process by id, each local or not."""

    # Mount ids are reused after an unmount, so the table is dropped whenever the list of mounts
    # changes. Mounts of other namespaces, reached through `/proc`, are not in it.
    def __init__(self) -> None:
        self._local: dict[int, bool] = {}
        self._changes: int | None = None
        self._looked = -_FRESH

    def is_local(self, mount: int) -> bool:
        now = monotonic()
        if now - self._looked >= _FRESH:
            changes = mount_changes()
            if changes is None:
                return False
            self._looked = now
            if changes != self._changes:
                self._local.clear()
                self._changes = changes
        known = self._local.get(mount)
        # Looked up once per mount and table.
        if known is None:
            known = self._local[mount] = _is_local(mount)
        return known


_table = _LocalMounts()


def _is_local(mount: int) -> bool:
    """Look the mount up in mountinfo, which queries no file system."""
    try:
        with open(_MOUNTINFO, "rb") as lines:
            for line in lines:
                head, _, tail = line.partition(b" - ")
                if int(head.split(b" ", 1)[0]) == mount:
                    return tail.split(b" ", 1)[0] in _LOCAL
    except OSError:
        # No descriptor is left.
        pass
    return False
