"""
Files without a name, for what a child reads or executes.

The kernel can be told that files in memory are not to be executed (`vm.memfd_noexec`). At 1
only those can be that were made for it; at 2 none can, and one that does not say that it is
not to be executed cannot even be made. So each says what it is for.
"""

import errno
import os

__all__ = ["data_file", "program_file"]

_NEVER_EXECUTED = 0x08
"""`MFD_NOEXEC_SEAL`, since Linux 6.3."""

_EXECUTED = 0x10
"""`MFD_EXEC`, likewise."""


def data_file(data: bytes) -> int:
    """
    A descriptor, not inherited, that reads as this; unlike a pipe it takes any amount at once.

    Raises:
        OSError: The kernel refused.
    """
    return _filled(_memory_file(_NEVER_EXECUTED), data)


def program_file(image: bytes) -> int:
    """
    A descriptor, not inherited, of a program that `/proc/self/fd` executes.

    Raises:
        OSError: The kernel refused, and no folder for temporary files lets programs be run.
    """
    try:
        return _filled(_memory_file(_EXECUTED), image)
    except PermissionError:
        return _on_disk(image)


def _memory_file(purpose: int) -> int:
    try:
        return os.memfd_create("holdfast", os.MFD_CLOEXEC | purpose)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("holdfast", os.MFD_CLOEXEC)  # a kernel from before the two


def _filled(fd: int, data: bytes) -> int:
    try:
        _write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _on_disk(image: bytes) -> int:
    """The same as a file that is removed at once: nobody may have it open for writing then."""
    import tempfile  # only here

    fd, path = tempfile.mkstemp(prefix="holdfast-")
    try:
        try:
            os.fchmod(fd, 0o500)
            _write(fd, image)
        finally:
            os.close(fd)
        if os.statvfs(path).f_flag & os.ST_NOEXEC:
            raise PermissionError(errno.EACCES, "no programs can be run from this folder", path)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.unlink(path)
