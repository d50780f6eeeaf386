"""
Facts about a file, and the content of a small one, without waiting for them where the
kernel has them at hand.

To ask a thread costs ten times what the question itself costs, and to ask in the
event loop could stop everything on a dead mount. The kernel settles it:
`RESOLVE_CACHED` looks a path up in its caches only, links included, and fails with
`EAGAIN` where a file system would have to be asked; `AT_STATX_DONT_SYNC` then takes
what is known of the file, and `RWF_NOWAIT` what is in memory of it. So `cached_metadata`
and `cached_content` never wait, and their "don't know" sends the caller to a thread. A
local path that is in use is nearly always known. What a network file system remembers may
be out of date, so those are always asked.

The first two are not in Python's `os`, nor is the time of birth; ctypes is enough for two.
"""

import ctypes
import errno
import os
import stat
import struct
from typing import NamedTuple

from holdfast.filesystem.failure import refusal
from holdfast.protocol.fs import FileMetadata

__all__ = ["cached_content", "cached_metadata", "metadata", "metadata_of"]

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_AT_EMPTY_PATH = 0x1000
_AT_STATX_DONT_SYNC = 0x4000
_WANTED = 0x1FFF
"""All basic facts, the time of birth and the mount."""
_BIRTH = 0x800
_MOUNT = 0x1000
_OPENAT2 = 437
"""The number of the system call; the same on every architecture."""

_RESOLVE_CACHED = 0x20
_RESOLVE_NO_SYMLINKS = 0x04
_Statx = ctypes.c_char * 256
"""A `struct statx`, as bytes."""


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_HOW_BYTES = ctypes.sizeof(_OpenHow)
# Only to look at: no permission is needed, no device is touched.
_LOOK = os.O_PATH | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_itself = _OpenHow(_LOOK | os.O_NOFOLLOW, 0, _RESOLVE_CACHED)
_target = _OpenHow(_LOOK, 0, _RESOLVE_CACHED)
_no_link = _OpenHow(_LOOK, 0, _RESOLVE_CACHED | _RESOLVE_NO_SYMLINKS)
_content = _OpenHow(_READ, 0, _RESOLVE_CACHED)
_no_link_content = _OpenHow(_READ, 0, _RESOLVE_CACHED | _RESOLVE_NO_SYMLINKS)

_itself_ref, _target_ref = ctypes.byref(_itself), ctypes.byref(_target)
_no_link_ref = ctypes.byref(_no_link)
_content_ref, _no_link_content_ref = ctypes.byref(_content), ctypes.byref(_no_link_content)

_LARGEST = 1 << 16
"""Bytes of a file that is read at once; the time to copy more would be missed elsewhere."""

_statx = ctypes.CDLL(None, use_errno=True).statx
# Calls that never wait need not let other threads run meanwhile.
_at_once = ctypes.PyDLL(None, use_errno=True)
_openat2_at_once, _statx_at_once = _at_once.syscall, _at_once.statx

# Of `struct statx`: mask; mode and size; birth and modification in seconds and nanoseconds; mount.
_fields = struct.Struct("=I24xH10xQ32xqI4x16xqI20xQ").unpack_from

_LOCAL = frozenset(
    {"bcachefs", "btrfs", "devtmpfs", "erofs", "ext2", "ext3", "ext4", "f2fs"}
    | {"overlay", "ramfs", "squashfs", "tmpfs", "xfs", "zfs"}
)
"""File systems whose files change through this kernel only, so it knows them."""


class _Facts(NamedTuple):
    """What is needed of a `struct statx`."""

    mask: int
    mode: int
    size: int
    born: int
    born_ns: int
    modified: int
    modified_ns: int
    mount: int
    """Means something only if the mask says so."""


def _milliseconds(seconds: int, nanoseconds: int) -> int:
    return seconds * 1000 + nanoseconds // 1_000_000 if seconds > 0 else 0


def _look(folder: int, name: bytes, flags: int) -> _Facts:
    raw = _Statx()
    call = _statx_at_once if flags & _AT_STATX_DONT_SYNC else _statx
    if call(folder, name, flags, _WANTED, raw) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return _Facts._make(_fields(raw))


def _wire(facts: _Facts, is_symlink: bool) -> FileMetadata:
    kind = stat.S_IFMT(facts.mode)
    return FileMetadata(
        is_directory=kind == stat.S_IFDIR,
        is_file=kind == stat.S_IFREG,
        is_symlink=is_symlink,
        size=facts.size,
        created_at_ms=_milliseconds(facts.born, facts.born_ns) if facts.mask & _BIRTH else 0,
        modified_at_ms=_milliseconds(facts.modified, facts.modified_ns),
        permissions=facts.mode & 0o777,
    )


def metadata(path: str) -> FileMetadata:
    """
    What a path leads to, and whether it is a link itself. May wait for the file system.

    Raises:
        OSError: As the kernel says.
    """
    name = os.fsencode(path)
    itself = _look(_AT_FDCWD, name, _AT_SYMLINK_NOFOLLOW)
    if not stat.S_ISLNK(itself.mode):
        return _wire(itself, False)
    return _wire(_look(_AT_FDCWD, name, 0), True)


def metadata_of(folder: int, name: str) -> FileMetadata:
    """
    An entry of an open folder, itself and not what it leads to; an empty name is the folder.

    Raises:
        OSError: As the kernel says.
    """
    facts = _look(folder, os.fsencode(name), _AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH)
    return _wire(facts, stat.S_ISLNK(facts.mode))


def cached_metadata(path: str, *, links: bool = True) -> FileMetadata | None:
    """
    As `metadata`, from what the kernel remembers; `None` if it would have to look.

    Args:
        links: Whether links are followed; otherwise nothing is known of a path with one.

    Raises:
        NotFound: It remembers that there is no such file.
    """
    name = os.fsencode(path)
    facts = _recall(name, _itself_ref if links else _no_link_ref)
    is_symlink = facts is not None and stat.S_ISLNK(facts.mode)
    if is_symlink:
        facts = _recall(name, _target_ref)
    return None if facts is None else _wire(facts, is_symlink)


def cached_content(path: str, *, links: bool = True) -> bytes | None:
    """
    All of a small regular file, if the kernel has it in memory.

    Args:
        links: As for `cached_metadata`.

    Raises:
        NotFound: It remembers that there is no such file.
    """
    name = os.fsencode(path)
    facts = _recall(name, _target_ref if links else _no_link_ref)
    # Only now it is opened: to open a device, or a FIFO, does something.
    if facts is None or not stat.S_ISREG(facts.mode) or not 0 < facts.size <= _LARGEST:
        return None
    how = _content_ref if links else _no_link_content_ref
    descriptor: int = _openat2_at_once(_OPENAT2, _AT_FDCWD, name, how, _HOW_BYTES)
    if descriptor < 0:
        return None
    try:
        # One byte more than there was: if that is read, the file has grown meanwhile.
        room = bytearray(facts.size + 1)
        got = os.preadv(descriptor, [room], 0, os.RWF_NOWAIT)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return bytes(memoryview(room)[:got]) if got == facts.size else None


def _recall(name: bytes, how: object) -> _Facts | None:
    descriptor: int = _openat2_at_once(_OPENAT2, _AT_FDCWD, name, how, _HOW_BYTES)
    if descriptor < 0:
        if ctypes.get_errno() == errno.ENOENT:
            raise refusal(OSError(errno.ENOENT, ""), os.fsdecode(name))
        # EAGAIN: it would have to look. Old kernels and strict containers end here
        # too, as does every other error: a thread finds out what it is.
        return None
    try:
        facts = _look(descriptor, b"", _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    local = _mounts.get(facts.mount)
    if local is None:
        local = _mounts[facts.mount] = bool(facts.mask & _MOUNT) and _is_local(facts.mount)
    return facts if local else None


# Whether what a mount tells is always fresh, by its number.
_mounts: dict[int, bool] = {}


def _is_local(mount: int) -> bool:
    """Look into the kernel's list, which asks no file system."""
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            head, _, tail = line.partition(b" - ")
            if int(head.split(b" ", 1)[0]) == mount:
                return tail.split(b" ", 1)[0].decode() in _LOCAL
    return False
