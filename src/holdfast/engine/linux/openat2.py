"""
The `openat2` system call: opens a path with limits on how the kernel resolves it.

Python's `os` does not have the call, so ctypes makes it. Kernels before 5.6 and some container
filters refuse it; callers treat every failure as "not known" and fall back to another method.
"""

import ctypes
import os
from collections.abc import Iterable

__all__ = [
    "AT_FDCWD",
    "OPENAT2",
    "OPEN_HOW_BYTES",
    "RESOLVE_CACHED",
    "RESOLVE_NO_SYMLINKS",
    "OpenHow",
    "are_directories",
    "openat2",
]

OPENAT2 = 437
"""Number of the system call; the same on every architecture."""

AT_FDCWD = -100
"""Directory descriptor that stands for the working directory."""

RESOLVE_NO_SYMLINKS = 0x04
"""Fail with `ELOOP` on any symbolic link, the magic links of `/proc` included."""

RESOLVE_CACHED = 0x20
"""Fail with `EAGAIN` if a component is not in the dentry cache (since Linux 5.12)."""


class _OpenHowStruct(ctypes.Structure):
    """`struct open_how` of `linux/openat2.h`."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


OPEN_HOW_BYTES = ctypes.sizeof(_OpenHowStruct)
"""Size of `struct open_how`, which the kernel takes as its version."""


class OpenHow:
    """
    Prepared `struct open_how`: flags and limits of one kind of open.

    The kernel only reads the structure, so all threads may share one object. It is prepared once
    because filling in a structure costs more than the call itself.
    """

    __slots__ = ("_struct", "reference")

    def __init__(self, flags: int, resolve: int) -> None:
        """
        Args:
            flags: `O_…` flags; `O_CLOEXEC` is always added.
            resolve: `RESOLVE_…` flags.
        """
        # The reference does not keep the structure alive, so the object does.
        self._struct = _OpenHowStruct(flags | os.O_CLOEXEC, 0, resolve)
        self.reference = ctypes.byref(self._struct)


# Without errno, which no caller needs. Releases the GIL, since the call may block.
_syscall = ctypes.CDLL(None).syscall


def openat2(path: bytes, how: OpenHow) -> int:
    """Open an absolute path; return its descriptor, or -1 for any error."""
    descriptor: int = _syscall(OPENAT2, AT_FDCWD, path, how.reference, OPEN_HOW_BYTES)
    return descriptor


_DIRECTORY = OpenHow(os.O_PATH | os.O_DIRECTORY, RESOLVE_NO_SYMLINKS)


def are_directories(paths: Iterable[bytes]) -> bool:
    """
    Return True if all paths are directories that are reached without a link.

    False may also mean that the kernel or a container refuses `openat2`.
    """
    for path in paths:
        descriptor = openat2(path, _DIRECTORY)
        # ELOOP, ENOTDIR and ENOENT mean a change; the caller finds out which.
        if descriptor < 0:
            return False
        os.close(descriptor)
    return True
